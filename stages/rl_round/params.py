"""Parameters of `rl_round`: section `rl` holds for every round, `rl_rounds.<policy>` for one.

First `rl.study`, whose settings only a study needs: an absent setting is off (docs/reference/recipes.md lists them).
Then sections `rl` and `rl_rounds`. Then checks for contradictions within `rl`; contradictions.py has those between `rl`
and other sections. methods.py and update_methods.py have the alternatives behind each `kind`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from stages.engines.samplers.params import Mismatch
from stages.engines.trainers.params import AdapterParams, OptimizerParams
from stages.foundations.params import StrictParams
from stages.rl_round.methods import (
    AsynchronousLoop,
    CosineReward,
    DynamicSampling,
    DynamicSamplingParams,
    LoopParams,
    MajorityReward,
    ModelVerifier,
    OverlongParams,
    ProblemSlice,
    PromptSelectionParams,
    RewardParams,
    RoundVerifierParams,
    SoftOverlong,
    VerdictReward,
)
from stages.rl_round.update_methods import (
    AdvantageParams,
    ClipCov,
    Dppo,
    Gae,
    IcePop,
    ImportanceWeights,
    KlCov,
    MeanNormalized,
    NoCorrection,
    OptimalTokenBaseline,
    PassAtK,
    PlainReward,
    PolicyLossParams,
    ReferenceKlParams,
    Reinforce,
    RolloutCorrectionParams,
    ScheduleParams,
)


class WeightSyncCheckParams(StrictParams):
    """The check after every weight sync: sampler and trainer must agree on a fixed batch."""

    sequences: int = Field(ge=1)
    """Responses in the fixed batch."""
    max_logprob_gap: float | None = Field(gt=0)
    """Largest allowed difference of a token's log-probability; float32 on both sides: 1e-4. Null measures but never
    fails, for a sampler that differs on purpose."""


def _is_discount(value: float) -> float:
    # A separate check, because the error of `Field(gt=0, le=1)` could not say which value means none.
    if not 0 < value <= 1:
        raise ValueError(f"a discount must lie in (0, 1], not {value}: set 1.0 for none, or a little less, like 0.99")
    return value


Discount = Annotated[float, AfterValidator(_is_discount)]
"""Factor by which a reward shrinks for each token of distance before it."""


class NgramPenalty(StrictParams):
    """Demystify's repetition penalty: a second reward stream, on repeated tokens, with a separate discount."""

    kind: Literal["ngram"]
    n: int = Field(ge=1)
    """Tokens of an n-gram (the paper: 40)."""
    penalty: float = Field(le=0)
    """Reward of each token of an n-gram that occurred before in the response (-0.05)."""
    discount: Discount
    """Below 1, the penalty mainly affects the tokens just before the repetition (0.99; 0.999 did best in the paper)."""


class SafeSet(StrictParams):
    """Sampler and trainer renormalise over the tokens with log(p / largest p) >= `log_threshold` (Taming the Tail)."""

    kind: Literal["safe_set"]
    log_threshold: float = Field(lt=0)
    """In nats, after the temperature (-13: drops tokens with p below 2e-6 of the likeliest token's)."""
    outside: Literal["drop_token", "drop_response"]
    """Drops the gradient of a sampled token outside the trainer's set, or that of its whole response."""


class WholeDistributions(StrictParams):
    """Keeps the distribution of each sampled token until its rollout is trained on, for the exact KL.

    Log-probs in float32: vocabulary times 4 bytes a token, in memory and (surplus groups) in checkpoints. They are not
    in the rollouts table.
    """

    kind: Literal["whole"]
    max_gib: float = Field(gt=0)
    """A round is rejected if its batch could need more than this, with every response as long as allowed."""


class LikeliestTokens(StrictParams):
    """Keeps the sampler's likeliest tokens at each position: for the lower bound of the KL, and with `top_k` of at most
    `count` for a trainer that renormalises over the tokens that the sampler could draw.

    An id and a log-prob take 8 bytes a token.
    """

    kind: Literal["likeliest"]
    count: int = Field(ge=1, le=20)
    """Tokens at each position; vLLM returns at most 20."""
    max_gib: float = Field(gt=0)
    """As in `whole`."""


