"""How a round may train, in section `rl`: one model for each `kind`, ordered by field.

Advantages (`advantage`), policy losses (`policy_loss`), the learning rate (`schedule`), the difference between sampler
and trainer (`rollout_correction`), and the policy that stays near (`reference_kl`).
The first sentence of a model is its line in the model card of an exported policy, so it names the paper. Numbers are of
arXiv. Formulas: R is a reward, A an advantage. A token has probability p under the policy and q under the proximal
policy, r is p / q, w the ratio of trainer to sampler. stages/algorithms/ has their code.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.engines.trainers.params import CriticParams
from stages.foundations.params import StrictParams


class GroupNormalized(StrictParams):
    """Reward minus the group's mean, over its standard deviation when `divide_by_std` (GRPO, arXiv 2402.03300)."""

    kind: Literal["group_normalized"]
    divide_by_std: bool
    """False is Dr. GRPO (arXiv 2503.20783)."""


class BatchNormalized(StrictParams):
    """Reward minus the group's mean, over a standard deviation of the batch (arXiv 2508.08221, 2510.13786)."""

    kind: Literal["batch_normalized"]
    deviation_of: Literal["rewards", "advantages"]
    """`rewards`: that of all rewards (Lite PPO). `advantages`: that of the rewards minus their groups' means
    (ScaleRL)."""


class MeanNormalized(StrictParams):
    """Reward minus the group's mean, over that mean (MaxRL, arXiv 2602.02710); no reward may be negative."""

    kind: Literal["mean_normalized"]


class PassAtK(StrictParams):
    """Pass@k training (arXiv 2508.10751): the reward is that one of k responses of the group is correct.

    Over all subsets of k; `rl.reward` is not used. With m = 1 - C(wrong, k) / C(n, k) and s^2 = m (1 - m),
    A = (1 - m) / s if correct, else (1 - m - C(wrong - 1, k - 1) / C(n - 1, k - 1)) / s.
    """

    kind: Literal["pass_at_k"]
    k: int = Field(ge=1)


class LeaveOneOut(StrictParams):
    """Reward minus the mean of the others in the group (RLOO, arXiv 2402.14740)."""

    kind: Literal["leave_one_out"]


class LengthWeighted(StrictParams):
    """Reward minus the group's mean weighted by response length (OPO, arXiv 2505.23585)."""

    kind: Literal["length_weighted"]


class OptimalTokenBaseline(StrictParams):
    """Return minus a baseline for each token, weighted by accumulated gradient energy (OTB, arXiv 2602.07078).

    A = return - mean of the returns at that token, weighted by the accumulated 1 - 2 p + sum of p^2.
    """

    kind: Literal["optimal_token_baseline"]
    lone_tail: Literal["zero", "return"]
    """The advantage at tokens that only one response of the group reaches: 0, or its full return (verl's default)."""
    is_importance_weighted: bool
    """True weighs the energy by the squared truncated weights of `rollout_correction.kind: importance_weights`."""


class Gae(StrictParams):
    """PPO's generalised advantages (arXiv 1506.02438): rewards to go against a critic's values. Needs no group.

    A = d + discount lambda A of the next token, with d = reward + discount V of the next token - V.
    """

    kind: Literal["gae"]
    discount: float = Field(gt=0, le=1)
    """Factor by which a reward shrinks for each token of distance before it (1)."""
    gae_lambda: float = Field(ge=0, le=1)
    """1 trusts the rewards to the end, 0 the critic's value of the next token (0.95 to 1)."""
    critic: CriticParams


class PlainReward(StrictParams):
    """The reward itself, without a baseline: with rewards 1 and 0 and REINFORCE this is rejection sampling."""

    kind: Literal["reward"]


AdvantageParams = Annotated[
    GroupNormalized
    | BatchNormalized
    | MeanNormalized
    | PassAtK
    | LeaveOneOut
    | LengthWeighted
    | OptimalTokenBaseline
    | Gae
    | PlainReward,
    Field(discriminator="kind"),
]


class _TwoClips(StrictParams):
    """Clips of the probability ratio; the upper one may be wider (DAPO's clip-higher)."""

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
    """PPO's clipped surrogate (arXiv 1707.06347); with different clips it is DAPO's clip-higher.

    min(r A, clip(r, 1 - low, 1 + high) A)
    """

    kind: Literal["clipped_surrogate"]
    dual_clip: float | None = Field(gt=1)
    """Bound on the ratio when the advantage is negative (the public DAPO recipe: 10); null for none."""


