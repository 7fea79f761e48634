"""The pictures of a pool as a scorer takes them: its size, bytes, by image id."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from pathlib import Path

import numpy
import pandas
import torch
from torch import Tensor

from stages.engines.image_scorers.scorer import fit_to_square
from stages.engines.images.shards import pixels_of, read_shards
from stages.foundations.errors import UserError


class Pictures:
    """Pictures in memory, fitted to the scorer's square and rounded to bytes as if they had been saved so."""

    def __init__(self, rows: pandas.DataFrame, pixels: dict[str, Tensor]) -> None:
        self.rows = rows
        """The pool's rows of these pictures without the column `png`; the index is the image id."""
        self._pixels = pixels

    def images(self, image_ids: Collection[str]) -> Tensor:
        """float[N, 3, side, side] in 0..1, in this order."""
        return torch.stack([self._pixels[one] for one in image_ids]).float() / 255

    def prompts(self, image_ids: Collection[str]) -> list[str]:
        """The prompt of each."""
        return self.rows["prompt"].loc[list(image_ids)].tolist()


def load_pictures(pools: Sequence[Path], image_ids: Collection[str], side: int) -> Pictures:
    """The pictures with these ids out of the pools' shards, fitted to `side`; UserError when one is not there."""
    wanted, pixels, kept = set(image_ids), {}, []
    for frame in chain.from_iterable(map(read_shards, pools)):
        frame = frame[frame["image_id"].isin(wanted)]
        for name, png in zip(frame["image_id"], frame["png"], strict=True):
            pixels[name] = _fitted(pixels_of(png), side)
        kept.append(frame.drop(columns="png"))
    missing = sorted(wanted - pixels.keys())
    if missing:
        raise UserError(
            f"{' and '.join(map(str, pools))} lack {len(missing)} of {len(wanted)} images that were "
            f"ranked, {missing[0]} for one: run `dvc repro`, so that pool and annotations belong together"
        )
    rows = pandas.concat(kept, ignore_index=True).drop_duplicates("image_id").set_index("image_id")
    return Pictures(rows, pixels)


def _fitted(pixels: numpy.ndarray, side: int) -> Tensor:
    image = torch.from_numpy(numpy.array(pixels)).permute(2, 0, 1)
    if image.shape[-2:] == (side, side):
        return image.contiguous()
    return fit_to_square(image[None].float(), side)[0].round().clamp(0, 255).to(torch.uint8)
