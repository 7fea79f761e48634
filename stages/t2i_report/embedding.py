"""Pictures inside the page: small enough, and all of them together within a limit."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy
from PIL import Image

from stages.engines.images.shards import pixels_of, png_of
from stages.foundations.errors import UserError

LEAST_SIDE = 16


@dataclass(frozen=True)
class Embedded:
    """A picture as the page holds it."""

    uri: str
    width: int
    height: int
    is_small: bool
    """Its pixels are as they were: the page enlarges them without blurring."""


def embed(pngs: Mapping[str, bytes], side: int, most_mib: float) -> dict[str, Embedded]:
    """Each picture as a data URI, its longest side at most `side` pixels, less where all would be over the limit.

    UserError when they are over it at 16 pixels.
    """
    while True:
        found = {name: _scaled(png, side) for name, png in pngs.items()}
        total = sum(len(png) for png, _ in found.values())
        if total <= most_mib * 2**20:
            return {name: _embedded(png, is_small) for name, (png, is_small) in found.items()}
        if side == LEAST_SIDE:
            raise UserError(
                f"{len(pngs)} pictures are {total / 2**20:.1f} MiB at {side} pixels: show fewer (t2i_report.shown_*), "
                "or raise t2i_report.max_pictures_mib"
            )
        side = max(
            LEAST_SIDE, side * 3 // 4
        )  # about half the bytes; again from the originals, not from these


def _scaled(png: bytes, side: int) -> tuple[bytes, bool]:
    """The picture, and whether it is as it was."""
    pixels = pixels_of(png)
    height, width, _ = pixels.shape
    if max(height, width) <= side:
        return png, True
    scale = side / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return png_of(numpy.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS))), False


def _embedded(png: bytes, is_small: bool) -> Embedded:
    with Image.open(io.BytesIO(png), formats=("PNG",)) as image:
        width, height = image.size
    return Embedded(f"data:image/png;base64,{base64.b64encode(png).decode()}", width, height, is_small)
