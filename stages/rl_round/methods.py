"""The methods that a round may choose in section `rl`: one model for each `kind`, ordered by field.

The loops (`rl.loop`) are in loop_methods.py. The order here: selection of problems and groups (`dynamic_sampling`,
`prompt_selection`), the verifier (`verifier`), rewards (`reward`, `overlong`), and the update (`advantage`,
`policy_loss`, `schedule`, `rollout_correction`, `reference_kl`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from stages.engines.trainers.params import CriticParams
from stages.foundations.params import CustomFunctionParams, StrictParams

# Selection of the problems that a round draws, and of the groups that it trains on.


# "None" is a choice too: a recipe says `kind: none` and so shows the methods that it does not use. Only settings of
# `rl.study` may be absent.
class NoDynamicSampling(StrictParams):
    """All groups are trained on, with or without signal (GRPO)."""

    kind: Literal["none"]


class DynamicSampling(StrictParams):
    """Groups that are all correct or all wrong are left out, and more are drawn (DAPO)."""

    kind: Literal["dynamic"]
    max_draws: int = Field(ge=1)
    """Most draws of one step; if groups are still missing then, the batch is smaller."""
    max_staleness: int = Field(ge=0)
    """Policy versions that a surplus group may wait; older groups are left out and counted."""


DynamicSamplingParams = Annotated[NoDynamicSampling | DynamicSampling, Field(discriminator="kind")]


class AllPrompts(StrictParams):
    """All problems of the slice are used."""

    kind: Literal["all"]


class PassRateSelection(StrictParams):
    """Only problems with a pass rate in [min, max] under the policy that the round starts from."""

    kind: Literal["pass_rate"]
    samples: int = Field(ge=1)
    """Responses to each problem before the first step, sampled as in training."""
    min: float = Field(ge=0, le=1)
    max: float = Field(ge=0, le=1)

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> PassRateSelection:
        # A rate is a multiple of 1 / samples: a narrow range between two multiples would never keep a problem.
        if not any(self.min <= correct / self.samples <= self.max for correct in range(self.samples + 1)):
            raise ValueError(
                f"no pass rate of {self.samples} samples lies in [{self.min}, {self.max}]: lower min, raise max, or "
                "take more samples"
            )
        return self


class NoPositiveResampling(StrictParams):
    """A solved problem does not come again in later epochs (ScaleRL); when all are solved, all come again."""

    kind: Literal["no_positive_resampling"]
    pass_rate: float = Field(gt=0, le=1)
    """Share of correct responses, among all that the round has drawn for a problem, from which it counts as solved
    (0.9)."""


PromptSelectionParams = Annotated[AllPrompts | PassRateSelection | NoPositiveResampling, Field(discriminator="kind")]


class ProblemSlice(StrictParams):
    """The part of the shuffled training problems that a round draws from, so that rounds need not share problems."""

    index: int = Field(ge=0)
    """From 0."""
    # Part `index` is every `count`-th problem of the shuffled order, so sizes differ by at most one.
    count: int = Field(ge=1)
    """Parts of equal size; 1 uses all problems."""

    @model_validator(mode="after")
    def _index_is_in_range(self) -> ProblemSlice:
        if self.index >= self.count:
            raise ValueError(f"index {self.index} must be less than count {self.count}")
        return self


# rl.verifier: decides whether a response is correct.


class RuleVerifier(StrictParams):
    """The verifier of section `verifier`: exact rules and math-verify."""

    kind: Literal["rule"]


class WrittenJudgement(StrictParams):
    """The judge writes text; its last line `Judgement: correct` (or wrong, not_found) counts. No such line: undecided.

    For policies that follow instructions. The judge sees the gold answer and the last 20 lines of the response.
    """

    kind: Literal["written"]
    max_tokens: int = Field(ge=1)
    """Tokens that the judge may write (the paper: 1024)."""


class LikelierWord(StrictParams):
    """The prompt asks whether prediction and gold answer are the same; the likelier of the words `yes` and `no` counts.

    Rules extract the prediction (a box or a marker); a response without one is unparsed. For policies too small to
    write a judgement.
    """

    kind: Literal["likelier_word"]
    undecided_margin: float = Field(ge=0)
    """In nats: if the log-probabilities of the two words differ by less than this, the response is undecided."""


class NoTeaching(StrictParams):
    """The judge is the unchanged policy: its judgements are noise, unless the policy has learned to judge."""

    kind: Literal["none"]


class MadePairs(StrictParams):
    """A copy of the policy is first fine-tuned to distinguish equal answers from different ones.

    Half of the pairs are a gold answer of the round's problems and itself, half are two different gold answers.
    """

    kind: Literal["made_pairs"]
    steps: int = Field(ge=1)
    pairs_per_step: int = Field(ge=2)
    learning_rate: float = Field(gt=0)
    """Learning rate of AdamW, constant."""


class ModelVerifier(StrictParams):
    """The policy that the round starts from, frozen, judges each response against the gold answer.

    It runs in the built-in sampler. As with the rules, undecided responses are never trained on, and more than
    `verifier.abort_undecided_fraction` of them stop the round. The rules judge the same responses only for comparison.
    """

    kind: Literal["model"]
    reading: Annotated[WrittenJudgement | LikelierWord, Field(discriminator="kind")]
    teaching: Annotated[NoTeaching | MadePairs, Field(discriminator="kind")]


RoundVerifierParams = Annotated[RuleVerifier | ModelVerifier, Field(discriminator="kind")]


# rl.reward is the value of a response; rl.overlong adds the cost of its length. A new kind needs a case in `reward_of`
# or `outcome_reward` (drawing.py), and its checks in `reward_contradictions`.


class VerdictReward(StrictParams):
    """Reward of a response by its verdict. Responses that the verifier could not decide are never rewarded."""

    kind: Literal["by_verdict"]
    correct: float
    """Any finite number (DAPO: 1)."""
    wrong: float
    """0, or less to punish (DAPO: -1)."""
    unparsed: float
    """A response without a final answer, or one that exhausts the verifier's limits."""


