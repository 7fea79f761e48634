"""Folders of Parquet shards with pictures as PNG: written in order, read shard by shard or without the pictures."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy
import pandas
from PIL import Image

from stages.foundations.errors import UserError
from stages.foundations.files import replace_folder
from stages.foundations.tables import IMAGE, open_table, read_table, write_table

SHARD = "images-{:06d}.parquet"
MOST_PIXELS = 1 << 26
"""Most pixels of one picture of a shard: a larger one was not written here."""


def image_id(pixels: numpy.ndarray) -> str:
    """SHA-256 of the size and the RGB values of uint8[height, width, 3]: equal in any file format."""
    height, width, _ = pixels.shape
    # The size first: pictures of 7x5 and of 5x7 pixels may hold the same bytes.
    return hashlib.sha256(b"%dx%d\n" % (width, height) + numpy.ascontiguousarray(pixels).tobytes()).hexdigest()


def png_of(pixels: numpy.ndarray) -> bytes:
    """uint8[height, width, 3] as PNG without metadata; equal pixels give equal bytes with one version of Pillow."""
    file = io.BytesIO()
    # The level is stated: a new default of Pillow would change the bytes of every table.
    Image.fromarray(pixels).save(file, "PNG", compress_level=6)
    return file.getvalue()


def pixels_of(png: bytes) -> numpy.ndarray:
    """uint8[height, width, 3] of a PNG that `png_of` wrote. Foreign files go through the confined workers instead."""
    with Image.open(io.BytesIO(png), formats=("PNG",)) as image:
        if image.width * image.height > MOST_PIXELS:
            raise ValueError(f"a picture of {image.width} x {image.height} pixels is no picture of a shard")
        return numpy.asarray(image.convert("RGB"))


def image_row(
    pixels: numpy.ndarray, *, prompt_id: str, prompt: str, generator: str, seed: int, source: str, licence: str
) -> dict[str, Any]:
    """Returns a row of the `image` table for a picture made here: its file is the PNG itself."""
    height, width, _ = pixels.shape
    png = png_of(pixels)
    return {
        "image_id": image_id(pixels),
        "prompt_id": prompt_id,
        "prompt": prompt,
        "generator": generator,
        "seed": seed,
        "width": width,
        "height": height,
        "file_sha256": hashlib.sha256(png).hexdigest(),
        "source": source,
        "licence": licence,
        "png": png,
    }


def write_shard(rows: Iterable[Mapping[str, Any]], folder: Path, number: int) -> None:
    """Writes shard `number` (from 0) of a folder, atomically; equal rows give equal bytes."""
    write_table(list(rows), folder / SHARD.format(number), IMAGE)


def write_shards(rows: Iterable[Mapping[str, Any]], folder: Path, images_per_shard: int) -> int:
    """Replaces `folder` by shards of the rows, in order, and returns the number of rows.

    Holds at most the rows of one shard in memory. A folder of no rows has one empty shard.
    """
    left, count, number = iter(rows), 0, 0
    with replace_folder(folder) as beside:
        # No rows make one empty shard: a folder without shards counts as never made (`shards_of`).
        while (part := list(islice(left, images_per_shard))) or number == 0:
            write_shard(part, beside, number)
            count, number = count + len(part), number + 1
    return count


def shards_of(folder: Path) -> list[Path]:
    """Returns the shards under a folder, in order of their paths; those of all generators for a round's folder.

    UserError where there are none.
    """
    shards = written_shards(folder)
    if not shards:
        raise UserError(f"{folder} holds no images (*.parquet): run `dvc repro`, which makes them")
    return shards


def written_shards(folder: Path) -> list[Path]:
    """As `shards_of`, empty where there are none.

    A generator that was killed during writing leaves a hidden folder beside the complete ones.
    """
    return sorted(
        path
        for path in folder.rglob("*.parquet")
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def read_shards(folder: Path) -> Iterator[pandas.DataFrame]:
    """The `image` tables of `shards_of`, one at a time, pictures included."""
    for path in shards_of(folder):
        yield read_table(path, IMAGE)


def read_images(folders: Iterable[Path], image_ids: Collection[str]) -> Iterator[Any]:
    """Yields the rows of these images in the folders' shards, with pictures, as tuples with a name for each column."""
    wanted = set(image_ids)
    for folder in folders:
        for frame in read_shards(folder):
            yield from frame[frame["image_id"].isin(wanted)].itertuples()


def read_image_rows(folder: Path) -> pandas.DataFrame:
    """Returns all rows of `shards_of` without the column `png`: for a stage that needs no pixels."""
    names = [name for name in IMAGE.names if name != "png"]
    frames = []
    # `read_table` checks a schema, but it reads all columns: the pictures are nearly all of a shard's bytes.
    for path in shards_of(folder):
        with open_table(path) as file:
            columns = file.schema_arrow.names
            if missing := [name for name in IMAGE.names if name not in columns]:
                raise UserError(f"{path} lacks the columns {missing} of an {IMAGE.name} table; it has {columns}")
            frames.append(file.read(names).to_pandas())
    return pandas.concat(frames, ignore_index=True)
