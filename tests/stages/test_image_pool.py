"""image_pool: what generators made and what a list names, each image once, every other one with a reason."""

import hashlib
import json

import numpy
import pytest
import yaml

from stages.__main__ import main
from stages.engines.images.shards import image_id, image_row, pixels_of, read_shards, write_shards
from stages.foundations.errors import UserError
from stages.foundations.tables import DROPPED, PROMPT, prompt_id, read_table, write_table
from tests.fakes.hostile_images import GRADIENT, LIMITS, REFUSED, TAKEN, png

FIRST, SECOND = (GRADIENT + numpy.uint8(9)), (GRADIENT + numpy.uint8(20))


def generated(pixels, prompt="a cat", generator="base", seed=5):
    said = {"generator": generator, "seed": seed, "source": "generated", "licence": ""}
    return image_row(pixels, prompt_id=prompt_id(prompt), prompt=prompt, **said)


def run(tmp_path, rows=(), listed=None, files=None, line=json.dumps):
    shards, folder = tmp_path / "generated", tmp_path / "foreign"
    shards.mkdir(exist_ok=True), folder.mkdir(exist_ok=True)
    if rows:
        write_shards(rows, shards / "base", 100)
    foreign = None
    if listed is not None:
        for name, content in (files or {}).items():
            (folder / name).write_bytes(content)
        path = tmp_path / "list.jsonl"
        path.write_text("".join((row if isinstance(row, str) else line(row)) + "\n" for row in listed))
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        foreign = {"folder": str(folder), "list_path": str(path), "sha256": sha256}
    write_table(
        [{"prompt_id": prompt_id(one), "prompt": one, "split": "train", "source": "s"} for one in ("a cat", "a dog")],
        tmp_path / "prompts.parquet",
        PROMPT,
    )
    round_1 = {"foreign": foreign, "annotations": None, "also": "round_1"}
    run_again(tmp_path, {"images": LIMITS, "ranking_rounds": {"round_1": round_1}})
    rows = [row for frame in read_shards(tmp_path / "pool.out") for row in frame.to_dict("records")]
    dropped = read_table(tmp_path / "dropped.out", DROPPED)
    return rows, dropped, json.loads((tmp_path / "metrics.out").read_text())


def test_generated_images_come_through_with_what_is_known_of_them(tmp_path):
    given = [generated(FIRST), generated(SECOND, "a dog", "refl", 2**62 + 1)]
    rows, dropped, metrics = run(tmp_path, given)
    assert rows == given and dropped.empty
    assert metrics == {"rows/in": 2, "rows/kept": 2, "images/generated": 2, "prompts/with_images": 2}


def test_an_image_is_taken_once_by_its_pixels_whatever_the_file_claims(tmp_path):
    given = [generated(FIRST), generated(FIRST, seed=6), generated(SECOND) | {"image_id": "0" * 64}]
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
    params = yaml.safe_load((tmp_path / "params.yaml").read_text())
    with pytest.raises(UserError, match="has the sha256"):
        run_again(tmp_path, params)


def run_again(tmp_path, params):
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    names = {"generated": "generated", "prompts": "prompts.parquet", "params": "params.yaml"}
    names |= {name: f"{name}.out" for name in ("pool", "dropped", "metrics", "headline")}
    main(
        ["image_pool@round_1", *(text for name, file in names.items() for text in (f"--{name}", str(tmp_path / file)))]
    )


def test_a_round_without_images_is_told(tmp_path):
    with pytest.raises(UserError, match="round `round_1` has no image"):
        run(tmp_path)