class CosineReward(StrictParams):
    """Demystify's length reward: half a cosine from length 0 to `max_response_tokens`; unparsed counts as wrong.

    Without dynamic sampling, a group that is all wrong or all correct is trained on too, only for its lengths.
    """

    kind: Literal["cosine"]
    r0_correct: float
    """Reward of a correct response of length 0 (the paper: 2)."""
    # Names as in the paper (r0 and rL, correct and wrong), so that a reader can compare the values.
    rL_correct: float
    """Of a correct response just below the limit (1): less than `r0_correct` makes short answers better."""
    r0_wrong: float
    """Of a wrong response of length 0 (-10)."""
    rL_wrong: float
    """Of a wrong response just below the limit (0): more than `r0_wrong` makes longer attempts better."""
    exceeded: float
    """Of any response that reaches the limit (-10)."""


class FunctionReward(CustomFunctionParams):
    """A Python function of the user (docs/how-to/own-reward.md). It may return named parts, each with its curve."""

    weights: dict[str, float] | None = Field(default=None, exclude_if=lambda value: value is None)
    """Weights of the parts that the function returns, by name. A part without a weight has weight 1."""


class EnvironmentReward(StrictParams):
    """The reward that `prompt.environment` gives. An episode that a limit cut off before any reward has earned 0."""

    kind: Literal["environment"]


class MajorityReward(StrictParams):
    """1 for a response with the answer that most of its group give, else 0 (TTRL): no gold answer is needed.

    The verifier compares the answers. Of several most frequent ones, that of the earliest response counts.
    """

    kind: Literal["majority_vote"]


class WeightedReward(StrictParams):
    """One of several rewards."""

    weight: float
    reward: Annotated[VerdictReward | CosineReward | FunctionReward | EnvironmentReward, Field(discriminator="kind")]


class SumReward(StrictParams):
    """Several rewards, weighted and added; each has its curve."""

    kind: Literal["sum"]
    rewards: dict[str, WeightedReward] = Field(min_length=1)


class NoOverlong(StrictParams):
    """Long responses are rewarded like others."""

    kind: Literal["none"]


class SoftOverlong(StrictParams):
    """DAPO's soft overlong punishment: from 0 down to -1 over the last `buffer_tokens` before the limit."""

    kind: Literal["soft_punishment"]
    buffer_tokens: int = Field(ge=1)


RewardParams = Annotated[
    VerdictReward | CosineReward | FunctionReward | EnvironmentReward | MajorityReward | SumReward,
    Field(discriminator="kind"),
]
OverlongParams = Annotated[NoOverlong | SoftOverlong, Field(discriminator="kind")]


def function_rewards(reward: RewardParams) -> dict[str, FunctionReward]:
    """Returns the custom functions of a reward, by their names in the sum; "" for a single function."""
    return {name: one for name, one in _by_name(reward).items() if isinstance(one, FunctionReward)}


def environment_rewards(reward: RewardParams) -> list[str]:
    """Returns the names at which an environment gives the reward, as in `function_rewards`."""
    return [name for name, one in _by_name(reward).items() if isinstance(one, EnvironmentReward)]


def takes_values(reward: RewardParams) -> bool:
    """Returns True when something else than verdict and length gives a value."""
    return isinstance(reward, MajorityReward) or bool(function_rewards(reward) or environment_rewards(reward))


def _by_name(reward: RewardParams) -> dict[str, Any]:
    return {name: one.reward for name, one in reward.rewards.items()} if isinstance(reward, SumReward) else {"": reward}


# The update: advantage, policy loss, rollout correction, KL to the reference.


class GroupNormalized(StrictParams):
    """Reward minus the group's mean, over the group's standard deviation when `divide_by_std` (GRPO, DAPO)."""

    kind: Literal["group_normalized"]
    divide_by_std: bool
    """False is Dr. GRPO."""


