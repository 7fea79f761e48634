"""The end of `make repro` says whether the run equals the committed one, and if not, where and on what machines."""

import json
from pathlib import Path

import pytest
import yaml

from pipelines.graph.recipes import read_recipe, recipe_text, value_at
from pipelines.records import committed_run
from pipelines.records.committed_run import MACHINE, compare_with_committed
from stages.code.run import write_fingerprints
from stages.foundations.dvc_lock import read_lock
from stages.foundations.files import dvc_md5
from stages.foundations.machine import PROJECT
from stages.observe.git import file_at, git, git_as_someone


def lock(root: Path, policy: str = "1" * 32, group_size: int = 8, code: str = "c" * 32) -> None:
    def stage(deps: dict[str, str], outs: dict[str, str], params: dict[str, object]) -> dict[str, object]:
        files = [[{"path": path, "md5": md5, "size": 1} for path, md5 in part.items()] for part in (deps, outs)]
        return {"cmd": "run", "deps": files[0], "params": {"params.yaml": params}, "outs": files[1]}

    stages = {
        "base": stage({"data/code/base.json": "b" * 32}, {"data/policies/base": "a" * 32}, {"seed": 0}),
        "rl_round@rl_1": stage(
            {"data/code/rl_round.json": code}, {"data/policies/rl_1": policy}, {"rl": {"group_size": group_size}}
        ),
    }
    (root / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    lock(tmp_path)
    return tmp_path


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git_as_someone(root, "commit", "--quiet", "--message", "Results")


def test_a_first_run_is_compared_with_nothing_and_keeps_its_machine(root: Path) -> None:
    assert compare_with_committed(root) == []
    about = json.loads((root / MACHINE).read_text())
    assert about["processor"] and about["torch"][0].isdigit()


def test_an_identical_run_leaves_git_clean(root: Path) -> None:
    compare_with_committed(root)
    commit(root)
    assert compare_with_committed(root) == ["same    all 2 outputs are identical to those of the committed run"]
    assert git(root, "status", "--porcelain") == ""


def test_a_run_that_differs_names_the_first_output_and_the_machines(root, monkeypatch) -> None:
    monkeypatch.setattr(committed_run, "processor", lambda: "Old processor")
    compare_with_committed(root)
    commit(root)
    monkeypatch.setattr(committed_run, "processor", lambda: "New processor")
    lock(root, policy="2" * 32)
    assert compare_with_committed(root) == [
        "differs 1 of 2 outputs differ from the committed run, the first is data/policies/rl_1",
        "        processor New processor here, Old processor there",
    ]
    assert json.loads((root / MACHINE).read_text())["processor"] == "New processor"


def test_without_another_machine_a_closer_look_is_advised(root: Path) -> None:
    compare_with_committed(root)
    commit(root)
    lock(root, policy="2" * 32)
    assert "retrace verify" in compare_with_committed(root)[1]


@pytest.mark.parametrize("change", [{"group_size": 16}, {"code": "d" * 32}])
def test_other_parameters_or_code_are_no_difference_to_explain(root: Path, change: dict) -> None:
    compare_with_committed(root)
    commit(root)
    lock(root, policy="2" * 32, **change)
    assert compare_with_committed(root) == []


def test_the_committed_result_belongs_to_the_code(tmp_path: Path) -> None:
    """If this fails, a change reaches a stage of the recipe `laptop`: run `make repro`, and commit what it names."""

    def committed(name: str) -> bytes:
        # An unpacked source archive has no git.
        return file_at(PROJECT, "HEAD", name) or (PROJECT / name).read_bytes()

    text = committed("params.yaml").decode()
    if not text.startswith('# Recipe "laptop":'):
        # A user's clone may hold the results of another recipe.
        pytest.skip("the committed parameters are of another recipe than laptop")
    assert text == recipe_text(PROJECT, "laptop"), "params.yaml is not the recipe: run `retrace use laptop`"
    params = read_recipe(PROJECT, "laptop")
    locked = read_lock(committed("dvc.lock"), "HEAD")
    assert "rl_round@rl_3" in locked and committed(MACHINE)
    write_fingerprints(PROJECT, params, tmp_path)
    for name, stage in locked.items():
        if stage.stage != "code":
            assert stage.code == dvc_md5(tmp_path / f"{stage.stage}.json"), name
            for key, value in stage.params.items():
                assert value == value_at(params, key.split(".")), f"{name}: {key}"
