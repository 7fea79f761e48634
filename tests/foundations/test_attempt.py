"""Attempts: equal work has one scratch folder, other work another."""

from pathlib import Path

import pytest

from stages.foundations.files import dvc_md5
from stages.foundations.job import attempt_at


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    """Makes an attempt at `sft` with some arguments changed; the folder has one input, `train.jsonl`."""
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("train.jsonl").write_text("a row\n")

    def make(**changes):
        given = {"params": {"learning_rate": 0.1}, "inputs": {"train": Path("train.jsonl")}, "seed": 3}
        return attempt_at("sft", **(given | {"policy": "sft"} | changes))

    return make


def test_the_scratch_folder_is_there_and_named_by_the_hash(attempt, tmp_path):
    made = attempt()
    assert made.scratch == tmp_path / "state" / "scratch" / f"sft-{made.stage_hash[:16]}"
    assert made.scratch.is_dir()
    assert made.digests == {"train": dvc_md5(Path("train.jsonl"))}


def test_the_hash_follows_params_inputs_seed_names_and_code(attempt):
    first = attempt()
    assert attempt() == first
    others = [attempt(seed=4), attempt(params={"learning_rate": 0.2}), attempt(policy="rl_1"), attempt(round="a")]
    Path("data/code").mkdir(parents=True)
    Path("data/code/grade.json").write_text("{}")
    assert attempt() == first, "another stage's code"
    Path("data/code/sft.json").write_text("{}")
    others.append(attempt())
    Path("train.jsonl").write_text("another row\n")
    others.append(attempt())
    assert len({one.scratch for one in [first, *others]}) == 7


def test_inside_dvc_the_digest_is_the_one_of_the_lock(attempt, monkeypatch):
    Path("dvc.lock").write_text("stages:\n  curate:\n    cmd: x\n    outs:\n    - path: train.jsonl\n      md5: abc\n")
    monkeypatch.setenv("DVC_STAGE", "sft")
    assert attempt().digests == {"train": "abc"}