class StudyParams(StrictParams):
    """Section `rl.study`."""

    mismatch: Mismatch | None = None
    """A sampler that differs from the trainer on purpose; absent: it uses the trainer's weights."""
    vocabulary_pruning: SafeSet | None = None
    """Absent: the whole vocabulary."""
    repetition_penalty: NgramPenalty | None = None
    """Absent: repetition costs nothing."""
    reward_discount: Discount | None = None
    """Discount of the reward at the response's end; absent: 1 (Demystify: lower values made responses impatient and
    worse)."""
    rollout_distributions: Annotated[WholeDistributions | LikeliestTokens, Field(discriminator="kind")] | None = None
    """Required by `rollout_correction.divergence: exact` (`whole`) and `likeliest`, and by a trainer that takes `top_k`
    and `top_p` into account (`likeliest`); absent: only log-probs of the sampled tokens are kept."""


class EvaluationParams(StrictParams):
    """Held-out problems that the policy answers during a round, with the round's prompt, limits and verifier."""

    every_steps: int = Field(ge=1)
    """Steps between evaluations; the start and the end are evaluated too."""
    problems: int = Field(ge=1)
    """Number of problems, the first ones of curate's validation split."""
    samples: int = Field(ge=1)
    """Responses to each problem."""
    temperature: float = Field(ge=0)
    """0 always takes the likeliest token."""
    keep: Literal["best", "last"]
    """The weights that the round outputs: those of the best evaluation (the first of equal ones), or the last step."""
    patience: int | None = Field(ge=1)
    """Evaluations in a row without a new best after which the round stops; null: it never stops early."""


class AdaptiveEntropyBonus(StrictParams):
    """Subtracts coefficient times entropy from each token's loss while the last step's entropy is below a target.

    The coefficient rises by a step while it is below, and falls while it is not (Skywork-OR1).
    """

    kind: Literal["adaptive"]
    target: float = Field(gt=0)
    """Mean entropy of a token, in nats (0.2)."""
    first_coefficient: float = Field(ge=0)
    """Coefficient of the first step (0)."""
    coefficient_step: float = Field(ge=0)
    """Change of the coefficient after each step with an update (0.0001); 0 keeps it."""
    max_coefficient: float = Field(gt=0)
    """(0.005)"""


