"""Prompts of the text-to-image branch: split once, and no test prompt is in the other splits."""

import gzip
import json
from pathlib import Path

import pandas
import pytest

from stages.foundations.errors import UserError
from stages.foundations.tables import DROPPED, PROMPT, prompt_id, read_table
from tests.fakes.one_stage import run_stage

REAL_DATA = Path(__file__).resolve().parents[3] / "shared/data/image_prefs"
SHAPES = {"kind": "shapes", "max_of_kind": {"relation": 20}, "validation_prompts": 30, "test_prompts": 200}


def run(folder, params, seed=0):
    """Returns table, dropped rows and metrics of one run."""
    metrics = run_stage("t2i_prompts@NAME", folder, {"seed": seed, "t2i_prompts": params})
    return read_table(folder / "prompts", PROMPT), read_table(folder / "dropped", DROPPED), metrics


def files(folder, validation=1, **lines):
    """Returns parameters for sources `name=[line, ...]`; names that begin with "test" have the test prompts."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = {}
    for name, rows in lines.items():
        path = folder / f"{name}.jsonl.gz"
        path.write_bytes(gzip.compress(b"".join(row + b"\n" for row in rows)))
        split = "test" if name.startswith("test") else "train"
        sources[name] = {"path": str(path), "prompt_field": "text", "split": split, "max_prompts": None}
    return {"kind": "files", "sources": sources, "validation_prompts": validation, "max_prompt_characters": 40}


def line(text):
    return json.dumps({"text": text}).encode()


def test_shapes_are_split_once_and_the_seed_says_how(tmp_path):
    prompts, dropped, metrics = run(tmp_path / "one", SHAPES)
    assert prompts["prompt_id"].is_unique and prompts["prompt"].is_unique
    assert prompts["split"].value_counts().to_dict() == {"train": 408, "test": 200, "validation": 30}
    assert (prompts["source"] == "shapes/relation").sum() == 20
    assert set(dropped["reason"]) == {"beyond_max_of_kind"} and metrics["rows/in"] == 882
    kinds = pandas.crosstab(prompts["source"], prompts["split"])
    assert (kinds[["test", "train"]] > 0).all(axis=None)  # each kind is trained and tested
    run(tmp_path / "again", SHAPES)
    same = [(tmp_path / name / "prompts").read_bytes() for name in ("one", "again")]
    assert same[0] == same[1]
    other, _, _ = run(tmp_path / "other", SHAPES, seed=1)
    assert set(other["prompt"][other["split"] == "test"]) != set(prompts["prompt"][prompts["split"] == "test"])


def test_test_prompts_are_taken_out_of_the_others(tmp_path):
    train = [line(text) for text in ("a cat", "A  Cat ", "two dogs", "a dog", "Two  DOGS", "a bird")]
    params = files(tmp_path, train=train, test=[line("A CAT"), line("a cat"), line("two dogs"), line("a fox")])
    prompts, dropped, metrics = run(tmp_path / "out", params)
    assert set(prompts["prompt"][prompts["split"] == "test"]) == {"A CAT", "two dogs", "a fox"}
    assert set(prompts["prompt"][prompts["split"] != "test"]) == {"a dog", "a bird"}
    assert metrics["contamination/test_prompts"] == 2
    assert metrics["dropped/contaminated"] == 4 and metrics["dropped/duplicate_prompt"] == 1
    assert dropped["row_id"].tolist() == ["train/0", "train/1", "train/2", "train/4", "test/1"]
    assert (prompts["prompt_id"] == prompts["prompt"].map(prompt_id)).all()


def test_bad_lines_are_dropped_with_a_reason_and_the_rest_is_read(tmp_path):
    bad = {
        b"{": "not_json",
        b'{"other": 1}': "no_prompt_field",
        b"[1]": "no_prompt_field",
        b'{"text": 5}': "not_text",
        b'{"text": "  "}': "empty_prompt",
        b'{"text": "\\ud800"}': "not_unicode",
        line("x" * 41): "too_long",
        b'{"text": "' + b"y" * (1 << 20) + b'"}': "line_too_long",
    }
    params = files(tmp_path, train=[*bad, line("<img onerror=1>"), line("b")], test=[line("c")])
    prompts, dropped, _ = run(tmp_path / "out", params)
    assert sorted(prompts["prompt"]) == ["<img onerror=1>", "b", "c"]  # kept unchanged: the page escapes it
    assert set(dropped["reason"]) == set(bad.values())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda p: p["sources"]["train"].update(path="/nowhere.jsonl"), "does not exist"),
        (lambda p: Path(p["sources"]["train"]["path"]).write_bytes(b"no gzip"), "cannot be read"),
        (lambda p: p.update(validation_prompts=9), "validation_prompts 9 leaves none of 2"),
        (lambda p: p["sources"].pop("test"), "no prompts are left for test"),
    ],
)
def test_mistakes_in_files_are_told(tmp_path, change, told):
    params = files(tmp_path, train=[line("a"), line("b")], test=[line("c")])
    change(params)
    with pytest.raises(UserError, match=told):
        run(tmp_path / "out", params)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"max_of_kind": {"dogs": 1}}, "there are no kinds"),
        ({"max_of_kind": {"relation": 0}, "test_prompts": 700}, "leave none of 618 to train"),
    ],
)
def test_mistakes_about_shapes_are_told(tmp_path, change, told):
    with pytest.raises(UserError, match=told):
        run(tmp_path, SHAPES | change)


@pytest.mark.skipif(not REAL_DATA.exists(), reason="../shared/data/image_prefs is not on this machine")
def test_of_the_463_test_prompts_of_imagereward_44_stand_among_the_prompts_of_refl(tmp_path):
    sources = {
        name: {"path": str(REAL_DATA / f"{name}.jsonl.gz"), "prompt_field": field, "split": split, "max_prompts": None}
        for name, field, split in (
            ("refl_prompts_10k", "text", "train"),
            ("imagereward_test_rankings", "prompt", "test"),
        )
    }
    limits = {"validation_prompts": 200, "max_prompt_characters": 1000}
    prompts, _, metrics = run(tmp_path, {"kind": "files", "sources": sources, **limits})
    assert metrics["contamination/test_prompts"] == 44
    assert (metrics["prompts/test"], metrics["prompts/train"]) == (463, 9549)
    assert prompts["prompt"].str.lower().str.split().str.join(" ").is_unique
