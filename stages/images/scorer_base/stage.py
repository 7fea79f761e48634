"""Stage `scorer_base`: its section, its paths, and its description for other modules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.engines.trainers.params import TrainerParams, TrainingParams
from stages.foundations.params import StrictParams
from stages.foundations.stage import About, Stage
from stages.images.engines.image_scorers.config import EncoderSizes


class TaughtScorer(TrainingParams):
    """A small scorer that learns captions of the shape world from rendered pictures."""

    kind: Literal["train"]
    vision: EncoderSizes
    text: EncoderSizes
    image_size: int = Field(ge=8)
    """Height and width of the picture that the network sees, in pixels."""
    patch_size: int = Field(ge=1)
    max_text_tokens: int = Field(ge=4)
    """Words and two marks; longer prompts are cut."""
    projection_size: int = Field(ge=2)
    """Width of the space of the contrastive score."""
    initializer_range: float = Field(gt=0)
    """Standard deviation of the initial weights."""
    position_range: float = Field(gt=0)
    """Standard deviation of the initial patch positions: about the spread of a patch's pixels, or places get lost."""
    pictures_per_caption: int = Field(ge=1)
    """Pictures of each caption, rendered once and sampled at every step."""
    false_captions: int = Field(ge=1)
    """Captions with one thing changed beside each true one."""
    max_pixel_noise: float = Field(ge=0, lt=1)
    """Largest standard deviation of the noise on a picture, of 1: generators' pictures are noisier than renders."""
    batch_captions: int = Field(ge=2)
    """Captions of one update, over all ranks, each with one picture."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> TaughtScorer:
        for name, sizes in (("vision", self.vision), ("text", self.text)):
            if sizes.hidden_size % sizes.heads:
                raise ValueError(f"{name}.hidden_size {sizes.hidden_size} must be a multiple of heads {sizes.heads}")
        if self.image_size % self.patch_size:
            raise ValueError(f"image_size {self.image_size} must be a multiple of patch_size {self.patch_size}")
        return self


class ReleasedScorer(StrictParams):
    """Weights published by BLIP or ImageReward, converted without running their code (see reward-models.md in docs)."""

    kind: Literal["released"]
    path: str
    """`model_large.pth`, `ImageReward.pt`; relative to the project's root, or absolute."""
    sha256: str | None = Field(pattern=r"^[0-9a-f]{64}$")
    """Hash of the file; null accepts any file, and DVC does not notice when it changes."""
    tokenizer: str
    """`vocab.txt` or `tokenizer.json` of bert-base-uncased."""


class FolderScorer(StrictParams):
    """A scorer folder on this machine."""

    kind: Literal["folder"]
    path: str
    """Relative to the project's root, or absolute."""


ScorerBaseParams = Annotated[TaughtScorer | ReleasedScorer | FolderScorer, Field(discriminator="kind")]


STAGE = Stage(
    sections={"seed": int, "trainer": TrainerParams, "scorer_base": ScorerBaseParams},
    inputs={"prompts": "data/t2i/prompts.parquet"},
    outputs={
        "out": "data/image_scorers/base",
        "curves": "data/curves/scorer_base.csv",
        "metrics": "data/metrics/scorer_base.json",
        "headline": "data/headline/scorer_base.json",
    },
    foreach="t2i",
    quick_imports=True,
)


ABOUT = About(
    description="The base scorer of pictures, from which reward models start.",
    plot=("loss/train", "Base scorer"),
    headline=("loss/validation", "validation loss {:.3f}"),
    runs_model=lambda params: True,
    raw=lambda params: [params.get("scorer_base")],
)
