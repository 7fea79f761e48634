"""What a scorer folder says of its network, in `scorer.json`: sizes, pixels, text, heads and normalisation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stages.foundations.params import StrictParams

Variant = Literal["clip", "blip", "reward"]
"""What is asked of a scorer: cosine of the two encoders, matching head, reward head."""


class EncoderSizes(StrictParams):
    """Sizes of one transformer."""

    hidden_size: int = Field(ge=4)
    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    feed_forward_size: int = Field(ge=4)


class RewardHeadSizes(StrictParams):
    """A stack of linear layers from the text encoder's width down to one number, without activations between them."""

    widths: list[int]
    """Outputs of all layers but the last (ImageReward: 1024, 128, 64, 16); none for one linear layer."""
    dropouts: list[float]
    """Dropout after each of the first layers (ImageReward: 0.2, 0.2, 0.1)."""


class ScorerConfig(StrictParams):
    """Everything but weights and tokenizer."""

    vision: EncoderSizes
    text: EncoderSizes
    image_size: int = Field(ge=1)
    """Height and width of the picture that the network sees, in pixels."""
    patch_size: int = Field(ge=1)
    pixel_mean: tuple[float, float, float]
    """Of red, green and blue, which lie in 0..1; taken off."""
    pixel_std: tuple[float, float, float]
    """What is left is divided by it."""
    vocabulary: int = Field(ge=1)
    """Rows of the word embedding."""
    max_text_tokens: int = Field(ge=2)
    """Longer prompts are cut."""
    text_positions: int = Field(ge=2)
    """Rows of the position embedding."""
    text_dropout: float = Field(ge=0, lt=1)
    """In training, of hidden states and attention (BERT: 0.1)."""
    projection_size: int | None = Field(ge=1)
    """Width of the space in which `clip` takes the cosine; null: the folder has no projections."""
    has_matching_head: bool
    matching_token_id: int | None
    """Token in place of the first one for the matching head: [ENC] in BLIP's own weights; null leaves [CLS]."""
    reward_head: RewardHeadSizes | None
    reward_mean: float
    """Mean of the raw reward on validation images, taken off."""
    reward_std: float = Field(gt=0)
