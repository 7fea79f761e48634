"""The result of a run, as the console, MLflow and Prefect read it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pipelines.records.result import changes_from_recipe, read_result
from stages.foundations.errors import UserError
from stages.foundations.files import sha256_of
from stages.foundations.scratch import PROJECT


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project in which the recipe `laptop` is in use."""
    (tmp_path / "pipelines").mkdir()
    shutil.copytree(PROJECT / "pipelines" / "recipes", tmp_path / "pipelines" / "recipes")
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(PROJECT / name, tmp_path / name)
    shutil.copy(tmp_path / "pipelines" / "recipes" / "laptop.yaml", tmp_path / "params.yaml")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "recipe").write_text(f"laptop\n{sha256_of(tmp_path / 'params.yaml')}\n")
    return tmp_path


def test_changes_name_the_key_and_both_values(root: Path) -> None:
    params = root / "params.yaml"
    assert changes_from_recipe(root) == {}
    text = params.read_text()
    params.write_text(text.replace("group_size: 16", "group_size: 8").replace("seed: 0  ", "seed: 3  ", 1))
    assert changes_from_recipe(root) == {"rl.group_size": "16 -> 8", "seed": "0 -> 3"}


def test_a_key_that_the_recipe_lacks_is_a_change(root: Path) -> None:
    with open(root / "params.yaml", "a") as params:
        params.write("extra: {depth: 2}\n")
    assert changes_from_recipe(root) == {"extra.depth": "absent -> 2"}


def test_without_a_report_there_is_no_result_and_a_broken_one_is_named(root: Path) -> None:
    assert read_result(root) is None
    (root / "reports").mkdir()
    result = {"title": "T", "page": "index.html", "scores": [{"policy": "sft"}], "gains": [], "warnings": []}
    (root / "reports" / "result.json").write_text(json.dumps(result))
    assert read_result(root) == {**result, "page": "reports/index.html"}
    (root / "reports" / "result.json").write_text("{}")
    with pytest.raises(UserError, match=r"result\.json cannot be read .*delete it"):
        read_result(root)
