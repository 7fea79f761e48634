"""Stage `t2i_base`: its section, its paths, and its description for other modules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.engines.trainers.params import TrainerParams, TrainingParams
from stages.foundations.params import StrictParams
from stages.foundations.stage import About, Stage
from stages.images.engines.generators.params import GeneratorSizes


class TrainedGenerator(TrainingParams):
    """Trained from random weights on pictures of the shape world, whose prompts must be in the train split."""

    kind: Literal["train"]
    sizes: GeneratorSizes
    batch_images: int = Field(ge=1)
    """Pictures of one update, over all ranks."""
    micro_batch_images: int = Field(ge=1)
    """Pictures in one forward pass."""
    empty_prompt_fraction: float = Field(ge=0, lt=1)
    """Share of pictures shown without their prompt, for guidance (arXiv 2207.12598: 0.1 to 0.2)."""
    weight_cap: float | None = Field(gt=0)
    """Cap of the weight 1 + SNR of a timestep's error (engines/generators/denoising.py); null for no weight."""
    validation_images: int = Field(ge=1)
    """Pictures of validation prompts, the same each time."""


class FolderGenerator(StrictParams):
    """A folder on this machine in diffusers' layout, safetensors only: no other file of it is copied."""

    kind: Literal["folder"]
    path: str
    """Relative to the project's root, or absolute."""


T2iBaseParams = Annotated[TrainedGenerator | FolderGenerator, Field(discriminator="kind")]


STAGE = Stage(
    sections={"seed": int, "trainer": TrainerParams, "t2i_base": T2iBaseParams},
    inputs={"prompts": "data/t2i/prompts.parquet"},
    outputs={
        "out": "data/generators/base",
        "curves": "data/curves/t2i_base.csv",
        "metrics": "data/metrics/t2i_base.json",
        "headline": "data/headline/t2i_base.json",
    },
    foreach="t2i",
    is_launched=True,
    depends_on_ranks=True,
    quick_imports=True,
)


ABOUT = About(
    description="The base generator of pictures.",
    plot=("loss/train", "Base generator"),
    headline=("loss/validation_last", "validation loss {:.3f}"),
    runs_model=lambda params: True,
    raw=lambda params: [params.get("t2i_base")],
    named_after=("policy",),
)
