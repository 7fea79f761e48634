"""Hostile files end as reasons, unusual ones as RGB, and none of them is decoded in this process."""

import os
import re

import numpy
import pytest

from stages.engines.images.decoder import ImageDecoder
from stages.engines.images.params import ImageParams
from tests.fakes.hostile_images import GRADIENT, REFUSED, TAKEN, png, saved

LIMITS = ImageParams(
    max_pixels=65_536,
    max_file_mib=1.0,
    min_side=8,
    timeout_seconds=5.0,
    memory_mib=512,
    workers=1,
    images_per_shard=100,
)


@pytest.fixture(scope="module")
def decoder():
    with ImageDecoder(LIMITS) as pool:
        yield pool


@pytest.mark.parametrize("reason", REFUSED)
def test_each_bad_file_has_its_reason_and_the_next_one_is_fine(decoder, reason):
    found = decoder.decode([*REFUSED[reason], png()])
    assert [one.reason for one in found[:-1]] == [reason] * len(REFUSED[reason]), [one.detail for one in found]
    assert all(one.detail for one in found[:-1])
    assert (found[-1].pixels == GRADIENT).all() and found[-1].changes == ()


@pytest.mark.parametrize("change", TAKEN)
def test_unusual_images_become_rgb_and_are_counted(decoder, change):
    (found,) = decoder.decode([TAKEN[change]])
    assert change in found.changes and found.pixels.dtype == numpy.uint8 and found.pixels.shape[2] == 3


def test_what_they_become(decoder):
    alpha, deep, turned = decoder.decode([TAKEN[name] for name in ("alpha", "sixteen_bits", "turned")])
    assert (alpha.pixels[:20] == GRADIENT[:20]).all() and (alpha.pixels[20:] == 255).all()
    assert (deep.pixels == GRADIENT[:, :, :1]).all()
    assert turned.pixels.shape == (32, 40, 3)
    assert abs(turned.pixels.astype(int) - numpy.rot90(GRADIENT, -1)).mean() < 12  # JPEG loses a little


def test_a_worker_that_dies_costs_one_image(monkeypatch):
    monkeypatch.setattr("stages.engines.images.decoder.decode", os._exit)
    with ImageDecoder(LIMITS) as pool:
        pool._pool.submit = lambda **_: type(pool._pool).submit(pool._pool, status=3)
        (found,) = pool.decode([png()])
    assert found.reason == "image_broken" and re.search("crashed exit code 3", found.detail)


def test_the_same_pixels_in_another_format_are_the_same_image(decoder):
    from PIL import Image

    first, second = decoder.decode([png(), saved(Image.fromarray(GRADIENT), "WEBP", lossless=True)])
    assert (first.pixels == second.pixels).all() and (first.form, second.form) == ("png", "webp")
