"""From groups to optimizer updates: advantages, proximal log-probs, minibatches, the policy loss.

Three log-probabilities are never mixed: `rollout_logprobs` are the sampler's, `proximal_logprobs` those of the weights
at the start of the update, `policy_logprobs` the current ones, with gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stages.algorithms.group_advantages import group_normalized, leave_one_out
from stages.algorithms.policy_losses import aggregate, clipped_surrogate
from stages.algorithms.token_statistics import TokenStatistics
from stages.engines.packing import ResponseBatch, TokenSequence, pack, split_by_tokens
from stages.engines.training import LossFunction, Trainer, Update, add_diagnostics
from stages.foundations.seeds import permutation
from stages.rl_round.params import RlParams
from stages.rl_round.rollouts import Group, Rollout
from stages.rl_round.update_params import GroupNormalized, LeaveOneOut


@dataclass(frozen=True)
class TrainedRollout:
    """A rollout on its way through the update."""

    prompt: list[int]
    rollout: Rollout
    advantage: float
    is_masked: bool
    """True when it gives no gradient (overlong filtering); the divisors still count it."""
    is_fresh: bool
    """True when it was drawn with the weights that the step starts from; false for surplus of earlier steps."""
    proximal_logprobs: list[float] | None = None

    @property
    def tokens(self) -> int:
        """Prompt and response tokens."""
        return len(self.prompt) + len(self.rollout.sample.token_ids)

    @property
    def response_tokens(self) -> int:
        """Response tokens."""
        return len(self.rollout.sample.token_ids)


def with_advantages(groups: Sequence[Group], params: RlParams, policy_version: int) -> list[TrainedRollout]:
    """The decided rollouts of `groups` with their advantages; undecided ones are neither rewarded nor a baseline."""
    decided = [(number, group, rollout) for number, group in enumerate(groups) for rollout in group.rollouts
               if rollout.is_decided]  # fmt: skip
    if not decided:
        return []
    rewards = torch.tensor([rollout.reward for _, _, rollout in decided])
    group_ids = torch.tensor([number for number, _, _ in decided])
    match params.advantage:
        case GroupNormalized(divide_by_std=divide_by_std):
            advantages = group_normalized(rewards, group_ids, divide_by_std=divide_by_std)
        case LeaveOneOut():
            advantages = leave_one_out(rewards, group_ids)
    return [
        TrainedRollout(
            group.prompt,
            rollout,
            advantage,
            is_masked=params.is_overlong_filtered and rollout.sample.is_truncated,
            is_fresh=group.policy_version == policy_version,
        )
        for (_, group, rollout), advantage in zip(decided, advantages.tolist(), strict=True)
    ]


def update_policy(
    rollouts: Sequence[TrainedRollout],
    params: RlParams,
    micro_batch_tokens: int,
    learning_rate_scale: float,
    trainer: Trainer,
    *seed_parts: int | str,
) -> list[Update]:
    """One pass over `rollouts` in `params.minibatches` optimizer updates, in an order that the seed decides."""
    if params.proximal == "recompute":
        rollouts = with_proximal_logprobs(rollouts, params.temperature, micro_batch_tokens, trainer)
    order = permutation(len(rollouts), *seed_parts)
    size = -(-len(rollouts) // params.minibatches)
    updates = []
    for first in range(0, len(rollouts), size):
        minibatch = [rollouts[index] for index in order[first : first + size]]
        batches = make_micro_batches(minibatch, params.temperature, micro_batch_tokens, trainer)
        updates.append(trainer.update(batches, policy_loss(minibatch, params), learning_rate_scale))
    return updates


def make_micro_batches(
    rollouts: Sequence[TrainedRollout], temperature: float, micro_batch_tokens: int, trainer: Trainer
) -> list[ResponseBatch]:
    """This rank's micro-batches, with what the loss needs as fields [responses, tokens]."""
    return [
        _pack([rollouts[index] for index in group] or [replace(rollouts[0], is_masked=True)], temperature)
        for group in _shares(rollouts, micro_batch_tokens, trainer)
    ]


def _shares(rollouts: Sequence[TrainedRollout], micro_batch_tokens: int, trainer: Trainer) -> list[list[int]]:
    groups = split_by_tokens([rollout.tokens for rollout in rollouts], micro_batch_tokens, trainer.world_size)
    return groups[trainer.rank :: trainer.world_size]