class BatchNormalized(StrictParams):
    """Reward minus the group's mean, over a standard deviation of the whole batch."""

    kind: Literal["batch_normalized"]
    deviation_of: Literal["rewards", "advantages"]
    """`rewards`: that of all rewards (Lite PPO). `advantages`: that of the rewards minus their groups' means
    (ScaleRL)."""


class MeanNormalized(StrictParams):
    """Reward minus the group's mean, over that mean (MaxRL); needs rewards that are not negative."""

    kind: Literal["mean_normalized"]


class PassAtK(StrictParams):
    """The reward is that one of k responses is correct, over all subsets of k of the group; `rl.reward` is not used."""

    kind: Literal["pass_at_k"]
    k: int = Field(ge=1)


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
    """The advantage at tokens that only one response of the group reaches: 0, or its full return (verl's default)."""
    is_importance_weighted: bool
    """True weighs the energy by the squared truncated weights of `rollout_correction.kind: importance_weights`."""


class Gae(StrictParams):
    """PPO: rewards to go compared with a critic's value of each token; needs no group (generalised advantages)."""

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
    """PPO's clipped surrogate; with different clips it is DAPO's clip-higher."""

    kind: Literal["clipped_surrogate"]
    dual_clip: float | None = Field(gt=1)
    """Bound on the ratio when the advantage is negative (the public DAPO recipe: 10); null for none."""


class ClipCov(_TwoClips):
    """PPO's clipped surrogate without the gradient of some tokens with a high covariance of log-prob and advantage."""

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
    """The ratio without a clip, and a KL penalty on tokens whose log-prob and advantage have the highest covariance."""

    kind: Literal["kl_cov"]
    fraction: float = Field(gt=0, lt=1)
    """Tokens of an update that are penalised (released code: 0.002; verl: 0.0002)."""
    coefficient: float = Field(gt=0)
    """Of the penalty |log ratio| (1)."""


class Gspo(_TwoClips):
    """GSPO: one ratio per response, the geometric mean over its tokens; clips are 1000 times smaller than PPO's."""

    kind: Literal["gspo"]


class Cispo(StrictParams):
    """CISPO: the clipped ratio weighs log-probabilities and drops no token."""

    kind: Literal["cispo"]
    clip_low: float = Field(gt=0)
    """Lower clip of the ratio, as an offset from 1; 1 or more leaves that side open, as the paper does."""
    clip_high: float = Field(gt=0, lt=10)


class Dppo(StrictParams):
    """DPPO: as CISPO, but a token is left out by the divergence of its probability from the sampler's. It needs
    `proximal: rollout`."""

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
    """SAPO: a sigmoid of the ratio instead of a clip."""

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
    """Truncated importance weights: each token's loss times min(ratio of trainer to sampler, cap)."""

    kind: Literal["importance_weights"]
    level: Literal["token", "sequence"]
    """The ratio of each token, or the product over its response."""
    cap: float = Field(ge=1)
    """Upper truncation (2 is usual)."""
    batch_normalized: Literal[True] | None = Field(default=None, exclude_if=lambda value: value is None)
    """`true`: then divided by the mean over the step's tokens (or responses), so that it is 1. Absent: as they are."""


class IcePop(StrictParams):
    """Each token's loss times its ratio of trainer to sampler; tokens whose ratio is out of bounds are left out."""

    kind: Literal["ice_pop"]
    low: float = Field(ge=0, lt=1)
    """(0.5)"""
    high: float = Field(gt=1)
    """(5)"""


class GeometricMask(StrictParams):
    """Drops whole responses whose geometric mean of the ratios of trainer to sampler is out of bounds."""

    kind: Literal["geometric_mask"]
    low: float = Field(ge=0, lt=1)
    """(0.999)"""
    high: float = Field(gt=1)
    """(1.001)"""


class BadResponseMask(StrictParams):
    """Drops responses with a negative advantage that the sampler found much likelier than the trainer does
    (DeepSeek-V3.2)."""

    kind: Literal["bad_response_mask"]
    max_divergence: float = Field(gt=0)
    """Largest mean log-ratio of sampler to trainer, in nats."""


class LengthNeutralMask(StrictParams):
    """Drops whole responses by a weighted mean of |ratio - 1| over their tokens: trust region masking that does not
    prefer short responses (the appendix of the TRM paper)."""

    kind: Literal["length_neutral_mask"]
    token_kl: float | None = Field(gt=0)
    """The KL at a token for which early tokens weigh more, in nats; null leaves it out of the weights."""
    token_tv: float | None = Field(gt=0)
    """The same for the total variation at a token. Both null: all tokens weigh the same (SER)."""
    max_score: float = Field(gt=0)
    """Largest mean allowed (the paper for SER: 0.03 to 0.1)."""


class TrustRegionMasking(StrictParams):
    """Drops whole responses whose divergence between sampler and trainer leaves the trust region (TRM)."""

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
