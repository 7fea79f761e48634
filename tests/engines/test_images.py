"""Hostile image files are decoded to RGB in another process; shards of pictures are read as they were written.

tests/stages/test_image_pool.py tests which files are rejected, and why.
"""

import hashlib
import io
import os

import numpy
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from stages.foundations.errors import UserError
from stages.foundations.seeds import derive_seed
from stages.images.engines.pictures.params import ImageParams
from stages.images.engines.pictures.shards import (
    image_id,
    pixels_of,
    png_of,
    read_image_rows,
    read_shards,
    shards_of,
    write_shards,
)
from stages.images.image_pool.run import ImageDecoder
from tests.fakes.hostile_images import GRADIENT, LIMITS, TAKEN, png
from tests.fakes.one_stage import picture_row


@pytest.fixture(scope="module")
def decoder():
    with ImageDecoder(ImageParams.model_validate(LIMITS)) as pool:
        yield pool


def test_what_they_become(decoder):
    files = [TAKEN[name] for name in ("alpha", "sixteen_bits", "turned")]
    alpha, deep, turned = (one["pixels"] for one in decoder.decode(files))
    assert (alpha[:20] == GRADIENT[:20]).all() and (alpha[20:] == 255).all()
    assert (deep == GRADIENT[:, :, :1]).all()
    assert turned.shape == (32, 40, 3)
    assert abs(turned.astype(int) - numpy.rot90(GRADIENT, -1)).mean() < 12  # JPEG loses a little


def test_a_worker_that_dies_costs_one_image(monkeypatch):
    monkeypatch.setattr("stages.images.image_pool.run.decode", os._exit)
    with ImageDecoder(ImageParams.model_validate(LIMITS)) as pool:
        pool._pool.submit = lambda **_: type(pool._pool).submit(pool._pool, status=3)
        (found,) = pool.decode([png()])
    assert found["reason"] == "image_broken" and "crashed exit code 3" in found["detail"]


def picture(number):
    return numpy.random.default_rng(number).integers(0, 256, (5, 7, 3), dtype=numpy.uint8)


def row(number):
    prompt = f"a prompt <b>{number}</b>"
    return picture_row(picture(number), prompt, seed=derive_seed(prompt, number) if number else -1)


@pytest.mark.parametrize("count, files", [(0, 1), (3, 1), (4, 1), (9, 3)])
def test_what_is_written_is_read_back_in_order(tmp_path, count, files):
    rows = [row(number) for number in range(count)]
    assert write_shards(iter(rows), tmp_path / "images", images_per_shard=4) == count
    assert len(shards_of(tmp_path / "images")) == files
    read = [one for frame in read_shards(tmp_path / "images") for one in frame.to_dict("records")]
    assert read == rows  # including 63-bit seeds and an unknown one
    assert all(numpy.array_equal(pixels_of(one["png"]), picture(place)) for place, one in enumerate(read))
    light = read_image_rows(tmp_path / "images")
    assert "png" not in light and light["image_id"].tolist() == [one["image_id"] for one in rows]


def test_a_picture_is_named_by_its_pixels_and_size_whatever_file_it_came_in():
    pixels = picture(1)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "BMP")
    assert image_id(numpy.asarray(Image.open(file))) == image_id(pixels)
    assert image_id(pixels) == hashlib.sha256(b"7x5\n" + pixels.tobytes()).hexdigest()
    assert image_id(pixels.reshape(7, 5, 3)) != image_id(pixels)
    assert image_id(pixels[:, ::-1]) == image_id(pixels[:, ::-1].copy()) != image_id(pixels)


def test_png_holds_no_metadata_and_is_stable():
    assert png_of(picture(2)) == png_of(picture(2))
    assert not Image.open(io.BytesIO(png_of(picture(2)))).info


def test_a_round_reads_the_shards_of_all_its_generators(tmp_path):
    for name in ("b", "a"):
        write_shards([row(1)], tmp_path / name, 4)
    assert len(read_image_rows(tmp_path)) == 2
    with pytest.raises(UserError, match="holds no images"):
        shards_of(tmp_path / "c")


def test_a_table_without_pictures_is_refused(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"image_id": ["a"]}), tmp_path / "x.parquet")
    with pytest.raises(UserError, match="lacks the columns"):
        read_image_rows(tmp_path)
    with pytest.raises(UserError, match="lacks the columns"):
        list(read_shards(tmp_path))


def test_what_a_killed_generator_left_half_written_is_not_read(tmp_path):
    for place in ("main", ".main.7.partial", "guided"):
        write_shards([row(1)], tmp_path / place, 4)
    assert [path.parent.name for path in shards_of(tmp_path)] == ["guided", "main"]
