"""image_pool: images of generators and of a list, each once; every other image has a reason."""

import hashlib
import json

import numpy
import pytest

from stages.foundations.errors import UserError
from stages.foundations.tables import DROPPED, read_table
from stages.images.engines.pictures.shards import image_id, pixels_of, read_shards, write_shards
from tests.fakes.hostile_images import GRADIENT, LIMITS, REFUSED, TAKEN, png
from tests.fakes.one_stage import picture_row, run_stage, write_prompts

FIRST, SECOND = (GRADIENT + numpy.uint8(9)), (GRADIENT + numpy.uint8(20))


def run(tmp_path, rows=(), listed=None, files=None):
    shards, folder = tmp_path / "generated", tmp_path / "foreign"
    shards.mkdir(exist_ok=True), folder.mkdir(exist_ok=True)
    if rows:
        write_shards(rows, shards / "base", 100)
    foreign = None
    if listed is not None:
        for name, content in (files or {}).items():
            (folder / name).write_bytes(content)
        path = tmp_path / "list.jsonl"
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in listed))
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        foreign = {"folder": str(folder), "list_path": str(path), "sha256": sha256}
    write_prompts(tmp_path / "prompts", {"a cat": "train", "a dog": "train"})
    round_1 = {"foreign": foreign, "annotations": None, "also": "round_1"}
    sections = {"images": LIMITS, "ranking_rounds": {"round_1": round_1}}
    metrics = run_stage("image_pool@round_1", tmp_path, sections)
    rows = [row for frame in read_shards(tmp_path / "pool") for row in frame.to_dict("records")]
    return rows, read_table(tmp_path / "dropped", DROPPED), metrics


def test_generated_images_come_through_with_what_is_known_of_them(tmp_path):
    given = [picture_row(FIRST, "a cat"), picture_row(SECOND, "a dog", generator="refl", seed=2**62 + 1)]
    rows, dropped, metrics = run(tmp_path, given)
    assert rows == given and dropped.empty
    assert metrics == {"rows/in": 2, "rows/kept": 2, "images/generated": 2, "prompts/with_images": 2}


def test_an_image_is_taken_once_by_its_pixels_whatever_the_file_claims(tmp_path):
    given = [picture_row(pixels, "a cat", seed=seed) for pixels, seed in ((FIRST, 1), (FIRST, 6), (SECOND, 2))]
    given[2]["image_id"] = "0" * 64
    rows, dropped, metrics = run(tmp_path, given)
    assert [row["image_id"] for row in rows] == [image_id(FIRST), image_id(SECOND)]
    assert metrics["dropped/duplicate_image"] == 1 and image_id(FIRST) in dropped["detail"][0]


def test_every_bad_foreign_image_is_a_counted_reason(tmp_path):
    bad = [(reason, content) for reason, contents in REFUSED.items() for content in contents]
    files = {f"{i}.png": content for i, (_, content) in enumerate(bad)} | {"good.png": png(), "twin.jpg": png()}
    listed = [{"image": name, "prompt": "a cat"} for name in files]
    listed += [
        {"image": "good.png", "prompt": "a cow"},
        {"image": "none.png", "prompt": "a cat"},
        {"image": "../list.jsonl", "prompt": "a cat"},
        {"image": "x\0y", "prompt": "a cat"},
        {"image": "good.png", "prompt": "a cat", "sha256": "0" * 64},
        {"image": 3, "prompt": "a cat"},
        "not json",
        "[" * 100_000,
    ]
    rows, dropped, metrics = run(tmp_path, listed=listed, files=files)
    assert [row["source"] for row in rows] == ["good.png"] and rows[0]["seed"] == -1
    expected = {reason: len(contents) for reason, contents in REFUSED.items()} | {
        "duplicate_image": 1,
        "unknown_prompt": 1,
        "image_missing": 3,
        "image_changed": 1,
        "malformed_row": 3,
    }
    assert dropped["reason"].value_counts().to_dict() == expected
    assert not dropped["detail"].str.contains(" at 0x").any(), "an address in memory differs between equal runs"
    assert {f"dropped/{name}": count for name, count in expected.items()}.items() <= metrics.items()


def test_unusual_and_mislabelled_images_are_taken_and_counted(tmp_path):
    files = {f"{name}.webp": content for name, content in TAKEN.items()}
    listed = [{"image": name, "prompt": "a dog", "generator": "g", "licence": "CC0"} for name in files]
    rows, _, metrics = run(tmp_path, listed=listed, files=files)
    assert len(rows) == len(TAKEN) == metrics["images/foreign"] == metrics["image_mode/mislabelled"]
    assert all(metrics[f"image_mode/{change}"] >= 1 for change in TAKEN)
    assert all(pixels_of(row["png"]).shape[2] == 3 and b"Exif" not in row["png"] for row in rows)


def test_half_characters_and_other_lists_are_told(tmp_path):
    listed = ['{"image": "\\ud800.png", "prompt": "\\ud800"}', {"image": "a.png", "prompt": "a cat"}]
    _, dropped, _ = run(tmp_path, listed=listed, files={"a.png": png()})
    assert dropped["reason"].tolist() == ["image_missing"]
    (tmp_path / "list.jsonl").write_text("{}")
    with pytest.raises(UserError, match="has sha256"):
        run_stage("image_pool@round_1", tmp_path)


def test_a_round_without_images_is_told(tmp_path):
    with pytest.raises(UserError, match="round `round_1` has no image"):
        run(tmp_path)
