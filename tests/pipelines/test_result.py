"""The result of a run, as the console, MLflow and Prefect read it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pipelines.graph.result import changes_from_recipe, read_result, summarize
from stages.foundations.errors import UserError
from stages.foundations.files import sha256_of
from stages.foundations.machine import PROJECT

SCORE = {"benchmark": "sums", "metric": "avg@8", "problems": 400}
RESULT = {
    "title": "Small sums",
    "page": "reports/index.html",
    "scores": [
        {**SCORE, "policy": "sft", "value": 0.433, "low": 0.41, "high": 0.458},
        {**SCORE, "policy": "rl_3", "value": 0.9425, "low": 0.925, "high": 0.958},
    ],
    "gains": [{**SCORE, "policy": "rl_3", "baseline": "sft", "value": 0.51, "low": 0.479, "high": 0.532}],
    "warnings": ["no step of rl_2 trained"],
}


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


def test_the_end_of_a_run_says_what_it_achieved_and_what_to_type_next() -> None:
    assert summarize(RESULT, 369.4, {"rl.group_size": "16 -> 8"}) == [
        "Small sums",
        "changed: rl.group_size 16 -> 8",
        "",
        "sums: avg@8 on 400 problems, 95% interval",
        "  sft    43.3%  [41.0, 45.8]",
        "  rl_3   94.2%  [92.5, 95.8]",
        "  rl_3 - sft, avg@8: +51.0 points  [+47.9, +53.2]",
        "WARNING: no step of rl_2 trained",
        "",
        "time    6 min 9 s",
        "report  reports/index.html",
        "next    retrace compare sft rl_3",
        "        make ui    # Prefect and MLflow in the browser",
        "        git add dvc.lock data/metrics data/headline data/curves && git commit    # keep the results",
    ]


def test_a_recipe_without_benchmarks_still_names_its_page() -> None:
    lines = summarize({**RESULT, "scores": [], "gains": [], "warnings": []}, 5, {})
    assert lines[:4] == ["Small sums", "", "time    5 s", "report  reports/index.html"]
    assert lines[4].startswith("next    make ui")
