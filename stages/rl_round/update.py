"""The policy's optimizer updates in a step: the loss of an update, its gradient, and what the step's row reports.

The loss selects the tokens of a micro-batch that give gradient, weighs them, and counts why others are left out; and
the same by staleness: the version of the weights at the start of the update minus the version that generated the
response. Weights and masks carry no gradient. Divisors cover the whole minibatch, so micro-batches and ranks add up,
and leaving out a response or token does not give the others more weight.

Sources: truncated importance sampling and Trust Region Masking as in `stages.algorithms`; vocabulary pruning
(arXiv 2512.23087).

Deviations: 1. the trainer's safe set is that of the current weights, so it changes within a step as they do. The two
sides of the ratio may be normalised over sets that differ by the effect of one update.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import assert_never

import torch
from torch import Tensor

from stages.algorithms.advantages import logit_gradient_proxy
from stages.algorithms.policy_losses import (
    LOG_RATIO_LIMIT,
    aggregate,
    cispo,
    clipped_surrogate,
    dppo,
    gspo,
    kl_cov,
    reinforce,
    sapo,
)
from stages.algorithms.rollout_corrections import (
    bad_response_mask,
    error_bounds,
    geometric_mask,
    ice_pop_weights,
    importance_weights,
    length_neutral_scores,
    sampled_divergences,
    trust_region_masks,
)
from stages.engines.policies.packing import ResponseBatch
from stages.engines.policies.statistics import PolicyStatistics
from stages.engines.samplers.protocol import Sample, StopReason
from stages.engines.trainers.protocol import Diagnostics, LossFunction, Trainer, Update, add_diagnostics
from stages.rl_round.params import RlParams
from stages.rl_round.samples import StepPlan, TrainingSamples, distributions, packed
from stages.rl_round.update_methods import (
    BadResponseMask,
    Cispo,
    ClipCov,
    ClippedSurrogate,
    Dppo,
    GeometricMask,
    Gspo,
    IcePop,
    ImportanceWeights,
    KlCov,
    LengthNeutralMask,
    PolicyLossParams,
    ReferenceKl,
    Reinforce,
    Sapo,
    TrustRegionMasking,
)

NO_RESPONSE = Sample([], [], StopReason.MAX_TOKENS, policy_version=0)
LOSS_FIELDS = (
    *("rollout_logprobs", "proximal_logprobs", "reference_logprobs", "teacher_logprobs", "advantages", "values"),
    *("value_targets", "is_uncertain", "is_covariant", "prompt_tokens", "weight_factor", "staleness"),
)
"""Tensors of `TrainingSamples` that losses read, where there are any."""
OVER_TOKENS = "sum/over_tokens/"
"""Begins the name of a sum that is to be divided by the count of tokens that gave gradient."""
Shares = dict[str, Tensor]
"""Diagnostics of a micro-batch that add up over the minibatch; names that end in `_max` combine by their maximum."""


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
    return [
        trainer.update(micro_batches, policy_loss(minibatch, params, entropy_coefficient), learning_rate_scale)
        for minibatch, micro_batches in minibatches(samples, plan, params, trainer)
    ]


def minibatches(
    samples: TrainingSamples, plan: StepPlan, params: RlParams, trainer: Trainer
) -> Iterator[tuple[TrainingSamples, list[ResponseBatch]]]:
    """Yields the samples of each planned update, and the micro-batches of this rank's share of them."""
    for planned in plan.updates:
        minibatch = samples.select(planned.samples)
        yield minibatch, make_micro_batches(minibatch, planned.micro_batches[trainer.rank], params)


def make_micro_batches(
    minibatch: TrainingSamples, places: Iterable[Sequence[int]], params: RlParams
) -> list[ResponseBatch]:
    """Returns the micro-batches of these places in a minibatch, with the loss's inputs as `fields`."""
    parts = [minibatch.select(part) if part else _without_response(minibatch) for part in places]
    return [_with_fields(part, params) for part in parts]


def _without_response(samples: TrainingSamples) -> TrainingSamples:
    """Returns the first prompt with an empty response: it goes through the same forward passes but never counts."""
    first = samples.select([0])
    emptied = {
        entry.name: torch.zeros_like(value)
        for entry in fields(first)
        if isinstance(value := getattr(first, entry.name), Tensor)
    }
    return replace(first, rollouts=[replace(first.rollouts[0], sample=NO_RESPONSE)], **emptied)


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
    compared = distributions(samples, params) if params.needed_distributions else None
    return replace(batch, fields=loss_fields, rollout_distributions=compared)


