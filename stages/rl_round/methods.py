"""The methods that a round may choose in section `rl`: one model for each `kind`, by the field that chooses among them.

In this order: the loop (`rl.loop`), which problems and groups (`dynamic_sampling`, `prompt_selection`), who judges
(`verifier`), rewards (`reward`, `overlong`), and the update (`advantage`, `policy_loss`, `rollout_correction`,
`reference_kl`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.foundations.params import CustomFunctionParams, StrictParams

# rl.loop: in which order a round samples and trains.


class SynchronousLoop(StrictParams):
    """Sample, train, sync, one after the other: the same seed gives the same weights."""

    kind: Literal["synchronous"]


class NoRepack(StrictParams):
    """A replica keeps its trajectories to their end."""

    kind: Literal["none"]


class BestFitRepack(StrictParams):
    """The last trajectories of several replicas are put together on one, so that the others come free (Laminar)."""

    kind: Literal["best_fit"]
    every_seconds: float = Field(gt=0)
    batch_bound: int = Field(ge=1)
    """Sequences up to which decoding is bound by memory bandwidth: a replica with fewer has room."""


class RelayParams(StrictParams):
    """How versions of the weights lie in the memory of each node."""

    keep: int = Field(ge=1)
    """Newest versions kept. One that is gone cannot be given to a replica that takes over unfinished trajectories."""
    chunk_mib: int = Field(ge=1)
    """Size of the checksummed pieces in which they travel from node to node."""


class AsynchronousLoop(StrictParams):
    """Replicas sample without end, each with the newest weights that it has found when it was free (Laminar)."""

    kind: Literal["asynchronous"]
    window: int | None = Field(ge=0)
    """Steps by which the weights that drew a group may be behind those that train on it; null bounds nothing."""
    replica_share: float = Field(gt=0)
    """Groups that a free replica takes, as a multiple of `rl.problems_per_step` over the number of replicas."""
    takes_groups: Literal["when_empty", "while_newest"]
    """`when_empty`: a replica finishes what it has, takes the newest weights, then its share (Laminar). `while_newest`:
    it is kept full for as long as its weights are the newest, which costs staleness where the trainer is the slower."""
    report_seconds: float = Field(gt=0)
    """A replica reports new tokens this often: what a killed one loses at most."""
    repack: Annotated[NoRepack | BestFitRepack, Field(discriminator="kind")]
    relay: RelayParams
    stalled_seconds: float = Field(gt=0)
    """A replica that reports nothing for so long (and for 20 times its usual interval) is replaced."""
    trainer_ranks: int = Field(ge=1)
    """Processes that train together; more than 1 needs `trainer.kind: deepspeed`."""


class ReplayLoop(StrictParams):
    """Trains again from the schedule and the rollouts of an earlier round, in the same batches: the same weights."""

    kind: Literal["replay"]
    schedule: str
    """A copy of the folder that the round has written (`data/schedules/<round>`), or of a folder of such folders; where
    the rollouts table is looked for: docs/asynchronous.md."""


LoopParams = Annotated[SynchronousLoop | AsynchronousLoop | ReplayLoop, Field(discriminator="kind")]


# Which problems a round draws, and which groups it trains on.


# Nothing is a choice too: a recipe says `kind: none`, and shows what it leaves out. Only settings of `rl.study` may be
# absent.
class NoDynamicSampling(StrictParams):
    """Every drawn group is trained on, with or without signal (GRPO)."""

    kind: Literal["none"]


class DynamicSampling(StrictParams):
    """Groups that are all correct or all wrong are left out, and more are drawn (DAPO)."""

    kind: Literal["dynamic"]
    max_draws: int = Field(ge=1)
    """Draws of one step; what is missing then makes a smaller batch."""
    max_staleness: int = Field(ge=0)
    """Policy versions that a surplus group may wait; older ones are left out and counted."""


DynamicSamplingParams = Annotated[NoDynamicSampling | DynamicSampling, Field(discriminator="kind")]


class AllPrompts(StrictParams):
    """Every problem of the slice is drawn from."""

    kind: Literal["all"]


class PassRateSelection(StrictParams):
    """Problems whose pass rate under the policy that the round starts from lies in [min, max]."""

    kind: Literal["pass_rate"]
    samples: int = Field(ge=1)
    """Responses to each problem before the first step, drawn as in training."""
    min: float = Field(ge=0, le=1)
    max: float = Field(ge=0, le=1)

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> PassRateSelection:
        # A rate is a multiple of 1 / samples, so a narrow range may lie between two of them and keep nothing, ever.
        if not any(self.min <= correct / self.samples <= self.max for correct in range(self.samples + 1)):
            raise ValueError(
                f"no pass rate of {self.samples} samples lies in [{self.min}, {self.max}]: lower min, raise max, or "
                "take more samples"
            )
        return self


PromptSelectionParams = Annotated[AllPrompts | PassRateSelection, Field(discriminator="kind")]


class ProblemSlice(StrictParams):
    """Which part of the shuffled training problems a round draws from, so that rounds need not share any."""

    index: int = Field(ge=0)
    """From 0."""
    # Part `index` is every `count`-th problem of the shuffled order, so sizes differ by one at most.
    count: int = Field(ge=1)
    """Parts of equal size; 1 uses all problems."""

    @model_validator(mode="after")
    def _index_is_in_range(self) -> ProblemSlice:
        if self.index >= self.count:
            raise ValueError(f"index {self.index} must be less than count {self.count}")
        return self


# rl.verifier: who decides whether a response is correct.


class RuleVerifier(StrictParams):
    """The verifier of section `verifier`: exact rules and math-verify."""

    kind: Literal["rule"]


class WrittenJudgement(StrictParams):
    """The judge writes, and its last line `Judgement: correct` (or wrong, not_found) counts; none is undecided.

    For policies that follow instructions. It sees the gold answer and the last 20 lines of the response.
    """

    kind: Literal["written"]
    max_tokens: int = Field(ge=1)
    """Tokens that it may write (the paper: 1024)."""


class LikelierWord(StrictParams):
    """Asked whether prediction and gold answer are the same, the likelier of the words `yes` and `no` counts.

    The prediction is found by rule (a box or a marker), and a response without one is unparsed. For policies that are
    too small to write a judgement.
    """

    kind: Literal["likelier_word"]
    undecided_margin: float = Field(ge=0)
    """In nats: words whose log-probabilities are nearer to each other than this leave the response undecided."""


class NoTeaching(StrictParams):
    """The judge is the policy as it is: noise, unless the policy has learned to judge."""

    kind: Literal["none"]


class MadePairs(StrictParams):
    """A copy of the policy is first fine-tuned to tell equal answers from different ones.

    Half of the pairs are a gold answer of the round's problems with itself, half two different gold answers.
    """

    kind: Literal["made_pairs"]
    steps: int = Field(ge=1)
    pairs_per_step: int = Field(ge=2)
    learning_rate: float = Field(gt=0)
    """Of AdamW, constant."""


class ModelVerifier(StrictParams):
    """The policy that the round starts from, frozen, judges each response against the gold answer.

    It runs in the built-in sampler. Responses that it leaves undecided are never trained on and stop the round beyond
    `verifier.abort_undecided_fraction`, as with the rules, which judge the same responses only to be compared with.
    """

    kind: Literal["model"]
    reading: Annotated[WrittenJudgement | LikelierWord, Field(discriminator="kind")]
    teaching: Annotated[NoTeaching | MadePairs, Field(discriminator="kind")]


RoundVerifierParams = Annotated[RuleVerifier | ModelVerifier, Field(discriminator="kind")]


# rl.reward says what a response is worth; rl.overlong adds something for the length. A new kind needs its case in
# `reward_of` or `outcome_reward` (drawing.py) and in `_is_punished` (loop/training_step.py), and what it contradicts in
# `reward_contradictions`.


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
    """Demystify's length reward, half a cosine from length 0 to `max_response_tokens`; unparsed counts as wrong.

    Without dynamic sampling a group that is all wrong, or all correct, is trained on too: for its lengths alone.
    """

    kind: Literal["cosine"]
    r0_correct: float
    """Reward of a correct response of length 0 (the paper: 2)."""
    # The paper's own names (r0 and rL, correct and wrong), by which a reader compares the values.
    rL_correct: float
    """Of a correct one just below the limit (1): less than `r0_correct` makes short answers better."""
    r0_wrong: float
    """Of a wrong response of length 0 (-10)."""
    rL_wrong: float
    """Of a wrong one just below the limit (0): more than `r0_wrong` makes longer attempts better."""
    exceeded: float
    """Of any response that reaches the limit (-10)."""


class FunctionReward(CustomFunctionParams):
    """A Python function of the user's (docs/bring-your-own.md). It may return named parts, each with its curve."""

    weights: dict[str, float] | None = Field(default=None, exclude_if=lambda value: value is None)
    """Of the parts that it returns, by name. A part without a weight counts once."""


