"""Updates the policy on a step's groups: statistics of the trainer, advantages, minibatches, the policy loss.

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

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

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
from stages.algorithms.rollout_corrections import error_bounds, importance_weights, normalising_factor
from stages.algorithms.value_estimates import generalised_advantages, last_tokens
from stages.engines.policies.packing import ResponseBatch, pack
from stages.engines.samplers.protocol import Sample
from stages.engines.trainers.protocol import Diagnostics, LossFunction, Trainer, Update, add_diagnostics
from stages.foundations.seeds import derive_seed
from stages.rl_round.losses import OVER_TOKENS, effective_sample_fraction, policy_loss, rates_by_staleness
from stages.rl_round.params import DistillationParams, RlParams
from stages.rl_round.records import Group
from stages.rl_round.samples import StepPlan, TrainingSamples, make_micro_batches, packed, rows, training_samples
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
    # Before the advantages: the optimal token baseline needs these statistics.
    if params.proximal == "recompute":
        samples = with_proximal_statistics(samples, plan, params, trainer)
    if reference is not None:
        samples = replace(samples, reference_logprobs=frozen_logprobs(samples, plan, params, trainer, reference))
    if critic is not None:
        (values,) = _of_all(samples, plan, params, critic, lambda batch: [critic.evaluate(batch).cpu()])
        samples = replace(samples, values=values)
    samples = with_advantages(samples, params)
    if params.advantage_whitening:
        held = sorted({index for indices in plan.forward_passes[trainer.rank] for index in indices})
        samples = replace(samples, advantages=whitened(samples.advantages, samples.response_mask, held, trainer))
    if distillation is not None:
        logprobs, mask = frozen_logprobs(samples, plan, params, trainer, teacher), samples.response_mask
        # Last, so that the coefficient weighs nats, independent of the scaling of the reward's advantage.
        from_teacher = distilled(samples.proximal_logprobs, logprobs, mask, distillation.coefficient)
        samples = replace(samples, advantages=samples.advantages + from_teacher, teacher_logprobs=logprobs)
    return with_comparisons(samples, plan, params)


def with_comparisons(samples: TrainingSamples, plan: StepPlan, params: RlParams) -> TrainingSamples:
    """Returns the samples with what follows from comparing tokens of different responses, the same on every rank.

    Importance weights are compared over the step. All else is compared among the responses of one update: its tokens
    that may give gradient, by their statistics before the first update.
    """
    if not (params.compares_tokens or params.aggregation == "prompt_mean"):
        return samples
    if params.is_batch_normalized:
        correction, mask = params.rollout_correction, samples.response_mask
        of_ratios = samples.proximal_logprobs, samples.rollout_logprobs
        weights = importance_weights(*of_ratios, mask, correction.level, correction.cap)
        factor = normalising_factor(weights, mask, correction.level)
        samples = replace(samples, weight_factor=factor.repeat(len(samples)))
    found: dict[str, Tensor] = {}
    for number, update in enumerate(plan.updates):
        minibatch = samples.select(update.samples)
        for name, part in _compared(minibatch, params, derive_seed(plan.seed, number)).items():
            whole = found.setdefault(name, part.new_zeros(len(samples), *part.shape[1:]))
            whole[list(update.samples)] = part
    return replace(samples, **found)


def _compared(minibatch: TrainingSamples, params: RlParams, seed: int) -> dict[str, Tensor]:
    found, mask = {}, minibatch.response_mask * minibatch.is_kept[:, None]
    if params.top_entropy_fraction is not None:
        found["is_uncertain"] = top_fraction(minibatch.entropy, mask, params.top_entropy_fraction)
    if params.aggregation == "prompt_mean":
        # Of all tokens: a response without gradient must not give the others of its prompt more weight.
        found["prompt_tokens"] = tokens_of_prompts(minibatch.response_mask, minibatch.group_ids)
    match params.policy_loss:
        case ClipCov(fraction=fraction, covariance_low=low, covariance_high=high):
            both = covariances(minibatch.proximal_logprobs, minibatch.advantages, mask)
            found["is_covariant"] = random_between(both, mask, low, high, fraction, seed)
        case KlCov(fraction=fraction):
            both = covariances(minibatch.proximal_logprobs, minibatch.advantages, mask)
            found["is_covariant"] = top_fraction(both, mask, fraction)
    return found


def update_policy(
    samples: TrainingSamples,
    plan: StepPlan,
    params: RlParams,
    learning_rate_scale: float,
    trainer: Trainer,
    entropy_coefficient: float = 0.0,
) -> list[Update]:
    """Makes one pass over `samples` in the plan's optimizer updates.

    No update when there are no samples. FloatingPointError when a loss or gradient is not finite; that update does not
    change weights and optimizer.
    """
    loss = partial(policy_loss, params=params, entropy_coefficient=entropy_coefficient)
    updates = one_pass(samples, plan, params, learning_rate_scale, trainer, loss)
    limit = params.max_response_tokens
    return [_finished(one, len(planned.samples), limit) for one, planned in zip(updates, plan.updates, strict=True)]


def one_pass(
    samples: TrainingSamples,
    plan: StepPlan,
    params: RlParams,
    learning_rate_scale: float,
    trainer: Trainer,
    loss_of: Callable[[TrainingSamples], LossFunction],
) -> list[Update]:
    """Makes the plan's optimizer updates of a policy or critic; `loss_of` gives the loss of an update's samples."""
    updates = []
    for planned in plan.updates:
        minibatch = samples.select(planned.samples)
        batches = make_micro_batches(minibatch, planned.micro_batches[trainer.rank], params)
        updates.append(trainer.update(batches, loss_of(minibatch), learning_rate_scale))
    return updates


def _finished(update: Update, responses: int, max_response_tokens: int) -> Update:
    """Returns the update with diagnostics that are not sums, computed from its `sum/` shares, which are removed.

    Means over the tokens that gave gradient; effective sample size as a fraction of them. Variance proxies: the mean
    squared norm of a response's gradient with respect to the logits, and the squared norm of the whole gradient. The
    first leaves out the network's Jacobian, so compare each between runs, never with the other. The trust region's
    bound on |J(policy) - J(sampler) - surrogate| is for rewards in [0, 1], from the divergences of accepted responses.
    It is an estimate unless these are exact.
    """
    sums = {name: value for name, value in update.diagnostics.items() if name.startswith("sum/")}
    metrics: Diagnostics = {name: value for name, value in update.diagnostics.items() if name not in sums}
    # A mask may have left no token: every mean is then 0, and nothing divides by 0.
    tokens = max(1.0, sums["sum/weighted_tokens"])
    metrics |= {
        name.removeprefix(OVER_TOKENS): value / tokens for name, value in sums.items() if name.startswith(OVER_TOKENS)
    }
    metrics["importance/effective_sample_fraction"] = effective_sample_fraction(sums)
    metrics["importance/weight_mean"] = sums["sum/weights"] / tokens
    if "sum/capped_tokens" in sums:
        metrics["importance/capped_fraction"] = sums["sum/capped_tokens"] / tokens
    if "sum/left_out_tokens" in sums:
        metrics["importance/left_out_fraction"] = sums["sum/left_out_tokens"] / tokens
    power, signal = responses * sums["sum/gradient_power"], update.gradient_norm**2
    metrics["variance_proxy/power"], metrics["variance_proxy/signal"] = power, signal
    if "trust_region/acceptance_rate" in metrics:
        accepted = metrics["trust_region/acceptance_rate"]
        metrics["trust_region/sequence_divergence"] = sums["sum/accepted_divergence"] / accepted if accepted else 0.0
        metrics["trust_region/error_bound"] = error_bounds(
            max_response_tokens,
            metrics["trust_region/divergence_max"],
            sequence_kl=metrics["trust_region/sequence_divergence"],
        )["unified"]
    return replace(update, diagnostics=metrics)


def summarise(updates: Sequence[Update]) -> dict[str, float]:
    """Returns one number per diagnostic of a step: the mean over its updates; log-prob gaps only of the first update.

    Only the first update starts from the weights that sampled the step's rollouts.
    """
    total: dict[str, float] = {}
    for update in updates:
        add_diagnostics(total, update.diagnostics)
    # A maximum over updates is not a sum of shares, so it is not divided.
    means = {name: value if name.endswith("_max") else value / len(updates) for name, value in total.items()}
    means |= {name: value for name, value in updates[0].diagnostics.items() if name.startswith("logprob_gap/")}
    # Shares of micro-batches combine by sum or maximum, so the least mass is the rest of the largest.
    if "pruning/pruned_mass_max" in means:
        means["pruning/kept_mass_min"] = 1 - means.pop("pruning/pruned_mass_max")
    # Rates last: numerator and denominator are averaged first, so updates count in proportion to their size.
    means = rates_by_staleness(means)
    means["loss/policy"] = sum(update.loss for update in updates) / len(updates)
    means["optim/gradient_norm"] = sum(update.gradient_norm for update in updates) / len(updates)
    return means


class Reference(Protocol):
    """A policy that does not learn."""

    def logprobs(self, micro_batch: ResponseBatch) -> Tensor:
        """Returns log-probs [responses, tokens] on the CPU, at the batch's temperature."""


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

    logprobs, *others = _of_all(samples, plan, params, trainer, statistics, is_policy=True)
    return replace(samples, proximal_logprobs=logprobs, **dict(zip(names[1:], others, strict=True)))