def policy_loss(minibatch: TrainingSamples, params: RlParams, entropy_coefficient: float = 0.0) -> LossFunction:
    """Returns the loss of one optimizer update on `minibatch`: a function that gives one micro-batch's share.

    Subtracts `entropy_coefficient` times the entropy at each token that gives gradient.
    """
    totals = Totals(
        responses=len(minibatch),
        tokens=int(minibatch.response_mask.sum()),
        fresh_tokens=int(minibatch.response_mask[minibatch.is_fresh].sum()),
    )
    divisor = loss_divisor(minibatch, params)

    def loss(statistics: PolicyStatistics, batch: ResponseBatch) -> tuple[Tensor, Mapping[str, Tensor | float]]:
        selection = select_tokens(statistics, batch, params, totals)
        mask, fields = selection.mask, batch.fields
        token_loss, metrics = surrogate(
            params.policy_loss,
            statistics.logprobs,
            fields["proximal_logprobs"],
            fields["advantages"],
            mask,
            fields.get("is_covariant"),
        )
        advantages = fields["advantages"]
        # The diagnostics get weighted advantages too: the gradient's size is that of the weighted loss.
        if selection.weights is not None:
            token_loss, advantages = token_loss * selection.weights, advantages * selection.weights
        diagnostics = {**selection.metrics, **_sums(metrics, mask)}
        if isinstance(params.reference_kl, ReferenceKl):
            three = statistics.logprobs, fields["reference_logprobs"], fields["proximal_logprobs"]
            pull, k3 = _reference_kl(params.reference_kl.kind, *three, mask)
            token_loss = token_loss + params.reference_kl.coefficient * pull
            diagnostics["reference_kl/k3"] = k3.sum() / totals.tokens
        if entropy_coefficient:
            # `where`, because a product with 0 would keep a NaN outside the mask.
            bonus = torch.where(mask.bool(), statistics.entropy, 0.0)
            token_loss = token_loss - entropy_coefficient * bonus
        if (teacher := fields.get("teacher_logprobs")) is not None:
            reverse_kl = (fields["proximal_logprobs"] - teacher) * batch.response_mask
            diagnostics["distillation/reverse_kl"] = reverse_kl.sum() / totals.tokens
        # Over all sampled tokens: those without gradient are also the policy's.
        entropy = statistics.entropy.detach() * batch.response_mask
        diagnostics["entropy/mean"] = entropy.sum() / totals.tokens
        diagnostics |= logprob_gap(
            statistics.logprobs.detach(), fields["rollout_logprobs"], fields["fresh_mask"], totals.fresh_tokens
        )
        energy = logit_gradient_proxy(statistics.logprobs, statistics.sum_squared_probs)
        # In closed form, with respect to the logits: exact gradients would cost one backward pass per response.
        prompt_tokens = fields.get("prompt_tokens")
        share = shares_by_token(batch.response_mask, params.aggregation, divisor, prompt_tokens)
        diagnostics["sum/gradient_power"] = (energy * (share * mask * advantages).square()).sum()
        # Tokens left out have loss 0 but still count in each response's length. A mask must not hide a NaN.
        poison = statistics.logprobs.detach().sum() * 0.0
        scalar = aggregate(token_loss, batch.response_mask, params.aggregation, divisor, prompt_tokens)
        return scalar + poison, diagnostics

    return loss


def loss_divisor(minibatch: TrainingSamples, params: RlParams) -> int:
    """Returns the divisor of `rl.aggregation`: tokens, responses or prompts of the whole minibatch."""
    # Not of the tokens left by the masks: dropping a response must not weigh the others more.
    responses = len(minibatch)
    return {
        "token_mean": int(minibatch.response_mask.sum()),
        "sequence_mean_token_mean": responses,
        "sequence_mean_token_sum": responses,
        "constant": responses * params.max_response_tokens,
        "prompt_mean": len(minibatch.group_ids.unique()),
    }[params.aggregation]


