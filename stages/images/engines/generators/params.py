"""Sizes of a generator that is trained from random weights."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from stages.foundations.params import StrictParams

CHANNEL_GROUPS = 8
"""Groups of the group normalisation, which must divide every number of channels: diffusers' 32 are too many here."""


class GeneratorSizes(StrictParams):
    """A small U-Net on pixels folded into channels, and a small text encoder."""

    image_side: int = Field(ge=4)
    """Pixels of a side of the square pictures."""
    patch_side: int = Field(ge=1)
    """Pixels of a side that are folded into channels: 4 makes 24x24x3 a latent of 6x6x48, and loses nothing."""
    channels: tuple[int, ...] = Field(min_length=1)
    """Channels of each level of the U-Net, each at half the side; from the second on it attends to the prompt."""
    layers_per_block: int = Field(ge=1)
    attention_heads: int = Field(ge=1)
    text_width: int = Field(ge=8)
    text_layers: int = Field(ge=1)
    text_heads: int = Field(ge=1)
    max_prompt_tokens: int = Field(ge=2)
    """A prompt is cut or padded to this length."""
    prediction_type: Literal["sample", "epsilon", "v_prediction"]
    """The U-Net's prediction target. `sample` for folded pixels: noise does not fit through so few channels."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> GeneratorSizes:
        # Every level except the first halves the side, so the side must be divisible that often.
        shrunk = self.patch_side * 2 ** (len(self.channels) - 1)
        if self.image_side % shrunk:
            raise ValueError(
                f"image_side {self.image_side} must be a multiple of {shrunk}: patch_side {self.patch_side}, halved "
                f"{len(self.channels) - 1} times"
            )
        odd = [width for width in self.channels if width % CHANNEL_GROUPS or width % self.attention_heads]
        if odd:
            raise ValueError(
                f"channels {odd} must be multiples of {CHANNEL_GROUPS} and of attention_heads {self.attention_heads}"
            )
        if self.text_width % self.text_heads:
            raise ValueError(f"text_width {self.text_width} must be a multiple of text_heads {self.text_heads}")
        return self
