"""How a round may sample and reward, in section `rl`: one model for each `kind`, ordered by field.

Selection of problems and groups (`dynamic_sampling`, `prompt_selection`), the verifier (`verifier`), rewards (`reward`,
`overlong`), and the order in which it samples and trains (`loop`). update_methods.py has how it trains.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from stages.engines.workers.custom_function_worker import PART_NAME
from stages.foundations.params import CustomFunctionParams, StrictParams

# Selection of the problems that a round draws, and of the groups that it trains on.


# "None" is a choice too: a recipe says `kind: none` and so shows the methods that it does not use. Only settings of
# `rl.study` may be absent.
class NoDynamicSampling(StrictParams):
    """All groups are trained on, with or without signal (GRPO)."""

    kind: Literal["none"]


class DynamicSampling(StrictParams):
    """Groups that are all correct or all wrong are left out, and more are drawn (DAPO, arXiv 2503.14476)."""

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
    """Demystify's length reward (arXiv 2502.03373): half a cosine from length 0 to `max_response_tokens`.

    Unparsed counts as wrong.

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


def _named_like_a_curve(name: str) -> str:
    if not PART_NAME.fullmatch(name):
        raise ValueError(f"{name!r} names a curve, `reward/part_...`: use letters, digits, _, -, . and spaces")
    return name


PartName = Annotated[str, AfterValidator(_named_like_a_curve)]


class FunctionReward(CustomFunctionParams):
    """A Python function of the user (docs/how-to/own-reward.md). It may return named parts, each with its curve."""

    weights: dict[PartName, float] | None = Field(default=None, exclude_if=lambda value: value is None)
    """Weights of the parts that the function returns, by name. A part without a weight has weight 1."""


class EnvironmentReward(StrictParams):
    """The reward that `prompt.environment` gives. An episode that a limit cut off before any reward has earned 0."""

    kind: Literal["environment"]


class MajorityReward(StrictParams):
    """1 for a response with the answer that most of its group give, else 0 (TTRL, arXiv 2504.16084).

    No gold answer is needed. The verifier compares the answers. Of several most frequent ones, that of the earliest
    response counts.
    """

    kind: Literal["majority_vote"]


class WeightedReward(StrictParams):
    """One of several rewards."""

    weight: float
    reward: Annotated[VerdictReward | CosineReward | FunctionReward | EnvironmentReward, Field(discriminator="kind")]


class SumReward(StrictParams):
    """Several rewards, weighted and added; each has its curve."""

    kind: Literal["sum"]
    rewards: dict[PartName, WeightedReward] = Field(min_length=1)


class NoOverlong(StrictParams):
    """Long responses are rewarded like others."""

    kind: Literal["none"]


class SoftOverlong(StrictParams):
    """DAPO's soft overlong punishment (arXiv 2503.14476): from 0 to -1 over the last `buffer_tokens`."""

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


# rl.loop: the order in which a round samples and trains.


class SynchronousLoop(StrictParams):
    """Sample, train, sync, one after the other: the same seed gives the same weights."""

    kind: Literal["synchronous"]


class NoRepack(StrictParams):
    """A replica keeps its trajectories to their end."""

    kind: Literal["none"]


class BestFitRepack(StrictParams):
    """The last trajectories of several replicas are moved to one replica, so that the others become free (Laminar)."""

    kind: Literal["best_fit"]
    every_seconds: float = Field(gt=0)
    """Longest time between two checks; there is one right after each update of the weights too."""
    batch_bound: int = Field(ge=1)
    """Sequences up to which decoding is bound by memory bandwidth: a replica with fewer has room."""


class RelayParams(StrictParams):
    """How versions of the weights are stored in the memory of each node."""

    keep: int = Field(ge=1)
    """Newest versions kept. One that is gone cannot be given to a replica that takes over unfinished trajectories."""
    chunk_mib: int = Field(ge=1)
    """Size of the checksummed pieces in which they travel from node to node."""


class AsynchronousLoop(StrictParams):
    """Laminar (arXiv 2510.12633): replicas sample continuously, and one that becomes free loads the newest weights."""

    kind: Literal["asynchronous"]
    window: int | None = Field(ge=0)
    """Largest staleness in steps: how far a group's weights may be behind the trainer's; null: no bound."""
    replica_share: float = Field(gt=0)
    """Groups that a free replica takes, as a multiple of `rl.problems_per_step` / number of replicas."""
    takes_groups: Literal["when_empty", "while_newest"]
    """`when_empty`: a replica finishes its groups, loads the newest weights, then takes its share (Laminar).
    `while_newest`: it is kept full while its weights are the newest, which adds staleness if the trainer is slower."""
    report_seconds: float = Field(gt=0)
    """Interval at which a replica reports new tokens; a killed replica loses at most the tokens of one interval."""
    repack: Annotated[NoRepack | BestFitRepack, Field(discriminator="kind")]
    relay: RelayParams
    stalled_seconds: float = Field(gt=0)
    """A replica that reports nothing for this long, and for 20 times its usual interval, is replaced."""
    trainer_ranks: int = Field(ge=1)
    """Processes that train together; more than 1 needs `trainer.kind: deepspeed`."""


class ReplayLoop(StrictParams):
    """Trains again on the same batches, from the schedule and the rollouts of an earlier round: the same weights."""

    kind: Literal["replay"]
    schedule: str
    """A copy of the folder that the round wrote (`data/schedules/<round>`), or of a folder of such folders.
    docs/explanation/asynchronous-loop.md says where the rollouts table must be."""


LoopParams = Annotated[SynchronousLoop | AsynchronousLoop | ReplayLoop, Field(discriminator="kind")]
