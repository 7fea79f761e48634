"""Parameters of `rl_round`: section `rl` holds for every round, `rl_rounds.<policy>` for one."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.engines.training import OptimizerParams
from stages.foundations.params import StrictParams


class RewardParams(StrictParams):
    """Reward of a response by its verdict. Responses that the verifier could not decide are never rewarded."""

    correct: float
    wrong: float
    unparsed: float
    """A response without a final answer."""


class NoOverlong(StrictParams):
    """Long responses are rewarded like others."""

    kind: Literal["none"]


class SoftOverlong(StrictParams):
    """DAPO's soft overlong punishment: from 0 down to -1 over the last `buffer_tokens` before the limit."""

    kind: Literal["soft_punishment"]
    buffer_tokens: int = Field(ge=1)


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


class GroupNormalized(StrictParams):
    """Reward minus the group's mean, over the group's standard deviation when `divide_by_std` (GRPO, DAPO)."""

    kind: Literal["group_normalized"]
    divide_by_std: bool


class LeaveOneOut(StrictParams):
    """Reward minus the mean of the others in the group (RLOO)."""

    kind: Literal["leave_one_out"]


class ClippedSurrogate(StrictParams):
    """PPO's clipped surrogate; different clips make it DAPO's clip-higher."""

    kind: Literal["clipped_surrogate"]
    clip_low: float = Field(gt=0, lt=1)
    """Lower clip of the probability ratio, as an offset from 1 (DAPO: 0.2)."""
    clip_high: float = Field(gt=0, lt=10)
    """Upper clip of the probability ratio, as an offset from 1 (DAPO: 0.28)."""
    dual_clip: float | None = Field(gt=1)
    """Bound on the ratio where the advantage is negative (the public DAPO recipe: 10); null for none."""

    @model_validator(mode="after")
    def _upper_is_wider(self) -> ClippedSurrogate:
        if self.clip_low > self.clip_high:
            raise ValueError(
                f"clip_low {self.clip_low} must be <= clip_high {self.clip_high}: DAPO only widens the upper side"
            )
        return self


class SyncProbeParams(StrictParams):
    """The check after every weight sync: sampler and trainer must agree on a fixed batch."""

    sequences: int = Field(ge=1)
    """Responses in the fixed batch."""
    max_logprob_gap: float = Field(gt=0)
    """Largest allowed difference of a token's log-probability; float32 on both sides: 1e-4."""


class RlParams(StrictParams):
    """Section `rl`."""

    problems_per_step: int = Field(ge=1)
    group_size: int = Field(ge=2)
    """Responses drawn for each problem."""
    temperature: float = Field(gt=0)
    top_p: float = Field(gt=0, le=1)
    top_k: int = Field(ge=0)
    """0 keeps the whole vocabulary."""
    max_response_tokens: int = Field(ge=1)
    reward: RewardParams
    overlong: Annotated[NoOverlong | SoftOverlong, Field(discriminator="kind")]
    is_overlong_filtered: bool
    """True leaves truncated responses out of the loss (DAPO's overlong filtering); the divisor still counts them."""
    dynamic_sampling: Annotated[NoDynamicSampling | DynamicSampling, Field(discriminator="kind")]
    advantage: Annotated[GroupNormalized | LeaveOneOut, Field(discriminator="kind")]
    policy_loss: ClippedSurrogate
    aggregation: Literal["token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant"]
    """How token losses become one number: DAPO token_mean, GRPO sequence_mean_token_mean, Dr. GRPO constant."""
    proximal: Literal["recompute", "rollout"]
    """Where the proximal log-probs come from: the trainer before the update, or the sampler's own (saves a pass)."""
    minibatches: int = Field(ge=1)
    """Optimizer updates of one step."""
    max_gradient_norm: float = Field(gt=0)
    optimizer: OptimizerParams
    sync_probe: SyncProbeParams
    checkpoint_every_steps: int = Field(ge=1)

    @model_validator(mode="after")
    def _buffer_fits(self) -> RlParams:
        if (
            isinstance(self.overlong, SoftOverlong)
            and self.overlong.buffer_tokens >= self.max_response_tokens
        ):
            raise ValueError(
                f"overlong.buffer_tokens {self.overlong.buffer_tokens} must be less than "
                f"max_response_tokens {self.max_response_tokens}"
            )
        return self


class ProblemSlice(StrictParams):
    """Which part of the shuffled training problems a round draws from, so that rounds need not share any."""

    index: int = Field(ge=0)
    """From 0."""
    count: int = Field(ge=1)
    """Parts of equal size; 1 uses all problems."""

    @model_validator(mode="after")
    def _index_is_in_range(self) -> ProblemSlice:
        if self.index >= self.count:
            raise ValueError(f"index {self.index} must be less than count {self.count}")
        return self


class RoundParams(StrictParams):
    """Section `rl_rounds.<policy>`."""

    start_from: str
    """Policy that the round starts from."""
    steps: int = Field(ge=1)
    """Batches of rollouts; each makes `rl.minibatches` optimizer updates."""
    warmup_steps: int = Field(ge=0)
    """Linear warm-up from 0, in steps; the optimizer starts anew in each round."""
    problem_slice: ProblemSlice
