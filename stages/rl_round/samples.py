"""From the groups of a step to what its losses read: tensors, log-probs, values, advantages, micro-batches.

`scatter_batch` plans the step and gives every rank its share. Baselines and divisors are over all responses, so every
rank needs all rewards and lengths. Tokens and log-probs are most of a batch's bytes; they are sent only to the rank
that trains on them, which follows from the lengths.

Every tensor [responses, tokens] is padded with 0 on the right, and 0 at tokens that an environment wrote.
`response_mask` marks the other tokens, those of the policy: losses, divisors, lengths and baselines see only them.
Log-probs keep this layout from the pass that computes them to the loss.

Three log-probabilities are never mixed: `rollout_logprobs` are the sampler's, `proximal_logprobs` those of the weights
at the start of the update, `policy_logprobs` the current ones, with gradient. Trainer and reference compute theirs
before the update, once per sample.

Advantages are per token: the outcome stream and the repetition stream, each with its own discount. Sources: the papers
cited in `stages.algorithms.advantages` and `optimal_token_baseline`. Two streams with separate discounts are as in
Demystifying Long CoT (arXiv 2502.03373, section 4.4). Each is a reward to go. With `advantage.kind: gae`, a critic's
value is subtracted once.

Deviations: 1. estimators of whole responses centre only the outcome; the discounted penalty to go is added uncentred,
so that a repeated token is always pushed down. 2. With the optimal token baseline, both streams are part of the return
from which the baseline is subtracted. 3. The KL to the reference as a reward belongs to the outcome stream; the code of
Demystifying Long CoT gives an equal share of it to each stream. 4. Tokens are chosen by covariance or entropy among all
tokens of an update, with the weights before the step's first update. verl and the papers' code use current weights and
a micro-batch. So the choice depends neither on the size of micro-batches nor on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol, assert_never

import numpy
import torch
from torch import Tensor

from stages.algorithms.advantages import (
    batch_normalized,
    distilled,
    group_normalized,
    leave_one_out,
    length_weighted,
    logit_gradient_proxy,
    mean_normalized,
    optimal_token_baseline,
    pass_at_k,
)
from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.entropy_levers import covariances, random_between, top_fraction
from stages.algorithms.length_rewards import discounted_to_go, ngram_repetition_penalty
from stages.algorithms.policy_losses import tokens_of_prompts
from stages.algorithms.rollout_corrections import importance_weights, normalising_factor
from stages.algorithms.value_estimates import generalised_advantages, last_tokens
from stages.engines.policies.packing import ResponseBatch, TokenSequence, groups_by_rank, pack
from stages.engines.samplers.protocol import FullSample, Sample
from stages.engines.trainers.protocol import Trainer
from stages.foundations.seeds import derive_seed, permutation
from stages.rl_round.methods import SynchronousLoop
from stages.rl_round.params import DistillationParams, RlParams
from stages.rl_round.records import Batch, Group, Rollout, pack_groups, unpack_groups
from stages.rl_round.update_methods import (
    BatchNormalized,
    ClipCov,
    Gae,
    GroupNormalized,
    ImportanceWeights,
    KlCov,
    LeaveOneOut,
    LengthWeighted,
    MeanNormalized,
    OptimalTokenBaseline,
    PassAtK,
    PlainReward,
)


@dataclass(frozen=True)
class TrainingSamples:
    """The decided rollouts of a batch, with the statistics of their tokens so far."""

    prompts: list[list[int]]
    rollouts: list[Rollout]
    group_ids: Tensor
    """Number of each response's group in the batch, [responses]."""
    is_kept: Tensor
    """False for responses that give no gradient (overlong filtering); the divisors still count them, [responses]."""
    is_fresh: Tensor
    """True for responses of the newest weights, false for surplus of earlier steps, [responses]."""
    response_mask: Tensor
    """1 for each token of the policy, float, [responses, tokens]; 0 at padding and at an environment's tokens."""
    rollout_logprobs: Tensor
    proximal_logprobs: Tensor
    """The sampler's log-probs, until `with_proximal_statistics` replaces them with the trainer's."""
    advantages: Tensor
    """0 until `with_advantages`."""
    penalised: Tensor
    sum_squared_probs: Tensor | None = None
    """Sum of the squared probabilities at each token under the proximal weights, if an estimator needs it."""
    entropy: Tensor | None = None
    """Entropy at each token under the proximal weights, if tokens are chosen by it."""
    is_uncertain: Tensor | None = None
    """True for the tokens that `top_entropy_fraction` chooses."""
    is_covariant: Tensor | None = None
    """True for the tokens that Clip-Cov or KL-Cov holds back."""
    prompt_tokens: Tensor | None = None
    """Tokens of all responses to the same prompt in the same update, [responses], if losses are divided by it."""
    weight_factor: Tensor | None = None
    """Factor of a response's importance weights, [responses], if their mean is to be 1."""
    reference_logprobs: Tensor | None = None
    teacher_logprobs: Tensor | None = None
    staleness: Tensor | None = None
    """Versions by which each response's weights are behind the trainer's, [responses]; None in the synchronous loop."""
    values: Tensor | None = None
    """The critic's value of each token before the step's updates; None without a critic."""
    value_targets: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rollouts)

    @property
    def rewards(self) -> Tensor:
        """Returns the reward of each rollout, [responses]."""
        return torch.tensor([rollout.reward for rollout in self.rollouts])

    @property
    def response_tokens(self) -> list[int]:
        """Returns the number of the policy's tokens in each response."""
        return [rollout.sample.policy_tokens for rollout in self.rollouts]

    @property
    def sequences(self) -> list[TokenSequence]:
        pairs = zip(self.prompts, (rollout.sample for rollout in self.rollouts), strict=True)
        return [TokenSequence(prompt, sample.token_ids, sample.is_written) for prompt, sample in pairs]

    def select(self, indices: Sequence[int]) -> TrainingSamples:
        place = torch.tensor(indices, dtype=torch.long)
        chosen = {
            entry.name: [value[index] for index in indices] if isinstance(value, list) else value[place]
            for entry in fields(self)
            if (value := getattr(self, entry.name)) is not None
        }
        return replace(self, **chosen)


