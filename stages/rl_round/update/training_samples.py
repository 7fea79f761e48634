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

from stages.engines.policies.packing import ResponseBatch, TokenSequence, balanced_passes, groups_of_rank, pack
from stages.engines.samplers.protocol import FullSample, Sample, StopReason
from stages.engines.trainers.protocol import Trainer
from stages.foundations.seeds import permutation
from stages.rl_round.methods import OptimalTokenBaseline, SynchronousLoop
from stages.rl_round.params import RlParams
from stages.rl_round.rollouts.records import Batch, Group, GroupColumns, Rollout, to_columns, to_groups

NO_RESPONSE = Sample([], [], StopReason.MAX_TOKENS, policy_version=0)
NO_DISTRIBUTIONS = torch.zeros(0, 0)


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
        """Response tokens of each rollout."""
        return [len(rollout.sample.token_ids) for rollout in self.rollouts]

    @property
    def sequences(self) -> list[TokenSequence]:
        """Prompt and response of each rollout."""
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


def micro_batch_indices(samples: TrainingSamples, micro_batch_tokens: int, trainer: Trainer) -> list[list[int]]:
    """Indices of the samples in each of this rank's micro-batches; every rank has the same number of them."""
    # Prompt and response both cost a forward pass, so both count towards a micro-batch.
    lengths = [sequence.tokens for sequence in samples.sequences]
    return groups_of_rank(lengths, micro_batch_tokens, trainer)


def minibatch_orders(count: int, minibatches: int, *seed_parts: int | str) -> list[tuple[int, ...]]:
    """Which of `count` samples each optimizer update of a step trains on, in an order that the seed decides."""
    order, size = permutation(count, *seed_parts), -(-count // minibatches)
    return [order[first : first + size] for first in range(0, count, size)] if count else []


def groups_by_rank(
    lengths: Sequence[int], minibatches: int, micro_batch_tokens: int, trainer: Trainer, *seed_parts: int | str
) -> list[list[list[int]]]:
    """The samples of these lengths in the micro-batches of a whole step: by rank, then in the order of training."""
    found: list[list[list[int]]] = [[] for _ in range(trainer.world_size)]
    for minibatch in minibatch_orders(len(lengths), minibatches, *seed_parts):
        own = [lengths[index] for index in minibatch]
        passes = balanced_passes(own, micro_batch_tokens, trainer.world_size, trainer.model.pair_cost)
        for rank, of_rank in enumerate(found):
            of_rank += [[minibatch[place] for place in groups[rank]] for groups in passes]
    return found


def make_micro_batches(
    samples: TrainingSamples, params: RlParams, micro_batch_tokens: int, trainer: Trainer
) -> list[ResponseBatch]:
    """This rank's micro-batches, with what the loss needs as fields [responses, tokens]."""
    return [
        _with_fields(samples.select(indices) if indices else samples.without_response(), params)
        for indices in micro_batch_indices(samples, micro_batch_tokens, trainer)
    ]


def rows(values: Iterable[Sequence[float]], response_mask: Tensor) -> Tensor:
    """One row for each response, its tokens' values first, 0 where the mask is 0: (responses, tokens)."""
    flat = [numpy.asarray(row, dtype=numpy.float32) for row in values]
    whole = torch.from_numpy(numpy.concatenate(flat or [numpy.zeros(0, numpy.float32)]))
    return torch.zeros(response_mask.shape).masked_scatter_(response_mask.bool(), whole)


def _with_fields(samples: TrainingSamples, params: RlParams) -> ResponseBatch:
    batch = pack(samples.sequences, params.temperature, log_threshold=params.log_threshold)
    mask = batch.response_mask
    width = mask.shape[1]
    tokens = {
        "rollout_logprobs": samples.rollout_logprobs,
        "proximal_logprobs": samples.proximal_logprobs,
        "advantages": samples.advantages,
        "reference_logprobs": samples.reference_logprobs,
    }
    loss_fields = {name: value[:, :width] for name, value in tokens.items() if value is not None}
    loss_fields["loss_mask"] = mask * samples.is_kept[:, None]
    loss_fields["fresh_mask"] = mask * samples.is_fresh[:, None]
    if samples.staleness is not None:
        loss_fields["staleness"] = samples.staleness
    distributions = None
    if params.keeps_distributions:
        distributions = tuple(_distributions(rollout.sample) for rollout in samples.rollouts)
    return replace(batch, fields=loss_fields, rollout_distributions=distributions)


def _distributions(sample: Sample) -> Tensor:
    return sample.distributions if isinstance(sample, FullSample) else NO_DISTRIBUTIONS


def own_groups(
    batch: Batch | None, params: RlParams, micro_batch_tokens: int, trainer: Trainer, *seed_parts: int | str
) -> tuple[list[Group], int | None]:
    """The batch's groups as this rank needs them, and the batch's newest version; rank 0 brings the batch; collective.

    Rank 0 has all of every group. `seed_parts` are those of `update_policy`.
    """
    if trainer.world_size == 1:
        return batch.groups, batch.newest_version
    told: list[tuple[GroupColumns, int | None]] | None = None
    if trainer.rank == 0:
        told = [
            (to_columns(batch.groups, is_held, with_texts=False), batch.newest_version)
            for is_held in _held_by_rank(batch.groups, params, micro_batch_tokens, trainer, *seed_parts)
        ]
    columns, newest_version = trainer.scatter(told)
    return (to_groups(columns) if batch is None else batch.groups), newest_version


def _held_by_rank(
    groups: Sequence[Group], params: RlParams, micro_batch_tokens: int, trainer: Trainer, *seed_parts: int | str
) -> list[list[bool]]:
    """For each rank, which rollouts it needs."""
    rollouts = [(group, rollout) for group in groups for rollout in group.rollouts]
    if isinstance(params.advantage, OptimalTokenBaseline):  # compares the tokens of a group with each other
        return [[True] * len(rollouts)] * trainer.world_size
    decided = [place for place, (_, rollout) in enumerate(rollouts) if rollout.is_decided]
    lengths = [len(rollouts[place][0].prompt) + len(rollouts[place][1].sample.token_ids) for place in decided]
    held = [[False] * len(rollouts) for _ in range(trainer.world_size)]
    trained = groups_by_rank(lengths, params.minibatches, micro_batch_tokens, trainer, *seed_parts)
    for rank, of_rank in enumerate(trained):
        for index in (index for group in of_rank for index in group):
            held[rank][decided[index]] = True
    return held
