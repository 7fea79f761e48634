"""Versions of weights in a folder: complete or absent, readable during removal, rejected if there is no room."""

import os
import shutil
import subprocess
import sys
from collections import namedtuple

import pytest
import safetensors.torch
import torch

from stages.engines.relays import published_weights
from stages.engines.relays.published_weights import PublishedWeights, VersionGone
from stages.foundations.errors import UserError
from tests.fakes.small_disks import mount_small


def tensors(seed=0, count=3):
    generator = torch.Generator().manual_seed(seed)
    yield from ((f"layer.{n}", torch.randn(40, 50, generator=generator)) for n in range(count))
    yield "half", torch.randn(7, generator=generator).to(torch.bfloat16)
    yield "flags", torch.tensor([True, False, True])
    yield "counts", torch.arange(5)
    yield "scalar", torch.tensor(2.5)
    yield "empty", torch.zeros(0, 3)
    yield "turned", torch.randn(4, 6, generator=generator).t()


def as_loaded(weights, version):
    return dict(weights.load(version)[1])


def is_same(loaded, seed=0):
    expected = dict(tensors(seed))
    return loaded.keys() == expected.keys() and all(
        torch.equal(loaded[name], tensor) and loaded[name].dtype == tensor.dtype for name, tensor in expected.items()
    )


def test_a_version_comes_back_with_its_metadata(tmp_path, monkeypatch):
    monkeypatch.setattr(published_weights, "SHARD_BYTES", 9000)
    weights = PublishedWeights(tmp_path / "w", chunk_bytes=1000)
    logprobs = [-0.1, -1 / 3, -2e-17]
    manifest = weights.publish(3, tensors(), {"logprobs": logprobs})
    assert len(manifest.files) > 1
    reader = PublishedWeights(tmp_path / "w")
    metadata, _ = reader.load(3)
    assert metadata == {"logprobs": logprobs}
    assert is_same(as_loaded(reader, 3))
    assert reader.manifest(3) == manifest
    assert reader.versions() == [3]


def test_the_library_reads_the_files_as_its_own(tmp_path):
    manifest = PublishedWeights(tmp_path / "w").publish(0, tensors())
    assert is_same(safetensors.torch.load_file(tmp_path / "w" / "00000000" / manifest.files[0].name))


def test_a_removed_version_stays_whole_for_who_reads_it(tmp_path, monkeypatch):
    monkeypatch.setattr(published_weights, "SHARD_BYTES", 9000)
    weights = PublishedWeights(tmp_path / "w")
    assert weights.newest() is None
    for version in range(4):
        weights.publish(version, tensors(version))
    _, reading = weights.load(0)
    first = next(reading)
    assert weights.prune(keep=2) == [0, 1]
    assert is_same(dict([first, *reading]))
    assert weights.versions() == [2, 3]
    with pytest.raises(VersionGone, match="version 0"):
        weights.load(0)
    assert weights.newest() == 3


def test_the_same_version_again_is_left_and_another_one_takes_its_place(tmp_path):
    weights = PublishedWeights(tmp_path / "w")
    weights.publish(5, tensors())
    before = os.stat(weights.folder / "00000005").st_ino
    weights.publish(5, tensors())
    assert os.stat(weights.folder / "00000005").st_ino == before
    weights.publish(5, tensors(seed=1))
    assert is_same(as_loaded(weights, 5), seed=1)
    assert [path.name for path in weights.folder.iterdir()] == ["00000005"]


@pytest.mark.parametrize("free", [published_weights.SPARE_BYTES, published_weights.SPARE_BYTES + 5000])
def test_no_room_is_one_sentence_and_nothing_lost(tmp_path, monkeypatch, free):
    weights = PublishedWeights(tmp_path / "w")
    weights.publish(1, tensors())
    usage = namedtuple("usage", "total used free")(0, 0, free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match=r"no room for .* MiB .*rl\.loop\.relay\.keep"):
        weights.publish(2, tensors())
    assert [path.name for path in weights.folder.iterdir()] == ["00000001"]
    assert is_same(as_loaded(weights, 1))


def test_a_full_memory_is_an_error_and_no_half_version(tmp_path, monkeypatch):
    """This also holds if others fill the memory after the check for room: here there is no check at all."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount_small(disk, 400 << 10)
    try:
        weights = PublishedWeights(disk / "w")
        monkeypatch.setattr(published_weights, "require_room", lambda folder, size: None)
        weights.publish(1, tensors())
        with pytest.raises(UserError, match="no room"):
            weights.publish(2, tensors(count=60))
        assert [path.name for path in weights.folder.iterdir()] == ["00000001"]
        assert is_same(as_loaded(weights, 1))
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_what_a_killed_writer_left_is_removed(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    folder = tmp_path / "w"
    for pid in (gone.pid, os.getpid()):
        (folder / f".00000002.{pid}.partial").mkdir(parents=True)
    assert PublishedWeights(folder).versions() == []
    assert [path.name for path in folder.iterdir()] == [f".00000002.{os.getpid()}.partial"]


def test_readers_never_see_half_a_version(tmp_path):
    """A writer in another process replaces and removes versions as fast as it can."""
    folder = tmp_path / "w"
    weights = PublishedWeights(folder)
    program = f"""
import sys, torch
sys.path.insert(0, {os.getcwd()!r})
from pathlib import Path
from stages.engines.relays.published_weights import PublishedWeights
weights = PublishedWeights(Path({str(folder)!r}))
for version in range(60):
    weights.publish(version, ((f"w{{n}}", torch.full((100,), float(version))) for n in range(3)), {{"v": version}})
    weights.prune(2)
"""
    writer = subprocess.Popen([sys.executable, "-c", program])
    seen = set()
    while writer.poll() is None or not seen:
        newest = weights.newest()
        if newest is None:
            continue
        try:
            metadata, named = weights.load(newest)
        except VersionGone:
            continue
        values = {float(value) for _, tensor in named for value in tensor}
        assert values == {float(newest)} and metadata == {"v": newest}
        seen.add(newest)
    assert writer.returncode == 0
    assert len(seen) > 5