class RlParams(StrictParams):
    """Section `rl`."""

    problems_per_step: int = Field(ge=1)
    group_size: int = Field(ge=1)
    """Responses sampled for each problem."""
    temperature: float = Field(gt=0)
    top_p: float = Field(gt=0, le=1)
    top_k: int = Field(ge=0)
    """0 keeps the whole vocabulary."""
    max_response_tokens: int = Field(ge=1)
    reward: RewardParams
    verifier: RoundVerifierParams
    """Judges the responses: the rules of section `verifier`, or a model."""
    overlong: OverlongParams
    overlong_filtering: bool
    """True leaves truncated responses out of the loss (DAPO's overlong filtering); the divisor still counts them."""
    dynamic_sampling: DynamicSamplingParams
    advantage: AdvantageParams
    policy_loss: PolicyLossParams
    aggregation: Literal["token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant", "prompt_mean"]
    """Aggregation of token losses: token_mean in DAPO, sequence_mean_token_mean in GRPO, constant in Dr. GRPO,
    prompt_mean (over the tokens of a prompt in an update, then over prompts) in ScaleRL."""
    proximal: Literal["recompute", "rollout"]
    """Source of the proximal log-probs: the trainer before the update, or the sampler (saves a forward pass)."""
    rollout_correction: RolloutCorrectionParams
    reference_kl: ReferenceKlParams
    minibatches: int = Field(ge=1)
    """Optimizer updates of one step."""
    max_gradient_norm: float = Field(gt=0)
    optimizer: OptimizerParams
    schedule: ScheduleParams | None = Field(default=None, exclude_if=lambda value: value is None)
    """The learning rate after the warm-up; absent: constant."""
    advantage_whitening: Literal["tokens"] | None = Field(default=None, exclude_if=lambda value: value is None)
    """`tokens`: the advantages of a step are shifted and scaled to mean 0 and variance 1 over its tokens (OpenRLHF,
    Demystify). Absent: they are used as they are."""
    top_entropy_fraction: float | None = Field(default=None, gt=0, lt=1, exclude_if=lambda value: value is None)
    """Only this fraction of an update's tokens gives gradient, those with the highest entropy before the update (Beyond
    the 80/20 Rule: 0.2). Absent: all tokens."""
    entropy_bonus: AdaptiveEntropyBonus | None = Field(default=None, exclude_if=lambda value: value is None)
    """Absent: entropy is not part of the loss."""
    weight_sync_check: WeightSyncCheckParams
    checkpoint_every_steps: int = Field(ge=1)
    loop: LoopParams
    adapter: AdapterParams = None
    evaluation: EvaluationParams | None = None
    """Absent: no evaluation on held-out problems."""
    study: StudyParams | None = None
    """Absent: all settings of a study are off."""

    @property
    def mismatch(self) -> Mismatch | None:
        """Returns the deliberate mismatch between the sampler's and the trainer's weights; None when there is none."""
        return self.study.mismatch if self.study else None

    @property
    def vocabulary_pruning(self) -> SafeSet | None:
        return self.study.vocabulary_pruning if self.study else None

    @property
    def log_threshold(self) -> float | None:
        """Returns the threshold of the safe vocabulary on both sides; None when nothing is pruned."""
        return self.vocabulary_pruning.log_threshold if self.vocabulary_pruning else None

    @property
    def repetition_penalty(self) -> NgramPenalty | None:
        return self.study.repetition_penalty if self.study else None

    @property
    def reward_discount(self) -> float:
        """Returns the discount; 1 for none."""
        # 1 and absent mean the same for the loss: both use the code path without discount.
        discount = self.study.reward_discount if self.study else None
        return 1.0 if discount is None else discount

    @property
    def rollout_distributions(self) -> WholeDistributions | LikeliestTokens | None:
        return self.study.rollout_distributions if self.study else None

    @property
    def keeps_distributions(self) -> bool:
        return self.rollout_distributions is not None

    def without_distributions(self) -> RlParams:
        """Returns the section for responses of which only verdicts count: distributions would only fill the memory."""
        study = self.study and self.study.model_copy(update={"rollout_distributions": None})
        return self.model_copy(update={"study": study})

    @property
    def likeliest(self) -> int:
        """Returns how many likeliest tokens of each distribution are kept; 0 for all or none."""
        kept = self.rollout_distributions
        return kept.count if isinstance(kept, LikeliestTokens) else 0

    @property
    def uses_sampler_sets(self) -> bool:
        """Returns True when the trainer renormalises over the tokens that the sampler could draw after top-k and top-p.

        The likeliest tokens are then kept for it.
        """
        return 0 < self.top_k <= self.likeliest

    @property
    def needed_distributions(self) -> str | None:
        """Returns the kind of `study.rollout_distributions` that the trust region needs; None when it needs none."""
        kinds = {"exact": "whole", "likeliest": "likeliest"}
        return kinds.get(getattr(self.rollout_correction, "divergence", ""))

    @property
    def is_batch_normalized(self) -> bool:
        """Returns True when the importance weights have a mean of 1."""
        correction = self.rollout_correction
        return isinstance(correction, ImportanceWeights) and correction.batch_normalized is not None

    @property
    def compares_tokens(self) -> bool:
        """Returns True when tokens of different responses are compared, for which every rank needs all of them."""
        is_comparing = isinstance(self.advantage, OptimalTokenBaseline) or isinstance(self.policy_loss, ClipCov | KlCov)
        return is_comparing or self.is_batch_normalized or self.top_entropy_fraction is not None

    @model_validator(mode="after")
    def _settings_agree(self) -> RlParams:
        # Reports all at once, so a user need not fix them one after the other.
        sentences = [*reward_contradictions(self), *_group_contradictions(self), *_update_contradictions(self)]
        sentences += [*_distribution_contradictions(self), *_value_contradictions(self)]
        if sentences:
            raise ValueError("; ".join(sentences))
        return self


class DistillationParams(StrictParams):
    """Each token's advantage gets coefficient * (log p_teacher - log p_policy): on-policy distillation.

    Section `teachers` names the round's teacher. To distil alone, set the round's `reward` to 0 for every verdict, and
    `rl.overlong.kind` to none.
    """

    coefficient: float = Field(gt=0)
    """Advantage of a nat of difference (tinker-cookbook: 1.0)."""


class RoundParams(StrictParams):
    """Section `rl_rounds.<policy>`."""

    start_from: str
    """Policy that the round starts from."""
    steps: int = Field(ge=1)
    """Batches of rollouts; each gives `rl.minibatches` optimizer updates."""
    warmup_steps: int = Field(ge=0)
    """Linear warm-up from 0, in steps; each round starts with a new optimizer."""
    problems: Literal["problems/train", "web/solutions"]
    """Table under `data/` that the round draws from: curate's train problems, or the trusted web problems."""
    problem_slice: ProblemSlice
    prompt_selection: PromptSelectionParams
    sources: list[str] | None = Field(default=None, min_length=1)
    """Sources whose problems are used, selected before slicing; absent for the whole table."""
    reward: RewardParams | None = None
    """Replaces `rl.reward` in this round, for rounds that differ only in the reward; absent: `rl.reward`."""
    distillation: DistillationParams | None = Field(default=None, exclude_if=lambda value: value is None)
    """Learns from another policy's log-probs too; absent: from the reward alone."""

    def of(self, rl: RlParams) -> RlParams:
        """Returns section `rl` with this round's reward; does not check `reward_contradictions`."""
        # `model_copy` validates nothing: the caller checks the result with `reward_contradictions`.
        return rl if self.reward is None else rl.model_copy(update={"reward": self.reward})


