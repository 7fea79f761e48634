"""Parameters of the `sft` stage."""

from __future__ import annotations

from pydantic import Field, model_validator

from stages.engines.trainers.params import OptimizerParams
from stages.foundations.params import StrictParams


class SftParams(StrictParams):
    """Section `sft`."""

    steps: int = Field(ge=1)
    """Optimizer updates."""
    batch_demonstrations: int = Field(ge=1)
    """Demonstrations of one update, over all ranks."""
    max_sequence_tokens: int = Field(ge=8)
    """Prompt and response tokens; a longer demonstration is dropped and counted. Also the length of a packed row."""
    warmup_steps: int = Field(ge=0)
    """Linear warm-up from 0."""
    final_learning_rate_fraction: float = Field(ge=0, le=1)
    """Share of the peak learning rate that the cosine schedule ends at."""
    max_gradient_norm: float = Field(gt=0)
    """Gradients are clipped to this norm."""
    validate_every_steps: int = Field(ge=1)
    checkpoint_every_steps: int = Field(ge=1)
    """A killed run goes on from the last checkpoint."""
    optimizer: OptimizerParams

    @model_validator(mode="after")
    def _warmup_fits(self) -> SftParams:
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} must be less than steps {self.steps}")
        return self
