"""Parameters of the update: advantage, policy loss, rollout correction, KL to the reference."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.foundations.params import StrictParams


class GroupNormalized(StrictParams):
    """Reward minus the group's mean, over the group's standard deviation when `divide_by_std` (GRPO, DAPO)."""

    kind: Literal["group_normalized"]
    divide_by_std: bool
    """False is Dr. GRPO."""


class LeaveOneOut(StrictParams):
    """Reward minus the mean of the others in the group (RLOO)."""

    kind: Literal["leave_one_out"]


class LengthWeighted(StrictParams):
    """Reward minus the group's mean weighted by response length (OPO)."""

    kind: Literal["length_weighted"]


class OptimalTokenBaseline(StrictParams):
    """Return minus a baseline for each token, weighted by accumulated gradient energy (OTB)."""

    kind: Literal["optimal_token_baseline"]
    lone_tail: Literal["zero", "return"]
    """The advantage where one response of the group alone is still going: 0, or its full return (verl's default)."""
    is_importance_weighted: bool
    """True weighs the energy by the squared truncated weights of `rollout_correction.kind: importance_weights`."""


class PlainReward(StrictParams):
    """The reward itself, no baseline: with rewards 1 and 0 and REINFORCE this is rejection sampling."""

    kind: Literal["reward"]


AdvantageParams = Annotated[
    GroupNormalized | LeaveOneOut | LengthWeighted | OptimalTokenBaseline | PlainReward,
    Field(discriminator="kind"),
]


class _TwoClips(StrictParams):
    """Clips of the probability ratio, of which the upper one may be wider (DAPO's clip-higher)."""

    clip_low: float = Field(gt=0, lt=1)
    """Lower clip of the probability ratio, as an offset from 1 (DAPO: 0.2)."""
    clip_high: float = Field(gt=0, lt=10)
    """Upper clip of the probability ratio, as an offset from 1 (DAPO: 0.28)."""

    @model_validator(mode="after")
    def _upper_is_wider(self) -> _TwoClips:
        if self.clip_low > self.clip_high:
            raise ValueError(
                f"clip_low {self.clip_low} must be <= clip_high {self.clip_high}: DAPO only widens the upper side"
            )
        return self


class ClippedSurrogate(_TwoClips):
    """PPO's clipped surrogate; different clips make it DAPO's clip-higher."""

    kind: Literal["clipped_surrogate"]
    dual_clip: float | None = Field(gt=1)
    """Bound on the ratio where the advantage is negative (the public DAPO recipe: 10); null for none."""


class Gspo(_TwoClips):
    """GSPO: one ratio a response, the geometric mean of its tokens'; its clips are three orders smaller than PPO's."""

    kind: Literal["gspo"]


class Cispo(StrictParams):
    """CISPO: the clipped ratio weighs log-probabilities and drops no token."""

    kind: Literal["cispo"]
    clip_low: float = Field(gt=0)
    """Lower clip of the ratio, as an offset from 1; 1 or more leaves that side open, as the paper does."""
    clip_high: float = Field(gt=0, lt=10)


class Reinforce(StrictParams):
    """REINFORCE: log-probability times advantage, no ratio and no clip."""

    kind: Literal["reinforce"]


PolicyLossParams = Annotated[ClippedSurrogate | Gspo | Cispo | Reinforce, Field(discriminator="kind")]


class NoCorrection(StrictParams):
    """Sampler and trainer are taken for one policy."""

    kind: Literal["none"]


class ImportanceWeights(StrictParams):
    """Truncated importance weights: each token's loss times min(ratio of trainer to sampler, cap)."""

    kind: Literal["importance_weights"]
    level: Literal["token", "sequence"]
    """Each token's own ratio, or the product over its response."""
    cap: float = Field(ge=1)
    """Upper truncation (2 is usual)."""


class TrustRegionMasking(StrictParams):
    """Responses whose divergence between sampler and trainer leaves the trust region are dropped whole (TRM)."""

    kind: Literal["trust_region_masking"]
    max_threshold: float | None = Field(ge=0)
    """Largest divergence allowed at a token, in nats (the paper: 0.05); null for no such bound."""
    mean_threshold: float | None = Field(ge=0)
    """Largest mean divergence allowed over a response (0.001); null for no such bound."""
    divergence: Literal["sampled", "exact"]
    """k2 and k3 of the sampled tokens, or the KL over the whole vocabulary at each position (for which the sampler must
    keep its distributions: `study.rollout_distributions`)."""

    @model_validator(mode="after")
    def _bounds_something(self) -> TrustRegionMasking:
        if self.max_threshold is None and self.mean_threshold is None:
            raise ValueError(
                "max_threshold and mean_threshold are both null, so nothing would be masked: set one, or "
                "rollout_correction.kind none"
            )
        return self


RolloutCorrectionParams = Annotated[
    NoCorrection | ImportanceWeights | TrustRegionMasking, Field(discriminator="kind")
]


class NoReferenceKl(StrictParams):
    """Nothing holds the policy near the one that the round starts from."""

    kind: Literal["none"]


class _ReferenceKl(StrictParams):
    """Adds coefficient times an estimate of KL(policy || the policy that the round starts from) to the loss."""

    coefficient: float = Field(gt=0)


class ReferenceK1(_ReferenceKl):
    """log r, r = policy / reference. As a loss its gradient is zero in expectation on-policy: k2 or k3 pull."""

    kind: Literal["k1"]


class ReferenceK2(_ReferenceKl):
    """0.5 log^2 r: on-policy its gradient is that of the KL."""

    kind: Literal["k2"]


class ReferenceK3(_ReferenceKl):
    """1 / r - 1 + log r: never negative (GRPO)."""

    kind: Literal["k3"]


ReferenceKlParams = Annotated[
    NoReferenceKl | ReferenceK1 | ReferenceK2 | ReferenceK3, Field(discriminator="kind")
]
