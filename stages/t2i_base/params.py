"""Parameters of stage t2i_base: where the base generator comes from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.engines.generators.params import GeneratorSizes
from stages.engines.trainers.params import OptimizerParams
from stages.foundations.params import StrictParams


class TrainedGenerator(StrictParams):
    """Trained from nothing on pictures of the shape world, whose prompts the train split must hold."""

    kind: Literal["train"]
    sizes: GeneratorSizes
    steps: int = Field(ge=1)
    """Optimizer updates."""
    batch_images: int = Field(ge=1)
    """Pictures of one update, over all ranks."""
    micro_batch_images: int = Field(ge=1)
    """Pictures in one forward pass."""
    empty_prompt_fraction: float = Field(ge=0, lt=1)
    """Share of pictures shown without their prompt, for guidance (arXiv 2207.12598: 0.1 to 0.2)."""
    weight_cap: float | None = Field(gt=0)
    """Cap of the weight 1 + SNR of a timestep's error, stages/engines/generators/denoising.py; null for no weight."""
    warmup_steps: int = Field(ge=0)
    """Linear warm-up from 0, then a cosine to the final fraction."""
    final_learning_rate_fraction: float = Field(ge=0, le=1)
    max_gradient_norm: float = Field(gt=0)
    optimizer: OptimizerParams
    validate_every_steps: int = Field(ge=1)
    validation_images: int = Field(ge=1)
    """Pictures of validation prompts, the same each time."""
    checkpoint_every_steps: int = Field(ge=1)
    """A killed run goes on from the last checkpoint."""

    @model_validator(mode="after")
    def _warmup_fits(self) -> TrainedGenerator:
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} must be less than steps {self.steps}")
        return self


class FolderGenerator(StrictParams):
    """A folder on this machine in diffusers' layout, safetensors only: nothing else of it is copied."""

    kind: Literal["folder"]
    path: str
    """Relative to the project's root, or absolute."""


T2iBaseParams = Annotated[TrainedGenerator | FolderGenerator, Field(discriminator="kind")]