# Contradictions within section `rl`: one sentence for each, with the remedy.


def reward_contradictions(rl: RlParams) -> Iterator[str]:
    """Yields contradictions between the reward and the limits of length."""
    if isinstance(rl.overlong, SoftOverlong):
        if isinstance(rl.reward, CosineReward):
            yield (
                "reward.kind cosine has its own value for long responses (exceeded): set overlong.kind none, or "
                "reward.kind by_verdict"
            )
        if rl.overlong.buffer_tokens >= rl.max_response_tokens:
            yield (
                f"overlong.buffer_tokens {rl.overlong.buffer_tokens} must be less than max_response_tokens "
                f"{rl.max_response_tokens}"
            )
    if isinstance(rl.reward, MajorityReward):
        if isinstance(rl.verifier, ModelVerifier):
            yield (
                "reward.kind majority_vote compares the answers of a group by rules: set verifier.kind rule, or "
                "reward.kind by_verdict"
            )
        if isinstance(rl.loop, AsynchronousLoop):
            yield (
                "reward.kind majority_vote needs a whole group, and loop.kind asynchronous rewards each response by "
                "itself: set loop.kind synchronous, or reward.kind by_verdict"
            )
    is_negative = isinstance(rl.reward, VerdictReward) and min(rl.reward.wrong, rl.reward.unparsed) < 0
    if isinstance(rl.advantage, MeanNormalized) and (is_negative or isinstance(rl.reward, CosineReward)):
        yield (
            f"advantage.kind mean_normalized divides by the mean reward, and reward.kind {rl.reward.kind} may be "
            "negative: set reward: {kind: by_verdict, correct: 1.0, wrong: 0.0, unparsed: 0.0}"
        )
    penalty = rl.repetition_penalty
    if penalty and penalty.n >= rl.max_response_tokens:
        yield (
            f"study.repetition_penalty.n {penalty.n} must be less than max_response_tokens {rl.max_response_tokens}: "
            "no n-gram could repeat"
        )


def _group_contradictions(rl: RlParams) -> Iterator[str]:
    if isinstance(rl.advantage, PassAtK) and rl.advantage.k > rl.group_size:
        yield f"advantage.k {rl.advantage.k} is more than group_size {rl.group_size}: lower it, or raise group_size"
    # Without these checks such a round would silently learn nothing: a group of one has advantage 0, or never a signal.
    if rl.group_size > 1:
        return
    if not isinstance(rl.advantage, PlainReward | Gae):
        yield (
            f"advantage.kind {rl.advantage.kind} compares the responses of a group, and group_size is 1: set "
            "group_size to at least 2, or advantage.kind gae or reward"
        )
    if isinstance(rl.dynamic_sampling, DynamicSampling):
        yield (
            "dynamic_sampling.kind dynamic trains on groups that are right and wrong at once, which a group_size of 1 "
            "never is: set group_size to at least 2, or dynamic_sampling.kind none"
        )


def _update_contradictions(rl: RlParams) -> Iterator[str]:
    is_weighted = isinstance(rl.rollout_correction, ImportanceWeights | IcePop)
    if isinstance(rl.advantage, OptimalTokenBaseline):
        if rl.proximal != "recompute":
            yield (
                "advantage.kind optimal_token_baseline weighs tokens by the trainer's probabilities before the "
                "update: set proximal: recompute"
            )
        if rl.advantage.is_importance_weighted and not isinstance(rl.rollout_correction, ImportanceWeights):
            yield (
                "advantage.is_importance_weighted takes the weights of rollout_correction, which has none: set "
                "rollout_correction.kind importance_weights, or is_importance_weighted false"
            )
    if rl.proximal != "recompute":
        named = {"top_entropy_fraction": rl.top_entropy_fraction, "batch_normalized": rl.is_batch_normalized or None}
        for name in (name for name, value in named.items() if value is not None):
            yield (
                f"{name} compares tokens by the trainer's probabilities before the update: set proximal: recompute, or "
                f"leave {name} out"
            )
    # Figure 4 of the paper: around a recomputed policy, training collapses.
    if isinstance(rl.policy_loss, Dppo) and rl.proximal != "rollout":
        yield (
            "policy_loss.kind dppo bounds the divergence from the sampler, and collapses around weights that are "
            "recomputed: set proximal: rollout, or policy_loss.kind clipped_surrogate"
        )
    # REINFORCE has no ratio in its loss, so it counts no ratio twice.
    if is_weighted and rl.proximal == "rollout" and not isinstance(rl.policy_loss, Reinforce):
        yield (
            f"with proximal: rollout the ratio of policy_loss.kind {rl.policy_loss.kind} is that of trainer to "
            f"sampler already, and {rl.rollout_correction.kind} would count it twice: set proximal: recompute, "
            "rollout_correction.kind none, or policy_loss.kind reinforce"
        )