def _pack(rollouts: Sequence[TrainedRollout], temperature: float) -> ResponseBatch:
    batch = pack(
        [TokenSequence(item.prompt, item.rollout.sample.token_ids) for item in rollouts], temperature
    )
    shape = batch.response_mask.shape
    fields = {
        "rollout_logprobs": _rows([item.rollout.sample.logprobs for item in rollouts], shape),
        "proximal_logprobs": _rows(
            [item.proximal_logprobs or item.rollout.sample.logprobs for item in rollouts], shape
        ),
        "advantages": torch.tensor([item.advantage for item in rollouts])[:, None].expand(shape).contiguous(),
    }
    kept = torch.tensor([float(not item.is_masked) for item in rollouts])[:, None]
    fresh = torch.tensor([float(item.is_fresh) for item in rollouts])[:, None]
    masks = {"loss_mask": batch.response_mask * kept, "fresh_mask": batch.response_mask * fresh}
    return replace(batch, fields={**fields, **masks})


def _rows(rows: Sequence[Sequence[float]], shape: torch.Size) -> Tensor:
    filled = torch.zeros(shape)
    for number, row in enumerate(rows):
        filled[number, : len(row)] = torch.tensor(row)
    return filled


def with_proximal_logprobs(
    rollouts: Sequence[TrainedRollout], temperature: float, micro_batch_tokens: int, trainer: Trainer
) -> list[TrainedRollout]:
    """The rollouts with log-probs of the trainer's present weights, from every rank."""
    found: dict[int, list[float]] = {}
    for group in _shares(rollouts, micro_batch_tokens, trainer):
        batch = _pack([rollouts[index] for index in group] or [rollouts[0]], temperature)
        logprobs = trainer.statistics(batch).logprobs.cpu()
        for row, index in enumerate(group):
            found[index] = logprobs[row, : rollouts[index].response_tokens].tolist()
    together = trainer.gather(found)
    merged = {index: row for part in together for index, row in part.items()}
    return [replace(item, proximal_logprobs=merged[index]) for index, item in enumerate(rollouts)]


def policy_loss(minibatch: Sequence[TrainedRollout], params: RlParams) -> LossFunction:
    """The loss of one optimizer update, with divisors taken over the whole minibatch.

    A masked rollout stays in the divisor, so leaving it out does not up-weight the rest.
    """
    tokens = sum(item.response_tokens for item in minibatch)
    fresh_tokens = sum(item.response_tokens for item in minibatch if item.is_fresh)
    divisor = {
        "token_mean": tokens,
        "sequence_mean_token_mean": len(minibatch),
        "sequence_mean_token_sum": len(minibatch),
        "constant": len(minibatch) * params.max_response_tokens,
    }[params.aggregation]
    clip = params.policy_loss

    def loss(
        statistics: TokenStatistics, batch: ResponseBatch
    ) -> tuple[Tensor, Mapping[str, Tensor | float]]:
        mask = batch.fields["loss_mask"]
        token_loss, shown = clipped_surrogate(
            statistics.logprobs, batch.fields["proximal_logprobs"], batch.fields["advantages"], mask,
            clip.clip_low, clip.clip_high, clip.dual_clip,
        )  # fmt: skip
        share = mask.sum() / tokens
        diagnostics = {name: value * share for name, value in shown.items()}
        diagnostics["entropy/mean"] = (statistics.entropy.detach() * mask).sum() / tokens
        diagnostics |= logprob_gap(
            statistics.logprobs.detach(),
            batch.fields["rollout_logprobs"],
            batch.fields["fresh_mask"],
            fresh_tokens,
        )
        return aggregate(token_loss, mask, params.aggregation, divisor=divisor), diagnostics

    return loss


def logprob_gap(
    policy_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor, tokens: int
) -> dict[str, Tensor]:
    """How far the trainer's log-probs are from the sampler's: shares of the mean gap and of k3, and the maximum.

    Taken over fresh rollouts in a step's first update, where both sides should hold the same weights.
    k3 = r - 1 - log r with r = policy / rollout, an estimate of KL(rollout || policy) that is never negative.
    """
    gap = (policy_logprobs - rollout_logprobs) * mask
    return {
        "logprob_gap/mean": gap.abs().sum() / max(1, tokens),
        "logprob_gap/k3": ((gap.exp() - 1 - gap) * mask).sum() / max(1, tokens),
        "logprob_gap/token_max": gap.abs().max(),
    }


def summarise(updates: Sequence[Update]) -> dict[str, float]:
    """One number per diagnostic of a step: the mean over its updates; log-prob gaps are the first update's.

    Only the first update starts from the weights that the step's own rollouts were drawn with.
    """
    total: dict[str, float] = {}
    for update in updates:
        add_diagnostics(total, update.diagnostics)
    means = {name: value if name.endswith("_max") else value / len(updates) for name, value in total.items()}
    means |= {
        name: value for name, value in updates[0].diagnostics.items() if name.startswith("logprob_gap/")
    }
    means["loss/policy"] = sum(update.loss for update in updates) / len(updates)
    means["optim/gradient_norm"] = sum(update.gradient_norm for update in updates) / len(updates)
    return means
