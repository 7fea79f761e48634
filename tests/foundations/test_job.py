"""The command of a stage: which files and parameters its job gets, and what is rejected before any work."""

from pathlib import Path

import pytest
import yaml

from stages.__main__ import main
from stages.foundations.errors import UserError
from stages.foundations.files import dvc_md5
from stages.foundations.job import attempt_at, read_job
from stages.foundations.stage import declared_stage

ROUNDS = {"refl_1": "control_1", "refl_2": "control_2"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"refl_controls": ROUNDS}))
    for name in (*ROUNDS, *ROUNDS.values()):
        (tmp_path / f"data/images/feedback/{name}.parquet").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"data/images/feedback/{name}.parquet").touch()
    return tmp_path


def test_paths_are_those_of_the_declaration_unless_a_flag_says_otherwise(folder):
    stage = declared_stage("refl_control")
    job = read_job("refl_control", "refl_2", stage, ["--metrics", "m.json"], "")
    assert (job.name, job.item, job.sections) == ("refl_control", "refl_2", {"refl_controls": "control_2"})
    assert str(job.paths.pictures) == "data/images/feedback/refl_2.parquet"
    assert str(job.paths.control) == "data/images/feedback/control_2.parquet"
    assert (str(job.paths.metrics), str(job.paths.params)) == ("m.json", "params.yaml")
    assert job.settings() == {"refl_controls": {"refl_2": "control_2"}}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sfft"], "there is no stage 'sfft': the stages are code, annotate"),
        (["refl_control"], "runs once for each entry of `refl_controls`: name one, as in refl_control@NAME"),
        (["code@all"], "stage code runs once: leave out `@all`"),
        (["refl_control@refl_9"], r"no `refl_controls\.refl_9`; at that level it has: refl_1, refl_2"),
        (["refl_control@refl_1", "--params", "none.yaml"], "none.yaml does not exist"),
        (["refl_control@refl_1", "--control", "none"], "--control none does not exist: `dvc repro` makes it"),
    ],
)
def test_what_cannot_run_is_told_before_any_work(folder, words, told):
    with pytest.raises(UserError, match=told):
        main(words)


def test_help_lists_the_stages_and_the_files_of_one(folder, capsys):
    for words in ([], ["--help"]):
        main(words)
        assert "respond           A policy's responses to every benchmark problem" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["refl_control@refl_1", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "--control PATH input: data/images/feedback/${item}.parquet" in printed


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
