"""What one step trains on: rollouts beside padded tensors of their tokens, and how ranks share them out.

Every tensor [responses, tokens] is padded with 0 on the right; `response_mask` says where a token stands. Log-probs
stay so from the pass that computes them to the loss.

Baselines and divisors are over all responses, so every rank needs their rewards and lengths. Tokens and log-probs are
nearly all of a batch and go only to the rank that trains on them, which follows from the lengths.
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
from stages.foundations.seeds import permutation
from stages.rl_round.methods import OptimalTokenBaseline, SynchronousLoop
from stages.rl_round.params import RlParams
from stages.rl_round.records import Batch, Group, Rollout, pack_groups, unpack_groups

NO_RESPONSE = Sample([], [], StopReason.MAX_TOKENS, policy_version=0)


@dataclass(frozen=True)
class TrainingSamples:
    """The decided rollouts of a batch, with what is known about their tokens so far."""

    prompts: list[list[int]]
    rollouts: list[Rollout]
    group_ids: Tensor
    """Number of each one's group in the batch, [responses]."""
    is_kept: Tensor
    """False for those that give no gradient (overlong filtering); the divisors still count them, [responses]."""
    is_fresh: Tensor
    """True for those that the newest weights have sampled, false for surplus of earlier steps, [responses]."""
    response_mask: Tensor
    """1 where a response token stands, float, [responses, tokens]."""
    rollout_logprobs: Tensor
    proximal_logprobs: Tensor
    """The sampler's own until `with_proximal_statistics` puts the trainer's in their place."""
    advantages: Tensor
    """0 until `with_advantages`."""
    penalised: Tensor
    """True on tokens that the repetition penalty fell on."""
    sum_squared_probs: Tensor | None = None
    """Sum of the squared probabilities at each token under the proximal weights, where an estimator needs it."""
    reference_logprobs: Tensor | None = None
    staleness: Tensor | None = None
    """Versions that each one's weights are behind those that train, [responses]; None in the synchronous loop."""

    def __len__(self) -> int:
        return len(self.rollouts)

    @property
    def rewards(self) -> Tensor:
        """Of each rollout, [responses]."""
        return torch.tensor([rollout.reward for rollout in self.rollouts])

    @property
    def response_tokens(self) -> list[int]:
        return [len(rollout.sample.token_ids) for rollout in self.rollouts]

    @property
    def sequences(self) -> list[TokenSequence]:
        pairs = zip(self.prompts, self.rollouts, strict=True)
        return [TokenSequence(prompt, rollout.sample.token_ids) for prompt, rollout in pairs]

    def select(self, indices: Sequence[int]) -> TrainingSamples:
        """Those at `indices`, in that order."""
        place = torch.tensor(indices, dtype=torch.long)
        chosen = {
            entry.name: [value[index] for index in indices] if isinstance(value, list) else value[place]
            for entry in fields(self)
            if (value := getattr(self, entry.name)) is not None
        }
        return replace(self, **chosen)

    def without_response(self) -> TrainingSamples:
        """The first prompt with an empty response: it takes part in the same forward passes and counts nowhere."""
        first = self.select([0])
        emptied = {
            entry.name: torch.zeros_like(value)
            for entry in fields(self)
            if isinstance(value := getattr(first, entry.name), Tensor)
        }
        return replace(first, rollouts=[replace(first.rollouts[0], sample=NO_RESPONSE)], **emptied)