def surrogate(
    params: PolicyLossParams,
    policy_logprobs: Tensor,
    proximal_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    is_covariant: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the loss that `params` names for each token, 0 outside the mask, and its diagnostics.

    `is_covariant`: the tokens that Clip-Cov and KL-Cov hold back.
    """
    tensors = policy_logprobs, proximal_logprobs, advantages, mask
    match params:
        case ClippedSurrogate():
            return clipped_surrogate(*tensors, params.clip_low, params.clip_high, params.dual_clip)
        case ClipCov():
            loss, metrics = clipped_surrogate(*tensors, params.clip_low, params.clip_high)
            return torch.where(is_covariant, 0.0, loss), metrics | _covariant_share(is_covariant, mask)
        case KlCov():
            loss, metrics = kl_cov(*tensors, is_covariant, params.coefficient)
            return loss, metrics | _covariant_share(is_covariant, mask)
        case Gspo():
            return gspo(*tensors, params.clip_low, params.clip_high)
        case Cispo():
            return cispo(*tensors, params.clip_low, params.clip_high)
        case Dppo():
            return dppo(*tensors, params.limit_low, params.limit_high, params.ratio_cap, params.divergence)
        case Sapo():
            return sapo(*tensors, params.temperature_positive, params.temperature_negative)
        case Reinforce():
            return reinforce(*tensors)
        case other:
            assert_never(other)


def _covariant_share(is_covariant: Tensor, mask: Tensor) -> dict[str, Tensor]:
    return {"clip_fraction/covariance": (is_covariant * mask).sum() / mask.sum().clamp_min(1)}


def _sums(metrics: Mapping[str, Tensor], mask: Tensor) -> Shares:
    """Turns means over a micro-batch's tokens into sums, which add up over micro-batches; a maximum stays a maximum."""
    return {OVER_TOKENS + name: value * mask.sum() for name, value in metrics.items() if name != "ratio/max"} | {
        "ratio/token_max": metrics["ratio/max"]
    }


def _reference_kl(
    kind: str, policy_logprobs: Tensor, reference_logprobs: Tensor, proximal_logprobs: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the estimate of KL(policy || reference) at each token, with gradient, and k3, without gradient.

    Both are 0 outside the mask.
    """
    # `where`, because a product with 0 would keep a NaN outside the mask.
    log_ratio = torch.where(mask.bool(), policy_logprobs - reference_logprobs, 0.0)
    log_ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    # `expm1` stays precise when the two policies nearly agree, which is most of the time in training.
    k3 = torch.expm1(-log_ratio) + log_ratio
    match kind:
        case "in_reward":
            pull = torch.zeros_like(log_ratio)
        case "k1":
            pull = log_ratio
        case "k2":
            pull = 0.5 * log_ratio.square()
        case "k3":
            pull = k3
        case "weighted_k3":
            # DeepSeek-V3.2 (arXiv 2512.02556): the gradient also goes through the ratio, as an expectation over the
            # proximal policy's tokens needs.
            ratio = torch.where(mask.bool(), policy_logprobs - proximal_logprobs, 0.0)
            pull = ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp() * k3
    return pull, k3.detach()


def logprob_gap(policy_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor, tokens: int) -> dict[str, Tensor]:
    """Returns the gap between trainer's and sampler's log-probs: shares of the mean gap and of k3, and the maximum.

    Used for fresh rollouts in a step's first update, when both sides should have the same weights. The estimate of
    KL(rollout || policy) is k3 = r - 1 - log r with r = policy / rollout. It is never negative.
    """
    gap = (policy_logprobs - rollout_logprobs) * mask
    return {
        "logprob_gap/mean": gap.abs().sum() / max(1, tokens),
        "logprob_gap/k3": ((gap.exp() - 1 - gap) * mask).sum() / max(1, tokens),
        "logprob_gap/token_max": gap.abs().max(),
    }


@dataclass(frozen=True)
class Totals:
    """Counts over a whole minibatch, masked or not: the divisors of its loss and of its diagnostics."""

    responses: int
    tokens: int
    fresh_tokens: int


@dataclass(frozen=True)
class Selection:
    mask: Tensor
    """1 where a token gives gradient, [responses, tokens]."""
    weights: Tensor | None
    """Importance weights, [responses, tokens]; None when they are all 1."""
    metrics: Shares


def select_tokens(statistics: PolicyStatistics, batch: ResponseBatch, params: RlParams, totals: Totals) -> Selection:
    """Applies overlong filtering, vocabulary pruning and rollout correction, in this order, and counts each."""
    policy_logprobs = statistics.logprobs.detach()
    mask, response_mask = batch.fields["loss_mask"], batch.response_mask
    metrics = {"mask/overlong_fraction": _emptied(response_mask, mask) / totals.responses}
    if params.vocabulary_pruning:
        mask, counted = _inside_safe_set(statistics, mask, response_mask, params, totals)
        metrics |= counted
    if params.uses_sampler_sets:
        unlisted = statistics.outside & response_mask.bool()
        metrics["sampler_set/unlisted_fraction"] = unlisted.sum() / totals.tokens
    if (is_uncertain := batch.fields.get("is_uncertain")) is not None:
        metrics["mask/entropy_token_fraction"] = (mask * ~is_uncertain).sum() / totals.tokens
        mask = mask * is_uncertain
    # Acceptance by staleness is counted among the tokens that reach the trust region, without those filtered before.
    before = mask
    if isinstance(params.rollout_correction, TrustRegionMasking):
        mask, counted = _inside_trust_region(statistics, batch, mask, params.rollout_correction, totals)
        metrics |= counted
    elif isinstance(params.rollout_correction, GeometricMask | BadResponseMask | LengthNeutralMask):
        accepted = _accepted(policy_logprobs, batch, params.rollout_correction)
        mask = mask * accepted[:, None]
        metrics["mask/correction_fraction"] = _emptied(before, mask) / totals.responses
    weights, in_use, weighed = _weights(policy_logprobs, batch, mask, params)
    metrics |= weighed
    if (staleness := batch.fields.get("staleness")) is not None:
        after = mask if mask is not before else None
        metrics |= shares_by_staleness(staleness, in_use, before, after)
    metrics["mask/fraction_dropped"] = _emptied(response_mask, mask) / totals.responses
    metrics["mask/token_fraction_dropped"] = (response_mask.sum() - mask.sum()) / totals.tokens
    return Selection(mask, weights, metrics)


def _emptied(before: Tensor, after: Tensor) -> Tensor:
    """Returns the number of responses with a token in `before` and none in `after`."""
    return (before.any(-1) & ~after.any(-1)).sum().float()


def _inside_safe_set(
    statistics: PolicyStatistics, mask: Tensor, response_mask: Tensor, params: RlParams, totals: Totals
) -> tuple[Tensor, Shares]:
    """Also reports Z, the mass that the safe set keeps, of all sampled tokens.

    `pruning/bias_bound` bounds the effect of pruning on the expected reward, for rewards in [0, 1]. It is the mean over
    responses of the sum of 1 - Z, because 1 - Z is the total variation at a token.
    """
    is_outside, pruned = statistics.outside & response_mask.bool(), statistics.pruned_mass.double() * response_mask
    match params.vocabulary_pruning.outside:
        case "drop_token":
            kept = mask * ~is_outside
        case "drop_response":
            kept = mask * ~is_outside.any(-1, keepdim=True)
    return kept, {
        "pruning/outside_fraction": is_outside.sum() / totals.tokens,
        "pruning/kept_mass_mean": (response_mask - pruned).sum() / totals.tokens,
        "pruning/pruned_mass_max": pruned.max(),
        "pruning/bias_bound": pruned.sum() / totals.responses,
        "mask/outside_fraction": _emptied(mask, kept) / totals.responses,
        "mask/outside_token_fraction": (mask.sum() - kept.sum()) / totals.tokens,
    }


def _inside_trust_region(
    statistics: PolicyStatistics, batch: ResponseBatch, mask: Tensor, region: TrustRegionMasking, totals: Totals
) -> tuple[Tensor, Shares]:
    """Judges every response by all its tokens, including those that give no gradient for another reason."""
    response_mask = batch.response_mask
    if region.divergence == "sampled":
        for_max, for_mean = sampled_divergences(statistics.logprobs, batch.fields["rollout_logprobs"], response_mask)
    else:
        for_max = for_mean = statistics.divergence
    # A mask for each bound, so the curve can say which of them drops responses.
    thresholds = region.max_threshold, region.mean_threshold
    within_max, within_mean = trust_region_masks(for_max, for_mean, response_mask, *thresholds)
    accepted = within_max & within_mean
    kept = mask * accepted[:, None]
    for_max, for_mean = for_max * accepted[:, None], for_mean * accepted[:, None]
    is_response = response_mask.any(-1)
    counts = {
        "trust_region/acceptance_rate": accepted,
        "mask/trust_region_max_fraction": ~within_max,
        "mask/trust_region_mean_fraction": ~within_mean,
    }
    return kept, {
        **{name: (value & is_response).sum() / totals.responses for name, value in counts.items()},
        "trust_region/divergence_max": for_max.amax(),
        "sum/accepted_divergence": for_mean.sum() / totals.responses,
    }


def _accepted(
    policy_logprobs: Tensor, batch: ResponseBatch, correction: GeometricMask | BadResponseMask | LengthNeutralMask
) -> Tensor:
    """Returns the responses that a mask accepts, judged by all their tokens: bool[responses]."""
    rollout_logprobs, mask = batch.fields["rollout_logprobs"], batch.response_mask
    match correction:
        case GeometricMask():
            return geometric_mask(policy_logprobs, rollout_logprobs, mask, correction.low, correction.high)
        case BadResponseMask():
            advantages = batch.fields["advantages"]
            return bad_response_mask(policy_logprobs, rollout_logprobs, advantages, mask, correction.max_divergence)
        case LengthNeutralMask():
            tolerances = correction.token_kl, correction.token_tv
            return length_neutral_scores(policy_logprobs, rollout_logprobs, mask, *tolerances) <= correction.max_score


def _weights(
    policy_logprobs: Tensor, batch: ResponseBatch, mask: Tensor, params: RlParams
) -> tuple[Tensor | None, Tensor, Shares]:
    """Returns the weights in use, or None; the weights or the raw ratios; and sums for the effective sample size."""
    correction, rollout_logprobs = params.rollout_correction, batch.fields["rollout_logprobs"]
    if not isinstance(correction, ImportanceWeights | IcePop):
        # Nothing is weighted, but the raw ratios still show how far the sampler is from the policy that is trained.
        ratio = importance_weights(policy_logprobs, rollout_logprobs, mask, "token", math.inf)
        return None, ratio, _weight_sums(ratio, mask)
    # A clipped loss already contains the ratio to the proximal policy; REINFORCE has no ratio.
    is_whole = isinstance(params.policy_loss, Reinforce)
    corrected = policy_logprobs if is_whole else batch.fields["proximal_logprobs"]
    if isinstance(correction, IcePop):
        weights = ice_pop_weights(corrected, rollout_logprobs, batch.response_mask, correction.low, correction.high)
        left_out = (weights == 0) & mask.bool()
        return weights, weights, {**_weight_sums(weights * mask, mask), "sum/left_out_tokens": left_out.sum()}
    weights = importance_weights(corrected, rollout_logprobs, batch.response_mask, correction.level, correction.cap)
    capped = (weights >= correction.cap) & mask.bool()
    if (factor := batch.fields.get("weight_factor")) is not None:
        weights = weights * factor[:, None]
    return weights, weights, {**_weight_sums(weights * mask, mask), "sum/capped_tokens": capped.sum()}


def _weight_sums(weights: Tensor, mask: Tensor) -> Shares:
    exact = weights.double()
    # In double: raw ratios have no cap, and in float32 small squares would be lost next to one large square.
    return {"sum/weights": exact.sum(), "sum/squared_weights": exact.square().sum(), "sum/weighted_tokens": mask.sum()}


def shares_by_token(mask: Tensor, aggregation: str, divisor: float, prompt_tokens: Tensor | None = None) -> Tensor:
    """Returns the factor of each token's loss in the loss of the minibatch: [responses, tokens]."""
    if aggregation == "sequence_mean_token_mean":
        # Divided by each response's length, as in GRPO: tokens of short responses weigh more.
        return mask / mask.sum(-1, keepdim=True).clamp_min(1) / divisor
    if aggregation == "prompt_mean":
        return mask / prompt_tokens[:, None].clamp_min(1) / divisor
    return torch.full_like(mask, 1.0 / divisor) * mask


OLDEST = 4
"""Responses this stale and staler ones are counted together. Each place adds five sums to every micro-batch. The
histogram of the staleness of trained responses (`staleness/count_`) costs nothing and extends to 8."""
_PREFIX = "by_staleness/"
_SUMS = ("weights", "squared_weights", "tokens", "responses", "accepted")


def shares_by_staleness(staleness: Tensor, weights: Tensor, before: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """Returns a micro-batch's sums for each staleness, which add up over micro-batches, ranks and updates.

    staleness [responses]; importance weights and the masks before and after the trust region [responses, tokens], 0
    where there is no gradient. `mask` None: no trust region is in use.
    """
    after = before if mask is None else mask
    exact = weights.double() * after
    of_response = {"weights": exact.sum(-1), "squared_weights": exact.square().sum(-1), "tokens": after.sum(-1)}
    if mask is not None:
        of_response |= {"responses": before.any(-1), "accepted": after.any(-1)}
    # Every micro-batch has all places, including empty ones: ranks add up their diagnostics by name.
    places = torch.arange(OLDEST + 1, device=staleness.device)[:, None] == staleness.clamp(0, OLDEST)
    return {
        f"{_PREFIX}{name}_{place}": (values * chosen).sum()
        for name, values in of_response.items()
        for place, chosen in enumerate(places)
    }


def policy_metrics(updates: Sequence[Update], plan: StepPlan, params: RlParams) -> dict[str, float]:
    """Returns one number per diagnostic of a step: the mean over its updates; log-prob gaps only of the first update.

    Only the first update starts from the weights that sampled the step's rollouts. Empty without updates.
    """
    if not updates:
        return {}
    limit, total = params.max_response_tokens, dict[str, float]()
    shown = [_without_sums(one, len(of.samples), limit) for one, of in zip(updates, plan.updates, strict=True)]
    for diagnostics in shown:
        add_diagnostics(total, diagnostics)
    # A maximum over updates is not a sum of shares, so it is not divided.
    means = {name: value if name.endswith("_max") else value / len(updates) for name, value in total.items()}
    means |= {name: value for name, value in shown[0].items() if name.startswith("logprob_gap/")}
    # Shares of micro-batches combine by sum or maximum, so the least mass is the rest of the largest.
    if "pruning/pruned_mass_max" in means:
        means["pruning/kept_mass_min"] = 1 - means.pop("pruning/pruned_mass_max")
    # Rates last: numerator and denominator are averaged first, so updates count in proportion to their size.
    means = rates_by_staleness(means)
    means["loss/policy"] = sum(update.loss for update in updates) / len(updates)
    means["optim/gradient_norm"] = sum(update.gradient_norm for update in updates) / len(updates)
    return means


def _without_sums(update: Update, responses: int, max_response_tokens: int) -> Diagnostics:
    """Returns the update's diagnostics, with what follows from their `sum/` shares in place of these.

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
    metrics["importance/effective_sample_fraction"] = _effective_sample_fraction(sums)
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
    return metrics


def _effective_sample_fraction(sums: dict[str, float]) -> float:
    """Returns (sum w)^2 / (n sum w^2) over the n tokens that give gradient; 0 when there are none."""
    spread = sums["sum/weighted_tokens"] * sums["sum/squared_weights"]
    return sums["sum/weights"] ** 2 / spread if spread > 0 else 0.0


def rates_by_staleness(means: Mapping[str, float]) -> dict[str, float]:
    """Returns the step's diagnostics with rates instead of those sums; a staleness without responses has no rate."""
    kept = {name: value for name, value in means.items() if not name.startswith(_PREFIX)}
    for place in range(OLDEST + 1):
        sums = {name: means.get(f"{_PREFIX}{name}_{place}", 0.0) for name in _SUMS}
        spread, ending = sums["tokens"] * sums["squared_weights"], f"staleness_{place}"
        # 0 / 0 when the step has no response of this staleness: it then has no rate, and the curve has a gap.
        if spread:
            kept[f"importance/effective_sample_fraction_{ending}"] = sums["weights"] ** 2 / spread
        if sums["responses"]:
            kept[f"trust_region/acceptance_rate_{ending}"] = sums["accepted"] / sums["responses"]
    return kept
