"""The critic's optimizer updates in a step of PPO: its loss, and what the step's row reports.

The critic is a second trainer beside the policy's, of the same kind, for a model of
`stages.engines.policies.value_model`. In each step it makes as many updates as the policy, on the same micro-batches,
with targets from its values before the step. Its loss is aggregated like the policy's; tokens that overlong filtering
leaves out teach it nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from stages.algorithms.policy_losses import aggregate
from stages.algorithms.value_estimates import clipped_value_loss, explained_variance
from stages.engines.policies.packing import ResponseBatch
from stages.engines.trainers.protocol import LossFunction, Trainer, Update
from stages.rl_round.params import RlParams
from stages.rl_round.samples import StepPlan, TrainingSamples
from stages.rl_round.update import loss_divisor, minibatches


def update_critic(
    samples: TrainingSamples, plan: StepPlan, params: RlParams, learning_rate_scale: float, critic: Trainer
) -> list[Update]:
    """Makes the critic's updates, like `update_policy`."""
    return [
        critic.update(micro_batches, value_loss(minibatch, params), learning_rate_scale)
        for minibatch, micro_batches in minibatches(samples, plan, params, critic)
    ]


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


def critic_metrics(updates: Sequence[Update], samples: TrainingSamples) -> dict[str, float]:
    """Returns means over a step's updates, and how good the values of its samples were before; empty without a critic.

    `critic/clip_fraction`: the share of tokens whose value has moved beyond the clip. `critic/gradient_norm`: before
    clipping. `critic/explained_variance`: the share of the targets' variance over tokens that the values explain (1 is
    perfect, 0 is as good as a constant). `critic/value_mean`: the mean value of a token.
    """
    if samples.values is None:
        return {}
    metrics, count, tokens = dict[str, float](), len(updates), samples.response_mask.sum()
    if updates:
        metrics["critic/loss"] = sum(update.loss for update in updates) / count
        metrics["critic/clip_fraction"] = sum(one.diagnostics["critic/clip_fraction"] for one in updates) / count
        metrics["critic/gradient_norm"] = sum(update.gradient_norm for update in updates) / count
    explained = explained_variance(samples.values, samples.value_targets, samples.response_mask)
    metrics["critic/explained_variance"] = explained
    metrics["critic/value_mean"] = float(samples.values.sum()) / max(1.0, float(tokens))
    return metrics
