"""The critic of `rl.advantage: {kind: gae}`: its loss, its updates, and its part of a checkpoint.

It is a second trainer beside the policy's, of the same kind, for a model of `stages.engines.policies.value_model`. In
each step it makes as many updates as the policy, on the same micro-batches, with targets from its values before the
step. Its loss is aggregated like the policy's; tokens that overlong filtering leaves out teach it nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from stages.algorithms.policy_losses import aggregate
from stages.algorithms.value_estimates import clipped_value_loss, explained_variance
from stages.engines.policies.packing import ResponseBatch
from stages.engines.trainers.protocol import LossFunction, Trainer, Update
from stages.rl_round.losses import loss_divisor
from stages.rl_round.params import RlParams
from stages.rl_round.samples import TrainingSamples

FOLDER = "critic"
"""In a checkpoint's folder."""


def value_loss(minibatch: TrainingSamples, params: RlParams) -> LossFunction:
    """Returns the critic's loss of one optimizer update on `minibatch`: a function that gives a micro-batch's share."""
    tokens, divisor = int(minibatch.response_mask.sum()), loss_divisor(minibatch, params)
    value_clip = params.advantage.critic.value_clip

    def loss(values: Tensor, batch: ResponseBatch) -> tuple[Tensor, Mapping[str, Tensor]]:
        mask, before, targets = (batch.fields[name] for name in ("loss_mask", "values", "value_targets"))
        token_loss, is_clipped = clipped_value_loss(values, before, targets, mask, value_clip)
        # A mask must not hide a NaN.
        poison = values.detach().sum() * 0.0
        prompt_tokens = batch.fields.get("prompt_tokens")
        scalar = aggregate(token_loss, batch.response_mask, params.aggregation, divisor, prompt_tokens)
        return scalar + poison, {"critic/clip_fraction": is_clipped.sum() / tokens}

    return loss


def summarise_critic(updates: Sequence[Update]) -> dict[str, float]:
    """Returns means over a step's updates; empty without updates.

    `critic/loss`: the loss of the values. `critic/clip_fraction`: the share of tokens whose value has moved beyond the
    clip. `critic/gradient_norm`: the norm of the critic's gradient before clipping.
    """
    if not updates:
        return {}
    count = len(updates)
    return {
        "critic/loss": sum(update.loss for update in updates) / count,
        "critic/clip_fraction": sum(update.diagnostics["critic/clip_fraction"] for update in updates) / count,
        "critic/gradient_norm": sum(update.gradient_norm for update in updates) / count,
    }


def critic_metrics(trained: TrainingSamples) -> dict[str, float]:
    """Returns how good a step's values were before its updates; empty without a critic.

    `critic/explained_variance`: the share of the targets' variance over tokens that the values explain (1 is perfect, 0
    is as good as a constant). `critic/value_mean`: the mean value of a token.
    """
    if trained.values is None:
        return {}
    explained = explained_variance(trained.values, trained.value_targets, trained.response_mask)
    tokens = max(1.0, float(trained.response_mask.sum()))
    return {"critic/explained_variance": explained, "critic/value_mean": float(trained.values.sum()) / tokens}


def save_critic(critic: Trainer | None, folder: Path) -> dict[str, str]:
    """Writes the critic into a checkpoint's folder, if there is one; see `Trainer.save_checkpoint`."""
    if critic is None:
        return {}
    # Every rank makes it, because the first to come writes into it.
    (folder / FOLDER).mkdir(exist_ok=True)
    return {f"{FOLDER}/{name}": digest for name, digest in critic.save_checkpoint(folder / FOLDER).items()}


def load_critic(critic: Trainer | None, folder: Path) -> None:
    """Restores what `save_critic` wrote."""
    if critic is not None:
        critic.load_checkpoint(folder / FOLDER)
