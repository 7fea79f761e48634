"""Rollouts on their way through the update, and how a minibatch of them becomes a rank's micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stages.engines.policies.packing import ResponseBatch, TokenSequence, pack, split_by_tokens
from stages.engines.samplers.protocol import FullSample
from stages.engines.samplers.samples import Sample, StopReason
from stages.engines.trainers.protocol import Trainer
from stages.rl_round.params.rl import RlParams
from stages.rl_round.rollouts.rollouts import Group, Rollout

NO_RESPONSE = Sample([], [], StopReason.MAX_TOKENS)
NO_DISTRIBUTIONS = torch.zeros(0, 0)


@dataclass(frozen=True)
class TrainedRollout:
    """A decided rollout of the batch, with what the update has found out about it so far."""

    problem_id: str
    prompt: list[int]
    group: int
    """Number of its group in the batch."""
    rollout: Rollout
    is_masked: bool
    """True when it gives no gradient (overlong filtering); the divisors still count it."""
    is_fresh: bool
    """True when it was drawn in this step; false for surplus of earlier steps."""
    advantages: Sequence[float] = ()
    """Of each response token."""
    penalised_tokens: int = 0
    """Response tokens that the repetition penalty fell on."""
    proximal_logprobs: Sequence[float] | None = None
    """From the trainer; None takes the sampler's."""
    sum_squared_probs: Sequence[float] | None = None
    """Sum of the squared probabilities at each token under the proximal weights."""
    reference_logprobs: Sequence[float] | None = None

    @property
    def tokens(self) -> int:
        """Prompt and response tokens."""
        return len(self.prompt) + len(self.rollout.sample.token_ids)

    @property
    def response_tokens(self) -> int:
        """Response tokens."""
        return len(self.rollout.sample.token_ids)


def trainable_rollouts(
    groups: Sequence[Group], params: RlParams, policy_version: int
) -> list[TrainedRollout]:
    """The decided rollouts of `groups`; undecided ones are neither trained on nor part of a baseline.

    Those drawn with `policy_version` are fresh.
    """
    return [
        TrainedRollout(
            group.problem_id,
            group.prompt,
            number,
            rollout,
            is_masked=params.overlong_filtering and rollout.sample.is_truncated,
            is_fresh=group.policy_version == policy_version,
        )
        for number, group in enumerate(groups)
        for rollout in group.rollouts
        if rollout.is_decided
    ]


def shares(rollouts: Sequence[TrainedRollout], micro_batch_tokens: int, trainer: Trainer) -> list[list[int]]:
    """Indices of the rollouts in each of this rank's micro-batches; every rank has the same number of them."""
    groups = split_by_tokens([rollout.tokens for rollout in rollouts], micro_batch_tokens, trainer.world_size)
    return groups[trainer.rank :: trainer.world_size]


def make_micro_batches(
    rollouts: Sequence[TrainedRollout], params: RlParams, micro_batch_tokens: int, trainer: Trainer
) -> list[ResponseBatch]:
    """This rank's micro-batches, with what the loss needs as fields [responses, tokens]."""
    return [
        _with_fields([rollouts[index] for index in group] or [_without_response(rollouts[0])], params)
        for group in shares(rollouts, micro_batch_tokens, trainer)
    ]


def pack_rollouts(
    rollouts: Sequence[TrainedRollout], temperature: float, log_threshold: float | None
) -> ResponseBatch:
    """Prompts and responses in rows, for statistics at `temperature` over the safe vocabulary."""
    return pack(
        [TokenSequence(item.prompt, item.rollout.sample.token_ids) for item in rollouts],
        temperature,
        log_threshold=log_threshold,
    )


def rows(values: Iterable[Sequence[float]], response_mask: Tensor) -> Tensor:
    """One row for each response, its tokens' values first, 0 where the mask is 0: (responses, tokens)."""
    flat = [value for row in values for value in row]
    return torch.zeros(response_mask.shape).masked_scatter_(response_mask.bool(), torch.tensor(flat))


def _without_response(item: TrainedRollout) -> TrainedRollout:
    """Takes part in the same forward passes and counts nowhere."""
    return replace(
        item,
        rollout=replace(item.rollout, sample=NO_RESPONSE),
        advantages=(),
        proximal_logprobs=None,
        sum_squared_probs=None,
        reference_logprobs=None if item.reference_logprobs is None else (),
    )


def _with_fields(rollouts: Sequence[TrainedRollout], params: RlParams) -> ResponseBatch:
    batch = pack_rollouts(rollouts, params.temperature, params.log_threshold)
    mask = batch.response_mask
    kept = torch.tensor([float(not item.is_masked) for item in rollouts])[:, None]
    fresh = torch.tensor([float(item.is_fresh) for item in rollouts])[:, None]
    fields = {
        "rollout_logprobs": rows((item.rollout.sample.logprobs for item in rollouts), mask),
        "proximal_logprobs": rows(
            (item.proximal_logprobs or item.rollout.sample.logprobs for item in rollouts), mask
        ),
        "advantages": rows((item.advantages for item in rollouts), mask),
        "loss_mask": mask * kept,
        "fresh_mask": mask * fresh,
    }
    if rollouts[0].reference_logprobs is not None:
        fields["reference_logprobs"] = rows((item.reference_logprobs for item in rollouts), mask)
    distributions = None
    if params.keeps_distributions:
        distributions = tuple(_distributions(item.rollout.sample) for item in rollouts)
    return replace(batch, fields=fields, rollout_distributions=distributions)


def _distributions(sample: Sample) -> Tensor:
    return sample.distributions if isinstance(sample, FullSample) else NO_DISTRIBUTIONS
