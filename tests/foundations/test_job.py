"""The command of a stage: which files and parameters its job gets, and what is refused before any work."""

import pytest
import yaml

from stages.__main__ import main
from stages.foundations.errors import UserError
from stages.foundations.job import read_job
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