class ClipCov(_TwoClips):
    """Clip-Cov (arXiv 2505.22617): PPO's clip, and no gradient of some tokens with a high covariance.

    Of log-probability and advantage, c = (log p - mean)(A - mean): random tokens with low < c < high. They are chosen
    among the tokens of an update, by the weights before the step; the paper: of a micro-batch, by the current weights.
    """

    kind: Literal["clip_cov"]
    fraction: float = Field(gt=0, lt=1)
    """Tokens of an update that lose their gradient, at random among those between the bounds (0.0002)."""
    covariance_low: float
    """Lower bound of a token's covariance (1)."""
    covariance_high: float
    """Upper bound (5)."""

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> ClipCov:
        if self.covariance_low >= self.covariance_high:
            raise ValueError(f"covariance_low {self.covariance_low} must be < covariance_high {self.covariance_high}")
        return self


class KlCov(StrictParams):
    """KL-Cov (arXiv 2505.22617): no clip, and a KL penalty on the tokens with the highest covariance.

    The tokens of highest c, as for `clip_cov`, pay coefficient |log r|.
    """

    kind: Literal["kl_cov"]
    fraction: float = Field(gt=0, lt=1)
    """Tokens of an update that are penalised (released code: 0.002; verl: 0.0002)."""
    coefficient: float = Field(gt=0)
    """Of the penalty |log ratio| (1)."""


class Gspo(_TwoClips):
    """GSPO (arXiv 2507.18071): one ratio per response, the geometric mean over its tokens.

    Clips are 1000 times smaller than PPO's.
    """

    kind: Literal["gspo"]


class Cispo(StrictParams):
    """CISPO (arXiv 2506.13585): the clipped ratio weighs log-probabilities and drops no token.

    clip(r) A log p; the clip has no gradient.
    """

    kind: Literal["cispo"]
    clip_low: float = Field(gt=0)
    """Lower clip of the ratio, as an offset from 1; 1 or more leaves that side open, as the paper does."""
    clip_high: float = Field(gt=0, lt=10)


class Dppo(StrictParams):
    """DPPO (arXiv 2602.04879): as CISPO, but a token is left out by the divergence of its probability.

    That is the divergence from the sampler's, so it needs `proximal: rollout`.
    min(r, cap) A log p; 0 where A moves r further from 1 and |p - q|, or the KL of two coins, is over the limit.
    """

    kind: Literal["dppo"]
    divergence: Literal["total_variation", "kl"]
    """Of the sampled token against all others together."""
    limit_low: float = Field(gt=0)
    """Largest divergence of a token that gets less likely (the paper: 0.2 for total variation, 0.05 for kl)."""
    limit_high: float = Field(gt=0)
    """Of a token that gets more likely."""
    ratio_cap: float = Field(gt=1)
    """Upper truncation of the ratio, which weighs the token (20)."""


class Sapo(StrictParams):
    """SAPO (arXiv 2511.20347): a sigmoid of the ratio instead of a clip.

    (4 / t) sigmoid(t (r - 1)) A
    """

    kind: Literal["sapo"]
    temperature_positive: float = Field(gt=0)
    """Steepness for tokens with a positive advantage (1.0)."""
    temperature_negative: float = Field(gt=0)
    """For others (1.05: what is pushed down loses its gradient sooner)."""


class Reinforce(StrictParams):
    """REINFORCE: log-probability times advantage, no ratio and no clip."""

    kind: Literal["reinforce"]


PolicyLossParams = Annotated[
    ClippedSurrogate | ClipCov | KlCov | Gspo | Cispo | Dppo | Sapo | Reinforce, Field(discriminator="kind")
]


class ScheduleParams(StrictParams):
    """After the warm-up the learning rate falls over the round's steps: along half a cosine, or by the same amount each
    step."""

    kind: Literal["cosine", "linear"]
    final_fraction: float = Field(ge=0, le=1)
    """Share of the peak learning rate in the last step (Demystify: 0.1)."""


class NoCorrection(StrictParams):
    """Assumes that sampler and trainer are the same policy."""

    kind: Literal["none"]


class ImportanceWeights(StrictParams):
    """Truncated importance weights: each token's loss times min(w, cap) (Yao et al., 2025)."""

    kind: Literal["importance_weights"]
    level: Literal["token", "sequence"]
    """The ratio of each token, or the product over its response."""
    cap: float = Field(ge=1)
    """Upper truncation (2 is usual)."""
    batch_normalized: Literal[True] | None = Field(default=None, exclude_if=lambda value: value is None)
    """`true`: then divided by the mean over the step's tokens (or responses), so that it is 1. Absent: as they are."""


class IcePop(StrictParams):
    """Each token's loss times its ratio of trainer to sampler; tokens whose ratio is out of bounds are left out.

    IcePop (Ring team, 2025): w where low <= w <= high, else 0.
    """

    kind: Literal["ice_pop"]
    low: float = Field(ge=0, lt=1)
    """(0.5)"""
    high: float = Field(gt=1)
    """(5)"""