def frozen_logprobs(
    samples: TrainingSamples, plan: StepPlan, params: RlParams, trainer: Trainer, reference: Reference
) -> Tensor:
    """Returns the log-probs of a policy that does not learn, [responses, tokens]; collective, on several ranks like
    `with_proximal_statistics`.

    Over the whole vocabulary, even when the policy's is cut: the reference's log-probs must not depend on how sharp
    its distribution is.
    """
    (logprobs,) = _of_all(samples, plan, params, trainer, lambda batch: [reference.logprobs(batch)])
    return logprobs


def _of_all(
    samples: TrainingSamples,
    plan: StepPlan,
    params: RlParams,
    trainer: Trainer,
    statistics: Callable[[ResponseBatch], list[Tensor]],
    is_policy: bool = False,
) -> list[Tensor]:
    """Returns the results of `statistics`, [responses, tokens] each; `is_policy`: over the sampler's tokens.

    Those of other ranks' samples are included only if tokens are compared, or on rank 0 for the step's metrics of
    advantages.
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
    # A comparison needs the tokens of every rank; all else needs only those of this rank.
    of_ranks = [parts]
    if params.compares_tokens:
        of_ranks = trainer.gather(parts)
    elif isinstance(params.advantage, Gae):
        of_ranks = trainer.gather_to_first(parts) or [parts]
    for indices, tensors in (one for of_rank in of_ranks for one in of_rank):
        for target, tensor in zip(whole, tensors, strict=True):
            target[indices, : tensor.shape[1]] = tensor[: len(indices)]
    return whole


def with_advantages(samples: TrainingSamples, params: RlParams) -> TrainingSamples:
    """Returns the samples with their advantages; for the optimal token baseline they must have trainer statistics, for
    generalised advantages values, and get targets."""
    rewards, group_ids, mask = samples.rewards, samples.group_ids, samples.response_mask
    # Estimators of whole responses use only `rewards`, so a repetition penalty does not change their baselines. A new
    # estimator needs a case here and a class in `AdvantageParams` (update_methods.py).
    penalties = _penalties(samples, params)
    samples = replace(samples, penalised=penalties != 0)
    match params.advantage:
        case GroupNormalized(divide_by_std=divide_by_std):
            whole = group_normalized(rewards, group_ids, divide_by_std=divide_by_std)
        case BatchNormalized(deviation_of=deviation_of):
            whole = batch_normalized(rewards, group_ids, deviation_of)
        case MeanNormalized():
            whole = mean_normalized(rewards, group_ids)
        case PassAtK(k=k):
            is_correct = torch.tensor([one.verdict is Verdict.CORRECT for one in samples.rollouts], dtype=torch.bool)
            whole = pass_at_k(is_correct, group_ids, k)
        case LeaveOneOut():
            whole = leave_one_out(rewards, group_ids)
        case LengthWeighted():
            whole = length_weighted(rewards, torch.tensor(samples.response_tokens), group_ids)
        case PlainReward():
            whole = rewards
        case OptimalTokenBaseline():
            return replace(samples, advantages=_beyond_token_baseline(samples, params, penalties))
        case Gae():
            advantages = _beyond_values(samples, params, penalties)
            return replace(samples, advantages=advantages, value_targets=advantages + samples.values)
    per_token = outcome_returns(whole, mask, params) + _to_go_of_penalties(penalties, mask, params)
    return replace(samples, advantages=per_token)


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


def _beyond_token_baseline(samples: TrainingSamples, params: RlParams, penalties: Tensor) -> Tensor:
    mask, proximal = samples.response_mask, samples.proximal_logprobs
    returns = outcome_returns(samples.rewards, mask, params) + _to_go_of_penalties(penalties, mask, params)
    weights = None
    if params.advantage.is_importance_weighted and isinstance(params.rollout_correction, ImportanceWeights):
        correction = params.rollout_correction
        weights = importance_weights(proximal, samples.rollout_logprobs, mask, correction.level, correction.cap)
    proxy = logit_gradient_proxy(proximal, samples.sum_squared_probs)
    baseline = optimal_token_baseline(returns, mask, proxy, samples.group_ids, weights, params.advantage.lone_tail)
    return (returns - baseline) * mask


def _beyond_values(samples: TrainingSamples, params: RlParams, penalties: Tensor) -> Tensor:
    gae, mask, penalty = params.advantage, samples.response_mask, params.repetition_penalty
    rewards = samples.rewards[:, None] * last_tokens(mask)
    if params.reference_kl.kind == "in_reward":
        log_ratio = (samples.proximal_logprobs - samples.reference_logprobs) * mask
        rewards = rewards - params.reference_kl.coefficient * log_ratio
    if penalty is None or penalty.discount == gae.discount:
        return generalised_advantages(rewards + penalties, samples.values, mask, gae.discount, gae.gae_lambda)
    # Lambda is 1 here: each stream adds its own discounted reward to go, and the value is subtracted once (Demystify).
    outcomes = generalised_advantages(rewards, samples.values, mask, gae.discount, gae.gae_lambda)
    return outcomes + _to_go_of_penalties(penalties, mask, params)


def outcome_returns(outcomes: Tensor, mask: Tensor, params: RlParams) -> Tensor:
    """Returns outcome * discount^(T - 1 - t) at the policy's token t of T in a response: (responses, tokens).

    Tokens of an environment have no return and cost no discount: a long observation does not weaken the turns before.
    """
    # The usual case: without a discount every token has the outcome, and no pass over the tokens is needed.
    if params.reward_discount == 1:
        return outcomes[:, None] * mask
    return discounted_to_go(outcomes[:, None] * last_tokens(mask), mask, params.reward_discount)


def _penalties(samples: TrainingSamples, params: RlParams) -> Tensor:
    """Returns the repetition penalty of each token: (responses, tokens)."""
    penalty = params.repetition_penalty
    if penalty is None:
        return torch.zeros_like(samples.response_mask)
    by_response = []
    for rollout in samples.rollouts:
        text = _with_breaks(rollout.sample)
        penalties = ngram_repetition_penalty(text, penalty.n, penalty.penalty).tolist()
        by_response.append([value for token, value in zip(text, penalties, strict=True) if token >= 0])
    return rows(by_response, samples.response_mask)


def _with_breaks(sample: Sample) -> list[int]:
    """Returns the policy's tokens, with a unique negative number in place of each observation.

    So no n-gram crosses an observation, and what an environment repeats costs the policy nothing.
    """
    text, start = list[int](), 0
    for number, (begin, end) in enumerate(sample.observed, start=1):
        text += [*sample.token_ids[start:begin], -number]
        start = end
    return [*text, *sample.token_ids[start:]]


def _to_go_of_penalties(penalties: Tensor, mask: Tensor, params: RlParams) -> Tensor:
    if params.repetition_penalty is None:
        return penalties
    return discounted_to_go(penalties, mask, params.repetition_penalty.discount)