def training_samples(groups: Sequence[Group], params: RlParams, newest_version: int | None) -> TrainingSamples:
    """The decided rollouts of `groups`; undecided ones are neither trained on nor part of a baseline.

    Those that `newest_version` has sampled are fresh; with None none is. Outside of the synchronous loop it is the
    version that trains, and staleness is counted from it.
    """
    chosen = [
        (group.prompt, rollout, number)
        for number, group in enumerate(groups)
        for rollout in group.rollouts
        if rollout.is_decided
    ]
    rollouts = [rollout for _, rollout, _ in chosen]
    # `group_ids` number the groups of the batch. One whose rollouts are all undecided leaves a gap, which no estimator
    # minds.
    lengths = torch.tensor([len(rollout.sample.token_ids) for rollout in rollouts], dtype=torch.long)
    mask = (torch.arange(int(lengths.max()) if chosen else 0)[None] < lengths[:, None]).float()
    logprobs = rows((rollout.sample.logprobs for rollout in rollouts), mask)
    truncated = torch.tensor([rollout.sample.is_truncated for rollout in rollouts], dtype=torch.bool)
    staleness = None
    if newest_version is not None and not isinstance(params.loop, SynchronousLoop):
        staleness = torch.tensor([newest_version - rollout.sample.policy_version for rollout in rollouts])
    return TrainingSamples(
        prompts=[prompt for prompt, _, _ in chosen],
        rollouts=rollouts,
        group_ids=torch.tensor([number for _, _, number in chosen], dtype=torch.long),
        is_kept=~truncated if params.overlong_filtering else torch.ones_like(truncated),
        # Equal, not merely recent: the gap between sampler and trainer is measured on what one version has drawn.
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
    """Of the step's training samples, in an order that the seed decides."""
    micro_batches: list[list[list[int]]]
    """Of each rank, in the order of training: places in `samples`. Every rank has as many, some of them empty."""


@dataclass(frozen=True)
class StepPlan:
    """What a step makes of its training samples, in which order and on which rank; the same on every rank."""

    newest_version: int | None
    """Of the batch."""
    updates: list[PlannedUpdate]
    forward_passes: list[list[list[int]]]
    """Of each rank: the samples of each forward pass before the updates, which trainer and reference are asked for."""


def plan_step(
    lengths: Sequence[int],
    newest_version: int | None,
    minibatches: int,
    micro_batch_tokens: int,
    trainer: Trainer,
    *seed_path: int | str,
) -> StepPlan:
    """The plan for training samples of these lengths, prompt included: both parts cost a forward pass."""
    # Rounded up: at most `minibatches` updates, of which the last may be smaller.
    order, size = permutation(len(lengths), *seed_path), -(-len(lengths) // minibatches)
    updates = []
    # Without a sample the size is 0, no update is planned, and `range` still wants a step.
    for first in range(0, len(order), max(1, size)):
        chosen = order[first : first + size]
        of_ranks = groups_by_rank([lengths[index] for index in chosen], micro_batch_tokens, trainer)
        updates.append(PlannedUpdate(chosen, of_ranks))
    # Of several ranks each looks at what it will train on: it has no other tokens. One rank has all, and packs them
    # tighter over the whole batch than within each minibatch.
    passes = [
        [[update.samples[place] for place in places] for update in updates for places in update.micro_batches[rank]]
        for rank in range(trainer.world_size)
    ]
    if trainer.world_size == 1:
        passes = groups_by_rank(lengths, micro_batch_tokens, trainer)
    return StepPlan(newest_version, updates, passes)


def make_micro_batches(
    minibatch: TrainingSamples, places: Iterable[Sequence[int]], params: RlParams
) -> list[ResponseBatch]:
    """The micro-batches of these places in a minibatch, with what the loss needs as fields [responses, tokens]."""
    parts = [minibatch.select(part) if part else minibatch.without_response() for part in places]
    return [_with_fields(part, params) for part in parts]


def rows(values: Iterable[Sequence[float]], response_mask: Tensor) -> Tensor:
    """One row for each response, its tokens' values first, 0 where the mask is 0: (responses, tokens)."""
    flat = [numpy.asarray(row, dtype=numpy.float32) for row in values]
    # `masked_scatter_` fills the places of the mask row by row, which is the order of the flat values.
    whole = torch.from_numpy(numpy.concatenate(flat or [numpy.zeros(0, numpy.float32)]))
    return torch.zeros(response_mask.shape).masked_scatter_(response_mask.bool(), whole)


def _with_fields(samples: TrainingSamples, params: RlParams) -> ResponseBatch:
    batch = pack(samples.sequences, params.temperature, log_threshold=params.log_threshold)
    # The step's tensors are as wide as its longest response, a micro-batch only as its own longest.
    mask = batch.response_mask
    width = mask.shape[1]
    tokens = {
        "rollout_logprobs": samples.rollout_logprobs,
        "proximal_logprobs": samples.proximal_logprobs,
        "advantages": samples.advantages,
        "reference_logprobs": samples.reference_logprobs,
    }
    loss_fields = {name: value[:, :width] for name, value in tokens.items() if value is not None}
    # Two masks: what gives gradient, and what the gap to the sampler is measured on, truncated responses included.
    loss_fields["loss_mask"] = mask * samples.is_kept[:, None]
    loss_fields["fresh_mask"] = mask * samples.is_fresh[:, None]
    if samples.staleness is not None:
        loss_fields["staleness"] = samples.staleness
    distributions = None
    if params.keeps_distributions:
        # Only the empty response of a rank without samples has none.
        distributions = tuple(
            rollout.sample.distributions if isinstance(rollout.sample, FullSample) else torch.zeros(0, 0)
            for rollout in samples.rollouts
        )
    return replace(batch, fields=loss_fields, rollout_distributions=distributions)


def scatter_batch(
    batch: Batch | None, params: RlParams, micro_batch_tokens: int, trainer: Trainer, *seed_path: int | str
) -> tuple[list[Group], StepPlan]:
    """The batch's groups as this rank needs them, and the step's plan; rank 0 brings the batch; collective.

    Rank 0 has all of every group.
    """
    # Ranks that draw no batch get theirs here. The lengths of all rollouts come along, because divisors need them.
    if batch is None:
        packed, plan = trainer.scatter(None)
        return unpack_groups(packed), plan
    rollouts = [(group, rollout) for group in batch.groups for rollout in group.rollouts]
    # Numbers in the plan count decided rollouts only, as `training_samples` will; `decided` leads back to all of them.
    decided = [place for place, (_, rollout) in enumerate(rollouts) if rollout.is_decided]
    lengths = [len(rollouts[place][0].prompt) + len(rollouts[place][1].sample.token_ids) for place in decided]
    plan = plan_step(lengths, batch.newest_version, params.minibatches, micro_batch_tokens, trainer, *seed_path)
    if trainer.world_size > 1:
        held = [{decided[index] for group in passes for index in group} for passes in plan.forward_passes]
        # This baseline compares the tokens of a group with each other, and a group may lie on several ranks. The ranks
        # share one set, which nobody changes.
        if isinstance(params.advantage, OptimalTokenBaseline):
            held = [set(range(len(rollouts)))] * trainer.world_size
        of_ranks = [[place in of_rank for place in range(len(rollouts))] for of_rank in held]
        # Texts stay with rank 0, which writes the table: nobody trains on them.
        trainer.scatter([(pack_groups(batch.groups, flags, with_texts=False), plan) for flags in of_ranks])
    return batch.groups, plan