class GeometricMask(StrictParams):
    """Drops whole responses whose geometric mean of the ratios of trainer to sampler is out of bounds.

    Source: Liu et al., 2025.
    """

    kind: Literal["geometric_mask"]
    low: float = Field(ge=0, lt=1)
    """(0.999)"""
    high: float = Field(gt=1)
    """(1.001)"""


class BadResponseMask(StrictParams):
    """Drops responses with a negative advantage that the sampler found much likelier than the trainer does
    (DeepSeek-V3.2, arXiv 2512.02556)."""

    kind: Literal["bad_response_mask"]
    max_divergence: float = Field(gt=0)
    """Largest mean log-ratio of sampler to trainer, in nats."""


class LengthNeutralMask(StrictParams):
    """Drops whole responses by a weighted mean of |ratio - 1| over their tokens: trust region masking that does not
    prefer short responses (arXiv 2512.23075, appendix)."""

    kind: Literal["length_neutral_mask"]
    token_kl: float | None = Field(gt=0)
    """The KL at a token for which early tokens weigh more, in nats; null leaves it out of the weights."""
    token_tv: float | None = Field(gt=0)
    """The same for the total variation at a token. Both null: all tokens weigh the same (SER)."""
    max_score: float = Field(gt=0)
    """Largest mean allowed (the paper for SER: 0.03 to 0.1)."""


class TrustRegionMasking(StrictParams):
    """TRM (arXiv 2512.23075): drops whole responses whose divergence from the sampler leaves the trust region.

    Drops by the largest divergence of a token and by the mean of the response.
    """

    kind: Literal["trust_region_masking"]
    max_threshold: float | None = Field(ge=0)
    """Largest divergence allowed at a token, in nats (the paper: 0.05); null for no such bound."""
    mean_threshold: float | None = Field(ge=0)
    """Largest mean divergence allowed over a response (0.001); null for no such bound."""
    divergence: Literal["sampled", "likeliest", "exact"]
    """`sampled`: k2 and k3 of the sampled tokens. `exact`: the KL over the whole vocabulary at each position.
    `likeliest`: its lower bound from the sampler's likeliest tokens, all others counted as one, for vLLM with a real
    vocabulary. The last two need what `study.rollout_distributions` keeps; the engines' numerical gap is in all."""

    @model_validator(mode="after")
    def _bounds_something(self) -> TrustRegionMasking:
        if self.max_threshold is None and self.mean_threshold is None:
            raise ValueError(
                "max_threshold and mean_threshold are both null, so nothing would be masked: set one, or "
                "rollout_correction.kind none"
            )
        return self


RolloutCorrectionParams = Annotated[
    NoCorrection
    | ImportanceWeights
    | IcePop
    | GeometricMask
    | BadResponseMask
    | LengthNeutralMask
    | TrustRegionMasking,
    Field(discriminator="kind"),
]


class NoReferenceKl(StrictParams):
    """No term keeps the policy near the one that the round starts from."""

    kind: Literal["none"]


class ReferenceKl(StrictParams):
    """Adds coefficient times an estimate of KL(policy || the policy that the round starts from) to the loss.

    With r = policy / reference: `k1` is log r, whose expected on-policy gradient is zero as a loss. `k2` is
    0.5 log^2 r, and its expected on-policy gradient is that of the KL. `k3` is 1 / r - 1 + log r, never negative
    (GRPO). `weighted_k3` is k3 times the ratio to the proximal policy: value and gradient are unbiased, also off-policy
    (DeepSeek-V3.2). `in_reward` takes coefficient times log(proximal / reference) off the reward of each token instead
    (PPO), and needs a critic.
    """

    kind: Literal["in_reward", "k1", "k2", "k3", "weighted_k3"]
    coefficient: float = Field(gt=0)
    reset_every_steps: int | None = Field(default=None, ge=1, exclude_if=lambda value: value is None)
    """The reference becomes the current policy after each so many steps (ProRL). Absent: it stays."""
    resets_optimizer: bool | None = Field(default=None, exclude_if=lambda value: value is None)
    """True: the optimizer's state starts from zero there as well (ProRL). Absent: it is kept."""

    @model_validator(mode="after")
    def _optimizer_is_reset_with_the_reference(self) -> ReferenceKl:
        if self.resets_optimizer and self.reset_every_steps is None:
            raise ValueError("resets_optimizer happens with the reference: set reset_every_steps, or leave it out")
        return self


ReferenceKlParams = Annotated[NoReferenceKl | ReferenceKl, Field(discriminator="kind")]
