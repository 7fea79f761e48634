"""The training data of one step: rollouts with padded tensors of their tokens, and their distribution over ranks.

Every tensor [responses, tokens] is padded with 0 on the right, and 0 at tokens that an environment wrote.
`response_mask` marks the other tokens, those of the policy: losses, divisors, lengths and baselines see only them.
Log-probs keep this layout from the pass that computes them to the loss.

Baselines and divisors are over all responses, so every rank needs all rewards and lengths. Tokens and log-probs are
most of a batch's bytes; they are sent only to the rank that trains on them, which follows from the lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy
import torch
from torch import Tensor

from stages.engines.policies.packing import ResponseBatch, TokenSequence, groups_by_rank, pack
from stages.engines.samplers.protocol import FullSample, Sample, StopReason
from stages.engines.trainers.protocol import Trainer
from stages.foundations.seeds import derive_seed, permutation
from stages.rl_round.methods import SynchronousLoop
from stages.rl_round.params import RlParams
from stages.rl_round.records import Batch, Group, Rollout, pack_groups, unpack_groups

NO_RESPONSE = Sample([], [], StopReason.MAX_TOKENS, policy_version=0)
LOSS_FIELDS = (
    *("rollout_logprobs", "proximal_logprobs", "reference_logprobs", "teacher_logprobs", "advantages", "values"),
    *("value_targets", "is_uncertain", "is_covariant", "prompt_tokens", "weight_factor", "staleness"),
)
"""Tensors of `TrainingSamples` that losses read, where there are any."""


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
    """True for tokens that received the repetition penalty."""
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
    """The critic's targets, from `with_advantages`."""

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
        """Returns the samples at `indices`, in that order."""
        place = torch.tensor(indices, dtype=torch.long)
        chosen = {
            entry.name: [value[index] for index in indices] if isinstance(value, list) else value[place]
            for entry in fields(self)
            if (value := getattr(self, entry.name)) is not None
        }
        return replace(self, **chosen)

    def without_response(self) -> TrainingSamples:
        """Returns the first prompt with an empty response: it goes through the same forward passes but never counts."""
        first = self.select([0])
        emptied = {
            entry.name: torch.zeros_like(value)
            for entry in fields(self)
            if isinstance(value := getattr(first, entry.name), Tensor)
        }
        return replace(first, rollouts=[replace(first.rollouts[0], sample=NO_RESPONSE)], **emptied)


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
    """Newest version of the batch."""
    updates: list[PlannedUpdate]
    forward_passes: list[list[list[int]]]
    """For each rank: the samples of each forward pass of trainer and reference before the updates."""
    seed: int
    """Of random choices among the tokens."""


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


def make_micro_batches(
    minibatch: TrainingSamples, places: Iterable[Sequence[int]], params: RlParams
) -> list[ResponseBatch]:
    """Returns the micro-batches of these places in a minibatch, with the loss's inputs as `fields`."""
    parts = [minibatch.select(part) if part else minibatch.without_response() for part in places]
    return [_with_fields(part, params) for part in parts]


def rows(values: Iterable[Sequence[float]], mask: Tensor) -> Tensor:
    """Returns one row for each response: its values, in order, at the places of the mask, else 0; (responses, tokens).

    Each response has as many values as its row of the mask has places.
    """
    flat = [numpy.asarray(row, dtype=numpy.float32) for row in values]
    # `masked_scatter_` fills the places of the mask row by row, which is the order of the flat values.
    whole = torch.from_numpy(numpy.concatenate(flat or [numpy.zeros(0, numpy.float32)]))
    return torch.zeros(mask.shape).masked_scatter_(mask.bool(), whole)


def _with_fields(samples: TrainingSamples, params: RlParams) -> ResponseBatch:
    batch = packed(samples, params)
    # The step's tensors are as wide as its longest response, a micro-batch only as its own longest response.
    mask = batch.response_mask
    width = mask.shape[1]
    given = {name: value for name in LOSS_FIELDS if (value := getattr(samples, name)) is not None}
    loss_fields = {name: value[:, :width] if value.dim() == 2 else value for name, value in given.items()}
    # Two masks: tokens that give gradient, and tokens on which the gap to the sampler is measured (truncated ones too).
    loss_fields["loss_mask"] = mask * samples.is_kept[:, None]
    loss_fields["fresh_mask"] = mask * samples.is_fresh[:, None]
    compared = _distributions(samples, params) if params.needed_distributions else None
    return replace(batch, fields=loss_fields, rollout_distributions=compared)


def packed(samples: TrainingSamples, params: RlParams) -> ResponseBatch:
    """Returns the samples as the policy that learns needs them: its statistics are over the tokens that the sampler
    could draw."""
    batch = pack(samples.sequences, params.temperature, log_threshold=params.log_threshold)
    sets = _distributions(samples, params) if params.uses_sampler_sets else None
    return replace(batch, sampler_sets=sets, likeliest=params.likeliest)


def _distributions(samples: TrainingSamples, params: RlParams) -> tuple[Tensor, ...]:
    # Only the empty response of a rank without samples has none.
    none = torch.zeros(0, 2 * params.likeliest)
    pairs = (rollout.sample for rollout in samples.rollouts)
    return tuple(one.distributions if isinstance(one, FullSample) else none for one in pairs)


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
