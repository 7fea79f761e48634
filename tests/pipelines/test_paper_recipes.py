"""The recipes of published runs: pinned, planned, and run as miniatures, with equal kinds and small numbers."""

import json
import re
from pathlib import Path

import pytest
import yaml

from pipelines.graph.recipes import read_recipe
from pipelines.graph.schema import check_values
from pipelines.planning.plan import PlanRequest, make_plan
from tests.fakes.graph_in_process import run_graphs
from tests.fakes.paper_miniatures import paper_miniature

PROJECT = Path(__file__).resolve().parents[2]
RECIPES = [
    "grpo-qwen2.5-1.5b",
    "dapo-qwen2.5-7b",
    "dapo-qwen2.5-32b",
    "demystify-llama3.1-8b",
    "demystify-qwen2.5-math-7b",
    "demystify-qwen2.5-math-7b-zero",
    "otb-qwen3-8b",
    "otb-tools-qwen3-8b",
    "scalerl-qwen3-8b",
    "trm-qwen3-8b",
    "dvp-qwen3-8b",
    "laminar-qwen2.5-7b",
]
COMMIT = re.compile(r"/[0-9a-f]{40}/")


@pytest.mark.parametrize("name", RECIPES)
def test_weights_and_problems_cannot_change_unnoticed(name):
    params = read_recipe(PROJECT, name)
    assert re.fullmatch("[0-9a-f]{40}", params["base"]["revision"])
    for source, entry in params["sources"].items():
        origin = entry["from"]
        assert origin["kind"] == "hub" or (COMMIT.search(origin["url"]) and origin["sha256"]), source


@pytest.mark.parametrize("name", RECIPES)
def test_the_plan_says_that_it_fits_and_what_it_costs(name):
    sections = check_values(read_recipe(PROJECT, name), name)
    launch = sections["launch"]
    gpus = launch.nodes * launch.gpus_per_node
    replicas = gpus // sections["sampler"].tensor_parallel
    plan = make_plan(PROJECT, name, PlanRequest("H100", gpus, replicas=replicas, price=2.5))
    assert plan.recipe == name and plan.problems == [] and plan.cost > 0
    assert max(stage.seconds for stage in plan.stages) < launch.hours * 3600


RUN = {  # recipe -> stages that another one's miniature runs with the same kinds
    "grpo-qwen2.5-1.5b": ("respond", "grade", "report"),
    "dapo-qwen2.5-32b": ("respond", "grade", "report"),
    "demystify-llama3.1-8b": (),
    "otb-qwen3-8b": ("respond", "grade", "report"),
    "otb-tools-qwen3-8b": ("grade", "report"),
    "scalerl-qwen3-8b": ("respond", "grade", "report"),
    "trm-qwen3-8b": ("respond", "grade", "report"),
    "dvp-qwen3-8b": ("respond", "grade", "report"),
}


@pytest.fixture(scope="module")
def made(taught, tmp_path_factory):
    """The folder and the stages of each miniature."""
    graphs = {}
    for name, but in RUN.items():
        folder = tmp_path_factory.mktemp("miniature")
        params = paper_miniature(name, taught, folder)
        check_values(params, name)
        graphs[folder] = (params, but)
    done = run_graphs(graphs)
    return dict(zip(RUN, done.items(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_a_miniature_runs_every_stage(name, made):
    folder, done = made[name]
    assert "rl_round@rl_1" in done and ("sft" in done) == ("sft" in read_recipe(PROJECT, name))
    metrics = json.loads((folder / "data/metrics/rl_round/rl_1.json").read_text())
    assert metrics["rollouts/drawn"] >= 8 and (folder / "data/policies/rl_1/model.safetensors").exists()
    if "report" in done:  # none of these recipes has a web branch
        page = (folder / "reports/index.html").read_text()
        assert "collect_web" not in page.partition("The parameters")[0]


def kinds(params, path=""):
    """Returns every `kind` of a recipe, by its path; sources by their form, whatever their names."""
    if isinstance(params, list):
        return {found for one in params for found in kinds(one, path)}
    if not isinstance(params, dict):
        return set()
    own = {(path, params["kind"])} if isinstance(params.get("kind"), str) else set()
    names = {name: f"{path}.{'*' if path == '.sources' else name}" for name in params}
    return own.union(*(kinds(value, names[name]) for name, value in params.items()))


def test_what_has_no_miniature_of_its_own_has_the_kinds_of_one_that_has():
    for name, other in (
        ("dapo-qwen2.5-7b", "dapo-qwen2.5-32b"),
        ("demystify-qwen2.5-math-7b", "demystify-llama3.1-8b"),
    ):
        own, run = read_recipe(PROJECT, name), read_recipe(PROJECT, other)
        assert set(own) == set(run) and kinds({**own, "launch": {}}) == kinds({**run, "launch": {}})


PAGE = (PROJECT / "docs/reference/papers.md").read_text(encoding="utf-8")
TABLES = {
    part.partition("`")[0]: re.findall(r"^\| `([\w.]+)` \| .+ \| `(.+)` \|.*\|$", part, flags=re.MULTILINE)
    for part in PAGE.split("\n## `")[1:]
}


@pytest.mark.parametrize("name", TABLES)
def test_the_table_beside_the_paper_has_the_values_of_the_recipe(name):
    rows, params = TABLES[name], read_recipe(PROJECT, name)
    section = PAGE.split(f"\n## `{name}`")[1].split("\n## ")[0]
    assert len(rows) == section.count("\n| `") >= 8, "a row was not understood"
    for setting, here in rows:
        value = params
        for part in setting.split("."):
            value = value[part]
        assert yaml.safe_load(here) == value, setting


SECTIONS = ("base", "sft", "rl", "rl_rounds", "respond")
NO_SETTING = re.compile(r"base\.revision|.*\.problem_slice\..*|.*_every_steps")


def of_no_paper(name):
    """Returns the first recipe below that has no table: what it sets is not a choice of the paper."""
    while name in TABLES:
        name = yaml.safe_load((PROJECT / f"pipelines/recipes/{name}.yaml").read_text())["extends"].partition(".yaml")[0]
    return name


def changed(own, below, name):
    """Yields the names of values that differ from those of `below`; a mapping of another kind is one value."""
    there = below if isinstance(below, dict) else {}
    if isinstance(own, dict) and own.get("kind") in (None, there.get("kind")):
        for key, value in own.items():
            yield from changed(value, there.get(key), f"{name}.{key}")
    elif own != below and not NO_SETTING.fullmatch(name):
        yield name


@pytest.mark.parametrize("name", sorted({*TABLES} - {"imagereward-blip-large"}))  # it extends nothing
def test_the_table_leaves_out_no_setting_that_is_not_of_the_recipe_of_no_paper_below(name):
    own, below, rows = read_recipe(PROJECT, name), read_recipe(PROJECT, of_no_paper(name)), dict(TABLES[name])
    settings = [one for part in SECTIONS if part in own for one in changed(own[part], below.get(part), part)]
    # A row covers what is inside it; a mapping of another kind is covered by any row inside it.
    covered = {one for one in settings for row in rows if f"{one}.".startswith(f"{row}.") or row.startswith(f"{one}.")}
    assert [one for one in settings if one not in covered] == []


def test_every_recipe_with_the_name_of_a_paper_has_a_table():
    assert {*RECIPES, "imagereward-blip-large"} - {"grpo-qwen2.5-1.5b"} == set(TABLES)