class WeightedReward(StrictParams):
    """One of several rewards."""

    weight: float
    reward: Annotated[VerdictReward | CosineReward | FunctionReward, Field(discriminator="kind")]


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


RewardParams = Annotated[VerdictReward | CosineReward | FunctionReward | SumReward, Field(discriminator="kind")]
OverlongParams = Annotated[NoOverlong | SoftOverlong, Field(discriminator="kind")]


def function_rewards(reward: RewardParams) -> dict[str, FunctionReward]:
    """The custom functions of a reward, by their names in the sum; "" for one that stands alone."""
    if isinstance(reward, SumReward):
        return {name: one.reward for name, one in reward.rewards.items() if isinstance(one.reward, FunctionReward)}
    return {"": reward} if isinstance(reward, FunctionReward) else {}


# The update: advantage, policy loss, rollout correction, KL to the reference.


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
    GroupNormalized | LeaveOneOut | LengthWeighted | OptimalTokenBaseline | PlainReward, Field(discriminator="kind")
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


RolloutCorrectionParams = Annotated[NoCorrection | ImportanceWeights | TrustRegionMasking, Field(discriminator="kind")]


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


ReferenceKlParams = Annotated[NoReferenceKl | ReferenceK1 | ReferenceK2 | ReferenceK3, Field(discriminator="kind")]
