"""The shape of a scorer, as in `scorer.json` in its folder, and the cost of a score, counted only from sizes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from stages.foundations.params import StrictParams
from stages.images.engines.pictures.params import Sha256

Variant = Literal["clip", "blip", "reward"]
"""Kinds of scores: cosine of the two encoders, matching head, reward head."""


class EncoderSizes(StrictParams):
    """Sizes of one transformer."""

    hidden_size: int = Field(ge=4)
    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    feed_forward_size: int = Field(ge=4)


class RewardHeadSizes(StrictParams):
    """A stack of linear layers from the text encoder's width down to one number, without activations between them."""

    widths: list[int]
    """Outputs of all layers except the last (ImageReward: 1024, 128, 64, 16); none for one linear layer."""
    dropouts: list[float]
    """Dropout after each of the first layers (ImageReward: 0.2, 0.2, 0.1)."""


class ScorerConfig(StrictParams):
    """Everything except weights and tokenizer."""

    vision: EncoderSizes
    text: EncoderSizes
    image_size: int = Field(ge=1)
    """Height and width of the picture that the network sees, in pixels."""
    patch_size: int = Field(ge=1)
    pixel_mean: tuple[float, float, float]
    """Mean of red, green and blue, which are in 0..1; it is subtracted."""
    pixel_std: tuple[float, float, float]
    """The difference is divided by it."""
    vocabulary: int = Field(ge=1)
    """Rows of the word embedding."""
    max_text_tokens: int = Field(ge=2)
    """Longer prompts are cut."""
    text_positions: int = Field(ge=2)
    """Rows of the position embedding."""
    text_dropout: float = Field(ge=0, lt=1)
    """Dropout in training, of hidden states and attention (BERT: 0.1)."""
    projection_size: int | None = Field(ge=1)
    """Width of the space in which `clip` takes the cosine; null: the folder has no projections."""
    has_matching_head: bool
    matching_token_id: int | None
    """Token in place of the first one for the matching head: [ENC] in BLIP's weights; null keeps [CLS]."""
    reward_head: RewardHeadSizes | None
    reward_mean: float
    """Mean of the raw reward on validation images; it is subtracted."""
    reward_std: float = Field(gt=0)


class PinnedWeights(StrictParams):
    """A weights file of this machine."""

    path: str
    """A `.safetensors` file, relative to the project's root, or absolute. Pickles (`.pth`) are rejected, because they
    can run code."""
    sha256: Sha256
    """Hash of the file's bytes. A file with other bytes is rejected."""

    @field_validator("path")
    @classmethod
    def _is_no_pickle(cls, path: str) -> str:
        if not path.endswith(".safetensors"):
            raise ValueError(f"{path} is no .safetensors file, and a pickle can run code: convert it outside Retrace")
        return path


class AestheticParams(StrictParams):
    """LAION's aesthetic score: its two files. It reads no prompt."""

    clip: PinnedWeights
    """CLIP ViT-L/14 as transformers saves it: `model.safetensors` of openai/clip-vit-large-patch14."""
    head: PinnedWeights
    """The linear layers above the embedding, such as those of `sac+logos+ava1-l14-linearMSE.pth`, converted."""
