"""The result of a run: changes of its parameters, the console's last lines, and its name and pages in Prefect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.flows.pages import RAN, UNCHANGED, Done, result_message, result_page, run_name
from pipelines.graph.recipes import use_recipe
from pipelines.graph.result import changes_from_recipe, read_result, summarize
from stages.foundations.errors import UserError

SCORE = {"metric": "avg@8", "problems": 400}
RESULT = {
    "title": "Small sums",
    "page": "reports/index.html",
    "scores": [
        {**SCORE, "benchmark": "sums", "policy": "sft", "value": 0.433, "low": 0.41, "high": 0.458},
        {**SCORE, "benchmark": "sums", "policy": "rl_3", "value": 0.9425, "low": 0.925, "high": 0.958},
        {**SCORE, "benchmark": "products", "policy": "sft", "value": 0.1, "low": 0.05, "high": 0.15},
        {**SCORE, "benchmark": "products", "policy": "rl_3", "value": 0.2, "low": 0.15, "high": 0.25},
    ],
    "gains": [
        {**SCORE, "benchmark": "sums", "policy": "rl_3", "baseline": "sft", "value": 0.51, "low": 0.48, "high": 0.53},
        {**SCORE, "benchmark": "sums", "policy": "rl_3", "baseline": "rl_1", "value": 0.07, "low": 0.04, "high": 0.1},
    ],
    "warnings": ["rl_2: no step trained"],
}
RECORD = {"run_id": "abc", "experiment_id": "1", "page": {"path": "reports/index.html", "md5": "d0"}}
ONE_BENCHMARK = {**RESULT, "scores": RESULT["scores"][:2], "gains": RESULT["gains"][:1]}


def edit(root: Path, before: str, after: str) -> None:
    text = (root / "params.yaml").read_text()
    assert before in text
    (root / "params.yaml").write_text(text.replace(before, after, 1))


def done(ran: list[str]) -> Done:
    return Done({"base": UNCHANGED, "sft": UNCHANGED, **dict.fromkeys(ran, RAN)}, 63.0, RECORD)


def test_a_run_is_named_after_recipe_changes_and_seed(root: Path) -> None:
    assert run_name(root, "") == "laptop seed 0" and changes_from_recipe(root) == {}
    edit(root, "group_size: 16", "group_size: 8")
    edit(root, "seed: 0 ", "seed: 3 ")
    assert run_name(root, "") == "laptop rl.group_size=8 seed 3"
    assert changes_from_recipe(root) == {"rl.group_size": "16 -> 8", "seed": "0 -> 3"}
    assert run_name(root, "laptop") == "laptop seed 0", "the form's recipe replaces params.yaml"
    with open(root / "params.yaml", "a") as params:
        params.write("one: 1\ntwo: {depth: 2}\n")
    assert run_name(root, "") == "laptop 3 changes seed 3"
    assert changes_from_recipe(root)["two.depth"] == "absent -> 2"


def test_a_name_that_cannot_be_made_leaves_the_error_to_the_flow(tmp_path: Path) -> None:
    assert run_name(tmp_path, "") == "", "there is no params.yaml"
    assert run_name(tmp_path, "nobody") == "nobody"


def test_the_message_has_scores_gains_what_ran_and_warnings() -> None:
    assert result_message(RESULT, done(["code", "grade@rl_3"])) == (
        "rl_3 94.2 % [92.5, 95.8] on sums, +51.0 over sft; rl_3 20.0 % [15.0, 25.0] on products; "
        "2 of 4 stages ran; WARNING: rl_2: no step trained"
    )
    assert (
        result_message({**ONE_BENCHMARK, "warnings": []}, done(["code"]))
        == "rl_3 94.2 % [92.5, 95.8], +51.0 over sft; 1 of 3 stages ran"
    )
    restored = Done({"a": RAN, "b": "restored", "c": UNCHANGED}, 1.0)
    assert result_message(None, restored) == "1 of 3 stages ran, 1 restored from DVC's cache"


def test_the_page_has_scores_warnings_changes_and_what_ran(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETRACE_TRACKING", "MLFLOW_TRACKING_URI", "RETRACE_MLFLOW_EXPERIMENT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RETRACE_MLFLOW_URL", "http://127.0.0.1:5001")
    edit(root, "group_size: 16", "group_size: 8")
    page = result_page(root, RESULT, done(["code"]))
    assert page.index("rl_2: no step trained") < page.index("| sft | 43.3 % | 41.0 to 45.8 |")
    assert "| **rl_3** | **94.2 %** | **92.5 to 95.8** |" in page
    assert "| sums | rl_3 over sft | avg@8 | +51.0 points  [+48.0, +53.0] |" in page
    assert "- `rl.group_size`: 16 -> 8" in page
    assert "**Ran** (1): code" in page and "2 of 3 stages were up to date" in page
    assert "**Time:** 1 min 3 s" in page and str(root / "reports/index.html") in page
    run = "http://127.0.0.1:5001/#/experiments/1/runs/abc"
    assert f"({run}?" in page and f"({run}/artifacts/index.html?" in page
    untracked = result_page(root, RESULT, Done({"code": RAN}, 1.0))
    assert "127.0.0.1" not in untracked, "a run that is not in MLflow has no link"
    monkeypatch.delenv("RETRACE_MLFLOW_URL")
    page = result_page(root, None, done([]))
    assert "`abc`" in page and "](" not in page, "no server is known"


def test_without_a_report_there_is_no_result_and_a_broken_one_is_named(root: Path) -> None:
    assert read_result(root) is None
    (root / "reports").mkdir()
    result = {"title": "T", "page": "index.html", "scores": [{"policy": "sft"}], "gains": [], "warnings": []}
    (root / "reports" / "result.json").write_text(json.dumps(result))
    assert read_result(root) == {**result, "page": "reports/index.html"}
    (root / "reports" / "result.json").write_text("{}")
    with pytest.raises(UserError, match=r"result\.json cannot be read .*delete it"):
        read_result(root)


def test_what_another_recipe_has_left_is_no_result_of_the_one_in_use(root: Path) -> None:
    (root / "reports").mkdir()
    for name, page in (("result", "index.html"), ("pictures", "text_to_image.html")):
        content = {"title": name, "page": page, "scores": [], "gains": [], "warnings": []}
        (root / f"reports/{name}.json").write_text(json.dumps(content))
    assert read_result(root)["title"] == "result"
    use_recipe(root, "t2i-shapes")
    assert (read_result(root)["title"], read_result(root)["page"]) == ("pictures", "reports/text_to_image.html")


def test_the_end_of_a_run_says_what_it_achieved_and_what_to_type_next() -> None:
    assert summarize(ONE_BENCHMARK, 369.4, {"rl.group_size": "16 -> 8"}) == [
        "Small sums",
        "changed: rl.group_size 16 -> 8",
        "",
        "sums: avg@8 on 400 problems, 95% interval",
        "  sft    43.3%  [41.0, 45.8]",
        "  rl_3   94.2%  [92.5, 95.8]",
        "  rl_3 - sft, avg@8: +51.0 points  [+48.0, +53.0]",
        "WARNING: rl_2: no step trained",
        "",
        "time    6 min 9 s",
        "report  reports/index.html",
        "next    retrace compare sft rl_3",
        "        make ui    # Prefect and MLflow in the browser",
        "keep    git add dvc.lock data/machine.json data/metrics data/headline data/curves && git commit",
    ]


def test_a_recipe_without_benchmarks_still_names_its_page() -> None:
    lines = summarize({**RESULT, "scores": [], "gains": [], "warnings": []}, 5, {})
    assert lines[:4] == ["Small sums", "", "time    5 s", "report  reports/index.html"]
    assert lines[4].startswith("next    make ui")