def _distribution_contradictions(rl: RlParams) -> Iterator[str]:
    """Yields contradictions between the sampler's cuts, what is kept of its distributions, and who reads it."""
    needed, kept = rl.needed_distributions, rl.rollout_distributions
    if needed and (kept is None or kept.kind != needed):
        example = {"whole": "{kind: whole, max_gib: 4.0}", "likeliest": "{kind: likeliest, count: 20, max_gib: 4.0}"}
        yield (
            f"rollout_correction.divergence {rl.rollout_correction.divergence} needs the sampler's distribution at "
            f"every token: set study.rollout_distributions: {example[needed]}, or set divergence sampled"
        )
    # Rejected although it would run: distributions may take gigabytes, and nothing would read them.
    if kept and not needed and not rl.uses_sampler_sets:
        yield (
            "study.rollout_distributions keeps what only an exact divergence or a cut of the sampler reads: leave it "
            "out, set rollout_correction.kind trust_region_masking with divergence exact or likeliest, or set top_k "
            f"to at most the count {rl.likeliest or 20} of kind likeliest"
        )
    if rl.likeliest and rl.vocabulary_pruning:
        yield (
            "rollout_correction.divergence likeliest counts tokens beyond the listed ones as one, and "
            "study.vocabulary_pruning cuts them: set divergence exact or sampled, or leave one of the two out"
        )
    # The trainer does not compute a top-p or top-k set of its own: it is another one as soon as weights or rounding
    # differ, and sampled tokens may lie outside of it. The sampler's list is the true set if top_k bounds it.
    uses_rollout_logprobs = rl.proximal == "rollout" or not isinstance(rl.rollout_correction, NoCorrection)
    is_cut = rl.top_p < 1 or bool(rl.top_k)
    if is_cut and uses_rollout_logprobs and not (rl.vocabulary_pruning or rl.uses_sampler_sets):
        yield (
            f"with top_p {rl.top_p} and top_k {rl.top_k} the sampler's log-probs are normalised over fewer tokens than "
            f"the trainer's, and proximal {rl.proximal} with rollout_correction.kind {rl.rollout_correction.kind} "
            "compares the two: set top_p 1.0 and top_k 0; or set top_k to at most 20 and study.rollout_distributions: "
            "{kind: likeliest, count: 20, max_gib: 4.0}, so that the trainer renormalises over the sampler's tokens; "
            "or cut on both sides with study.vocabulary_pruning"
        )
    if rl.vocabulary_pruning and is_cut:
        yield (
            f"study.vocabulary_pruning needs the log-probs of the safe set, and with top_p {rl.top_p} and top_k "
            f"{rl.top_k} the sampler reports those of a smaller one: set top_p 1.0 and top_k 0"
        )


def _value_contradictions(rl: RlParams) -> Iterator[str]:
    if isinstance(rl.advantage, Gae):
        penalty, discount = rl.repetition_penalty, rl.advantage.discount
        if penalty and penalty.discount != discount and rl.advantage.gae_lambda < 1:
            yield (
                f"study.repetition_penalty.discount {penalty.discount} differs from advantage.discount {discount}, and "
                f"one value cannot stand for the rest of both with advantage.gae_lambda {rl.advantage.gae_lambda}: set "
                "the same discount, or gae_lambda 1.0"
            )
        if rl.reward_discount != 1:
            yield (
                f"study.reward_discount {rl.reward_discount} is for baselines of groups: leave it out and set "
                "advantage.discount"
            )
    if rl.reference_kl.kind == "in_reward" and not isinstance(rl.advantage, Gae):
        yield (
            "reference_kl.kind in_reward makes a reward for each token, and advantage.kind "
            f"{rl.advantage.kind} has one for a response: set reference_kl.kind k2, or advantage.kind gae"
        )
