"""Parameters of which problems a round draws and which groups it trains on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.foundations.params import StrictParams


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
    count: int = Field(ge=1)
    """Parts of equal size; 1 uses all problems."""

    @model_validator(mode="after")
    def _index_is_in_range(self) -> ProblemSlice:
        if self.index >= self.count:
            raise ValueError(f"index {self.index} must be less than count {self.count}")
        return self
