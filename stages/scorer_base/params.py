"""Parameters of the `scorer_base` stage: where the first scorer of pictures comes from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.engines.image_scorers.config import EncoderSizes
from stages.engines.trainers.params import OptimizerParams
from stages.foundations.params import StrictParams


class TaughtScorer(StrictParams):
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
    """Of the initial positions of patches: about the spread of what a patch's pixels come to, or places drown in it."""
    pictures_per_caption: int = Field(ge=1)
    """Rendered once, drawn from at every step."""
    false_captions: int = Field(ge=1)
    """Captions with one thing changed beside each true one."""
    max_pixel_noise: float = Field(ge=0, lt=1)
    """Largest standard deviation of the noise on a picture, of 1: generators' pictures are less clean than renders."""
    steps: int = Field(ge=1)
    batch_captions: int = Field(ge=2)
    """Captions of one update, over all ranks, each with one picture."""
    warmup_steps: int = Field(ge=0)
    """Linear warm-up from 0."""
    final_learning_rate_fraction: float = Field(ge=0, le=1)
    """Share of the peak learning rate that the cosine schedule ends at."""
    max_gradient_norm: float = Field(gt=0)
    validate_every_steps: int = Field(ge=1)
    checkpoint_every_steps: int = Field(ge=1)
    """A killed run goes on from the last checkpoint; one is made after every validation too."""
    optimizer: OptimizerParams

    @model_validator(mode="after")
    def _sizes_fit(self) -> TaughtScorer:
        for name, sizes in (("vision", self.vision), ("text", self.text)):
            if sizes.hidden_size % sizes.heads:
                raise ValueError(f"{name}.hidden_size {sizes.hidden_size} must be a multiple of heads {sizes.heads}")
        if self.image_size % self.patch_size:
            raise ValueError(f"image_size {self.image_size} must be a multiple of patch_size {self.patch_size}")
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} must be less than steps {self.steps}")
        return self


class ReleasedScorer(StrictParams):
    """Weights that BLIP or ImageReward published, converted without running code of theirs (docs/reward-models.md)."""

    kind: Literal["released"]
    path: str
    """`model_large.pth`, `ImageReward.pt`; relative to the project's root, or absolute."""
    sha256: str | None = Field(pattern=r"^[0-9a-f]{64}$")
    """Hash of the file; null takes whatever lies there, and DVC does not see when it changes."""
    tokenizer: str
    """`vocab.txt` or `tokenizer.json` of bert-base-uncased."""


class FolderScorer(StrictParams):
    """A scorer folder on this machine."""

    kind: Literal["folder"]
    path: str
    """Relative to the project's root, or absolute."""


ScorerBaseParams = Annotated[TaughtScorer | ReleasedScorer | FolderScorer, Field(discriminator="kind")]