@dataclass(frozen=True)
class PlannedUpdate:
    samples: tuple[int, ...]
    """Indices of the step's training samples, in an order that the seed decides."""
    micro_batches: list[list[list[int]]]
    """For each rank, in the order of training: places in `samples`. Every rank has the same number, some are empty."""


@dataclass(frozen=True)
class StepPlan:
    """The updates of a step, with the order and the rank of its training samples; the same on every rank."""

    newest_version: int | None
    updates: list[PlannedUpdate]
    forward_passes: list[list[list[int]]]
    """For each rank: the samples of each forward pass of trainer and reference before the updates."""
    seed: int
    """Of random choices among the tokens."""


def scatter_batch(
    batch: Batch | None, params: RlParams, micro_batch_tokens: int, trainer: Trainer, *seed_path: int | str
) -> tuple[list[Group], StepPlan]:
    """Returns the batch's groups as this rank needs them, and the step's plan; rank 0 passes the batch; collective.

    Rank 0 has the complete groups.
    """
    # The other ranks receive their part here, with the lengths of all rollouts, because divisors need them.
    if batch is None:
        packed, plan = trainer.scatter(None)
        return unpack_groups(packed), plan
    rollouts = [(group, rollout) for group in batch.groups for rollout in group.rollouts]
    # The plan numbers only decided rollouts, like `training_samples`; `decided` maps these numbers to all rollouts.
    decided = [place for place, (_, rollout) in enumerate(rollouts) if rollout.is_decided]
    lengths = [len(rollouts[place][0].prompt) + len(rollouts[place][1].sample.token_ids) for place in decided]
    plan = plan_step(lengths, batch.newest_version, params.minibatches, micro_batch_tokens, trainer, *seed_path)
    if trainer.world_size > 1:
        held = [{decided[index] for group in passes for index in group} for passes in plan.forward_passes]
        # Tokens of responses on several ranks are compared. The ranks share one set, which is never changed.
        if params.compares_tokens:
            held = [set(range(len(rollouts)))] * trainer.world_size
        of_ranks = [[place in of_rank for place in range(len(rollouts))] for of_rank in held]
        # Texts stay on rank 0, which writes the table: training does not need them.
        trainer.scatter([(pack_groups(batch.groups, flags, with_texts=False), plan) for flags in of_ranks])
    return batch.groups, plan


def plan_step(
    lengths: Sequence[int],
    newest_version: int | None,
    minibatches: int,
    micro_batch_tokens: int,
    trainer: Trainer,
    *seed_path: int | str,
) -> StepPlan:
    """Returns the plan for training samples of these lengths, which include the prompt: it costs compute too."""
    # Rounded up: at most `minibatches` updates; the last one may be smaller.
    order, size = permutation(len(lengths), *seed_path), -(-len(lengths) // minibatches)
    updates = []
    # Without samples the size is 0 and no update is planned, but `range` needs a step of at least 1.
    for first in range(0, len(order), max(1, size)):
        chosen = order[first : first + size]
        of_ranks = groups_by_rank([lengths[index] for index in chosen], micro_batch_tokens, trainer)
        updates.append(PlannedUpdate(chosen, of_ranks))
    # With several ranks, each evaluates the samples that it trains on: it has no other tokens. A single rank has all,
    # and packs them tighter over the whole batch than within each minibatch.
    passes = [
        [[update.samples[place] for place in places] for update in updates for places in update.micro_batches[rank]]
        for rank in range(trainer.world_size)
    ]
    if trainer.world_size == 1:
        passes = groups_by_rank(lengths, micro_batch_tokens, trainer)
    return StepPlan(newest_version, updates, passes, derive_seed(*seed_path, "tokens"))


class Reference(Protocol):
    """A policy that does not learn."""

    def logprobs(self, micro_batch: ResponseBatch) -> Tensor:
        """Returns log-probs [responses, tokens] on the CPU, at the batch's temperature."""


def prepare_samples(
    groups: Sequence[Group],
    plan: StepPlan,
    params: RlParams,
    trainer: Trainer,
    reference: Reference | None = None,
    teacher: Reference | None = None,
    distillation: DistillationParams | None = None,
    critic: Trainer | None = None,
) -> TrainingSamples:
    """Returns the decided rollouts of `groups` with all inputs of the loss; collective. `reference` is for
    `reference_kl`, `teacher` for the round's `distillation`, `critic` for `advantage.kind: gae`.

    Empty when no rollout is decided.
    """
    samples = training_samples(groups, params, plan.newest_version)
    if not len(samples):
        return samples
    # First all forward passes of the models as they are before the step's updates.
    if params.proximal == "recompute":
        samples = with_proximal_statistics(samples, plan, params, trainer)
    if reference is not None:
        samples = replace(samples, reference_logprobs=frozen_logprobs(samples, plan, params, trainer, reference))
    if teacher is not None:
        samples = replace(samples, teacher_logprobs=frozen_logprobs(samples, plan, params, trainer, teacher))
    if critic is not None:
        (values,) = _evaluated(samples, plan, params, critic, lambda batch: [critic.evaluate(batch).cpu()])
        samples = replace(samples, values=values)
    samples = with_advantages(samples, params)
    from_teacher = None
    if distillation is not None:
        ratios, mask = (samples.proximal_logprobs, samples.teacher_logprobs), samples.response_mask
        from_teacher = distilled(*ratios, mask, distillation.coefficient)
    if params.advantage_whitening:
        held = sorted({index for indices in plan.forward_passes[trainer.rank] for index in indices})
        samples = replace(samples, advantages=whitened(samples.advantages, samples.response_mask, held, trainer))
    # Not whitened, so that the coefficient weighs nats, independent of the scaling of the reward's advantage.
    if from_teacher is not None:
        samples = replace(samples, advantages=samples.advantages + from_teacher)
    return with_comparisons(samples, plan, params)


def training_samples(groups: Sequence[Group], params: RlParams, newest_version: int | None) -> TrainingSamples:
    """Returns the decided rollouts of `groups`; undecided ones are neither trained on nor part of a baseline.

    Rollouts of `newest_version` are fresh; with None, none is. Outside the synchronous loop `newest_version` is the
    version that is trained, and staleness is counted from it.
    """
    chosen = [
        (group.prompt, rollout, number)
        for number, group in enumerate(groups)
        for rollout in group.rollouts
        if rollout.is_decided
    ]
    rollouts = [rollout for _, rollout, _ in chosen]
    # `group_ids` number the groups of the batch. A group with only undecided rollouts leaves a gap, which does not
    # affect any estimator.
    lengths = torch.tensor([len(rollout.sample.token_ids) for rollout in rollouts], dtype=torch.long)
    is_token = torch.arange(int(lengths.max()) if chosen else 0)[None] < lengths[:, None]
    mask = is_token.float()
    for row, rollout in zip(mask, rollouts, strict=True):
        for start, end in rollout.sample.observed:
            row[start:end] = 0.0
    # Scattered over all tokens: over the mask, every value after an observation would move to another token.
    logprobs = rows((rollout.sample.logprobs for rollout in rollouts), is_token)
    logprobs = logprobs.masked_fill_(mask == 0, 0.0)
    truncated = torch.tensor([rollout.sample.is_truncated for rollout in rollouts], dtype=torch.bool)
    staleness = None
    if newest_version is not None and not isinstance(params.loop, SynchronousLoop):
        staleness = torch.tensor([newest_version - rollout.sample.policy_version for rollout in rollouts])
    return TrainingSamples(
        prompts=[prompt for prompt, _, _ in chosen],
        rollouts=rollouts,
        group_ids=torch.tensor([number for _, _, number in chosen], dtype=torch.long),
        is_kept=~truncated if params.overlong_filtering else torch.ones_like(truncated),
        # Equal, not just recent: the gap between sampler and trainer is measured on responses of one version.
        is_fresh=torch.tensor(
            [rollout.sample.policy_version == newest_version for rollout in rollouts], dtype=torch.bool
        ),
        response_mask=mask,
        rollout_logprobs=logprobs,
        proximal_logprobs=logprobs,
        advantages=torch.zeros_like(mask),
        penalised=torch.zeros_like(mask, dtype=torch.bool),
        staleness=staleness,
    )


def rows(values: Iterable[Sequence[float]], mask: Tensor) -> Tensor:
    """Returns one row for each response: its values, in order, at the places of the mask, else 0; (responses, tokens).

    Each response has as many values as its row of the mask has places.
    """
    flat = [numpy.asarray(row, dtype=numpy.float32) for row in values]
    # `masked_scatter_` fills the places of the mask row by row, which is the order of the flat values.
    whole = torch.from_numpy(numpy.concatenate(flat or [numpy.zeros(0, numpy.float32)]))
    return torch.zeros(mask.shape).masked_scatter_(mask.bool(), whole)


def with_proximal_statistics(
    samples: TrainingSamples, plan: StepPlan, params: RlParams, trainer: Trainer
) -> TrainingSamples:
    """Returns the samples with log-probs of the trainer's current weights; collective.

    On several ranks, only for the samples that this rank trains on.
    For the optimal token baseline also with sums of squared probabilities, and with entropies if they choose tokens.
    """
    needed = {"sum_squared_probs": isinstance(params.advantage, OptimalTokenBaseline)}
    needed["entropy"] = params.top_entropy_fraction is not None
    names = ["logprobs", *(name for name, is_needed in needed.items() if is_needed)]

    def statistics(batch: ResponseBatch) -> list[Tensor]:
        outputs = trainer.evaluate(batch)
        return [getattr(outputs, name).cpu() for name in names]

    logprobs, *others = _evaluated(samples, plan, params, trainer, statistics, is_policy=True)
    return replace(samples, proximal_logprobs=logprobs, **dict(zip(names[1:], others, strict=True)))


def frozen_logprobs(
    samples: TrainingSamples, plan: StepPlan, params: RlParams, trainer: Trainer, reference: Reference
) -> Tensor:
    """Returns the log-probs of a policy that does not learn, [responses, tokens]; collective, on several ranks like
    `with_proximal_statistics`.

    Over the whole vocabulary, even when the policy's is cut: the reference's log-probs must not depend on how sharp
    its distribution is.
    """
    (logprobs,) = _evaluated(samples, plan, params, trainer, lambda batch: [reference.logprobs(batch)])
    return logprobs


def _evaluated(
    samples: TrainingSamples,
    plan: StepPlan,
    params: RlParams,
    trainer: Trainer,
    statistics: Callable[[ResponseBatch], list[Tensor]],
    is_policy: bool = False,
) -> list[Tensor]:
    """Returns the results of `statistics`, [responses, tokens] each; `is_policy`: over the sampler's tokens.

    Each rank evaluates its own samples, and rows of others stay 0. All ranks get all rows if tokens are compared. With
    a critic rank 0 gets all rows, because it reports the explained variance over the whole batch.
    """
    sequences = samples.sequences
    parts: list[tuple[list[int], list[Tensor]]] = []
    for indices in plan.forward_passes[trainer.rank]:
        # An empty share runs through the model too: all ranks must take part in the same collectives.
        batch = trainer.model.filler
        if indices:
            plain = [sequences[index] for index in indices]
            batch = packed(samples.select(indices), params) if is_policy else pack(plain, params.temperature)
        parts.append((indices, statistics(batch)))
    whole = [torch.zeros_like(samples.response_mask) for _ in parts[0][1]]
    of_ranks = [parts]
    if params.compares_tokens:
        of_ranks = trainer.gather(parts)
    elif isinstance(params.advantage, Gae):
        # Ranks other than 0 get nothing, and keep their own part.
        of_ranks = trainer.gather_to_first(parts) or [parts]
    for indices, tensors in (one for of_rank in of_ranks for one in of_rank):
        for target, tensor in zip(whole, tensors, strict=True):
            # A filler belongs to no sample: it has no index, so nothing of it is kept.
            target[indices, : tensor.shape[1]] = tensor[: len(indices)]
    return whole


def with_advantages(samples: TrainingSamples, params: RlParams) -> TrainingSamples:
    """Returns the samples with their advantages; for the optimal token baseline they must have trainer statistics, for
    generalised advantages values, and get targets."""
    estimator, mask = params.advantage, samples.response_mask
    outcomes = _outcomes(samples, params)
    penalties, penalties_to_go = _penalties(samples, params)
    samples = replace(samples, penalised=penalties != 0)
    # The usual case: without a discount every token has the outcome, and no pass over the tokens is needed.
    returns = outcomes[:, None] * mask
    if params.reward_discount != 1:
        # Tokens of an environment cost no discount: a long observation does not weaken the turns before.
        returns = discounted_to_go(outcomes[:, None] * last_tokens(mask), mask, params.reward_discount)
    returns = returns + penalties_to_go
    if isinstance(estimator, Gae):
        rewards, penalty = outcomes[:, None] * last_tokens(mask), params.repetition_penalty
        if params.reference_kl.kind == "in_reward":
            log_ratio = (samples.proximal_logprobs - samples.reference_logprobs) * mask
            rewards = rewards - params.reference_kl.coefficient * log_ratio
        is_one_stream = penalty is None or penalty.discount == estimator.discount
        rewards = rewards + penalties if is_one_stream else rewards
        advantages = generalised_advantages(rewards, samples.values, mask, estimator.discount, estimator.gae_lambda)
        # Lambda is 1 with two streams: each adds its own discounted reward to go, and the value is subtracted once.
        advantages = advantages if is_one_stream else advantages + penalties_to_go
        return replace(samples, advantages=advantages, value_targets=advantages + samples.values)
    if isinstance(estimator, OptimalTokenBaseline):
        weights, correction = None, params.rollout_correction
        if estimator.is_importance_weighted and isinstance(correction, ImportanceWeights):
            ratios = samples.proximal_logprobs, samples.rollout_logprobs
            weights = importance_weights(*ratios, mask, correction.level, correction.cap)
        proxy = logit_gradient_proxy(samples.proximal_logprobs, samples.sum_squared_probs)
        baseline = optimal_token_baseline(returns, mask, proxy, samples.group_ids, weights, estimator.lone_tail)
        returns = (returns - baseline) * mask
    return replace(samples, advantages=returns)


def _outcomes(samples: TrainingSamples, params: RlParams) -> Tensor:
    """Returns each response's reward, minus the baseline of its group if the estimator has one of whole responses."""
    # They use only rewards, so a repetition penalty does not change their baselines. A new estimator needs a case here
    # and a class in `AdvantageParams` (update_methods.py).
    rewards, group_ids = samples.rewards, samples.group_ids
    match params.advantage:
        case GroupNormalized(divide_by_std=divide_by_std):
            return group_normalized(rewards, group_ids, divide_by_std=divide_by_std)
        case BatchNormalized(deviation_of=deviation_of):
            return batch_normalized(rewards, group_ids, deviation_of)
        case MeanNormalized():
            return mean_normalized(rewards, group_ids)
        case PassAtK(k=k):
            is_correct = torch.tensor([one.verdict is Verdict.CORRECT for one in samples.rollouts], dtype=torch.bool)
            return pass_at_k(is_correct, group_ids, k)
        case LeaveOneOut():
            return leave_one_out(rewards, group_ids)
        case LengthWeighted():
            return length_weighted(rewards, torch.tensor(samples.response_tokens), group_ids)
        case PlainReward() | OptimalTokenBaseline() | Gae():
            return rewards
        case other:
            assert_never(other)


def _penalties(samples: TrainingSamples, params: RlParams) -> tuple[Tensor, Tensor]:
    """Returns the repetition penalty of each token, and the discounted sum from it on: (responses, tokens) each."""
    penalty, mask = params.repetition_penalty, samples.response_mask
    if penalty is None:
        return torch.zeros_like(mask), torch.zeros_like(mask)
    by_response = []
    for rollout in samples.rollouts:
        text = _with_breaks(rollout.sample)
        values = ngram_repetition_penalty(text, penalty.n, penalty.penalty).tolist()
        by_response.append([value for token, value in zip(text, values, strict=True) if token >= 0])
    penalties = rows(by_response, mask)
    return penalties, discounted_to_go(penalties, mask, penalty.discount)


def _with_breaks(sample: Sample) -> list[int]:
    """Returns the policy's tokens, with a unique negative number in place of each observation.

    So no n-gram crosses an observation, and what an environment repeats costs the policy nothing.
    """
    text, start = list[int](), 0
    for number, (begin, end) in enumerate(sample.observed, start=1):
        text += [*sample.token_ids[start:begin], -number]
        start = end
    return [*text, *sample.token_ids[start:]]


def whitened(advantages: Tensor, mask: Tensor, held: Sequence[int], trainer: Trainer) -> Tensor:
    """Returns advantages of mean 0 and variance 1 over the tokens of all responses, 0 outside the mask; collective.

    `held` are this rank's responses, [responses, tokens] both; together the ranks hold each response once. Advantages
    that are all equal become 0. Source: `normalize("advantages")` of OpenRLHF's replay buffer.
    """
    values = advantages[list(held)][mask[list(held)].bool()].double()

    def over_ranks(value: Tensor) -> float:
        # Added up in the order of the ranks, so that every rank has the same bits.
        return sum(trainer.gather(float(value)))

    count = over_ranks(torch.tensor(values.numel()))
    mean = over_ranks(values.sum()) / max(1.0, count)
    variance = over_ranks((values - mean).square().sum()) / max(1.0, count)
    return ((advantages - mean) * max(variance, 1e-8) ** -0.5 * mask).to(advantages.dtype)


def with_comparisons(samples: TrainingSamples, plan: StepPlan, params: RlParams) -> TrainingSamples:
    """Returns the samples with what follows from comparing tokens of different responses, the same on every rank.

    Importance weights are compared over the step. All else is compared among the responses of one update: its tokens
    that may give gradient, by their statistics before the first update.
    """
    if not (params.compares_tokens or params.aggregation == "prompt_mean"):
        return samples
    if params.is_batch_normalized:
        correction, mask = params.rollout_correction, samples.response_mask
        ratios = samples.proximal_logprobs, samples.rollout_logprobs
        weights = importance_weights(*ratios, mask, correction.level, correction.cap)
        factor = normalising_factor(weights, mask, correction.level)
        samples = replace(samples, weight_factor=factor.repeat(len(samples)))
    found: dict[str, Tensor] = {}
    for number, update in enumerate(plan.updates):
        minibatch, of_update = samples.select(update.samples), dict[str, Tensor]()
        mask = minibatch.response_mask * minibatch.is_kept[:, None]
        if params.top_entropy_fraction is not None:
            of_update["is_uncertain"] = top_fraction(minibatch.entropy, mask, params.top_entropy_fraction)
        match params.policy_loss:
            case ClipCov(fraction=fraction, covariance_low=low, covariance_high=high):
                both = covariances(minibatch.proximal_logprobs, minibatch.advantages, mask)
                seed = derive_seed(plan.seed, number)
                of_update["is_covariant"] = random_between(both, mask, low, high, fraction, seed)
            case KlCov(fraction=fraction):
                both = covariances(minibatch.proximal_logprobs, minibatch.advantages, mask)
                of_update["is_covariant"] = top_fraction(both, mask, fraction)
        if params.aggregation == "prompt_mean":
            # Of all tokens: a response without gradient must not give the others of its prompt more weight.
            of_update["prompt_tokens"] = tokens_of_prompts(minibatch.response_mask, minibatch.group_ids)
        for name, part in of_update.items():
            whole = found.setdefault(name, part.new_zeros(len(samples), *part.shape[1:]))
            whole[list(update.samples)] = part
    return replace(samples, **found)


def packed(samples: TrainingSamples, params: RlParams) -> ResponseBatch:
    """Returns the samples as the policy that learns needs them: its statistics are over the tokens that the sampler
    could draw."""
    sets = distributions(samples, params) if params.uses_sampler_sets else None
    batch = pack(samples.sequences, params.temperature, log_threshold=params.log_threshold)
    return replace(batch, sampler_sets=sets, likeliest=params.likeliest)


def distributions(samples: TrainingSamples, params: RlParams) -> tuple[Tensor, ...]:
    # Only the empty response of a rank without samples has none.
    none = torch.zeros(0, 2 * params.likeliest)
    pairs = (rollout.sample for rollout in samples.rollouts)
    return tuple(one.distributions if isinstance(one, FullSample) else none for one in pairs)
