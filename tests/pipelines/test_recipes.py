"""Selecting a recipe, and what other recipes leave behind."""

import json
import shutil
import sys
import threading

import pytest
import yaml
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.graph import recipes
from pipelines.graph.recipes import (
    is_in_use,
    parameters_changed,
    read_recipe,
    recipe_in_use,
    recipe_text,
    remove_orphaned_outputs,
    use_recipe,
)
from pipelines.runtime.process_group import dvc, run_in_group
from stages.foundations.errors import UserError
from stages.foundations.files import load_yaml
from stages.foundations.machine import PROJECT
from stages.observe.git import commit_all, git
from stages.observe.tracking import recipe_name
from tests.fakes.processes import wait_until


def repro(root):
    lines = []
    assert run_in_group(dvc("repro"), root, lines.append) == 0, "\n".join(lines)
    return lines


def last(root):
    return (root / "data/last.txt").read_text().split()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("lptop", r"unknown recipe 'lptop': did you mean 'laptop'\? There are broken, laptop, other"),
        ("broken", r"pipelines/recipes/broken.yaml is not UTF-8 .*: save it as UTF-8"),
    ],
)
def test_a_recipe_that_cannot_be_used_is_told(dvc_project, name, told):
    (dvc_project / "pipelines/recipes/broken.yaml").write_bytes(b"first: \xff\n")
    before = (dvc_project / "params.yaml").read_bytes()
    with pytest.raises(UserError, match=told):
        use_recipe(dvc_project, name)
    assert (dvc_project / "params.yaml").read_bytes() == before


def test_own_changes_of_params_are_kept_but_no_edited_recipe(dvc_project):
    params, recipe = dvc_project / "params.yaml", dvc_project / "pipelines/recipes/other.yaml"
    saved, edited = dvc_project / "state/params.before.yaml", b"first: 7  # \xff is no UTF-8\n"
    params.write_bytes(edited)
    use_recipe(dvc_project, "other")
    assert saved.read_bytes() == edited and params.read_text() == recipe.read_text()
    assert (dvc_project / "state/recipe").read_text().startswith("other\n") and recipe_name(dvc_project) == "other"
    saved.unlink()
    recipe.write_text(recipe.read_text() + "# edited\n")
    use_recipe(dvc_project, "other")
    assert params.read_text() == recipe.read_text() and not saved.exists()


def test_switching_recipes_and_back(dvc_project, capsys):
    """Outputs of the previous recipe are removed, and come back from DVC's cache without running a command."""
    repro(dvc_project)
    laptop = last(dvc_project)
    assert laptop == [f"data/metrics/{name}.json" for name in ("first", "round/a", "round/b")]
    by_hand = ["data/metrics/x.json", "data/metrics/y.json"]
    for name in by_hand:
        (dvc_project / name).write_text("{}")
    use_recipe(dvc_project, "other")
    cleared = [path.relative_to(dvc_project).as_posix() for path in remove_orphaned_outputs(dvc_project)]
    assert sorted(cleared) == ["data/metrics/round/b.json", *by_hand]
    assert [(dvc_project / "state/strays" / name).read_text() for name in by_hand] == ["{}", "{}"]
    told = capsys.readouterr().err
    assert told == "moved 2 files that belong to no stage of this recipe to state/strays/\n", "one line for all"
    repro(dvc_project)
    assert last(dvc_project) == [f"data/metrics/{name}.json" for name in ("first", "round/a", "round/c")]
    use_recipe(dvc_project, "laptop")
    remove_orphaned_outputs(dvc_project)
    lines = repro(dvc_project)
    assert last(dvc_project) == laptop
    assert json.loads((dvc_project / "data/metrics/round/b.json").read_text()) == {"reward/mean": 1}
    assert not [line for line in lines if line.startswith("> ")], "a command was run"


def test_a_folder_that_stages_only_read_has_no_strays(dvc_project):
    """Examples are sources, and data that a user put there."""
    graph = yaml.safe_load((dvc_project / "dvc.yaml").read_text())
    graph["stages"]["first"].setdefault("deps", []).append("data/mine")
    (dvc_project / "dvc.yaml").write_text(yaml.safe_dump(graph))
    (dvc_project / "data/mine").mkdir(parents=True)
    (dvc_project / "data/mine/rows.jsonl").write_text("{}")
    assert remove_orphaned_outputs(dvc_project) == [] and (dvc_project / "data/mine/rows.jsonl").exists()


def test_nothing_is_looked_at_while_the_graph_is_the_same(dvc_project, monkeypatch):
    remove_orphaned_outputs(dvc_project)
    monkeypatch.setattr(recipes, "find_strays", lambda root: 1 / 0)
    assert remove_orphaned_outputs(dvc_project) == []


def test_parameters_that_are_no_yaml_are_told_before_anything_runs(dvc_project):
    (dvc_project / "params.yaml").write_text("first: [\n")
    with pytest.raises(UserError, match=r"params\.yaml is not valid YAML"):
        remove_orphaned_outputs(dvc_project)


@pytest.fixture
def real_graph(dvc_project, monkeypatch):
    """Returns the graph of this project and its laptop recipe, in a folder where `retrace` runs nothing."""
    for name in ("dvc.yaml", "pipelines/graph/schema.py", "pipelines/recipes/laptop.yaml"):
        (dvc_project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / name, dvc_project / name)
    monkeypatch.setattr("pipelines.cli.PROJECT", dvc_project)
    monkeypatch.chdir(dvc_project)
    use_recipe(dvc_project, "laptop")
    remove_orphaned_outputs(dvc_project)
    return dvc_project


def test_a_recipe_with_a_mistake_is_not_taken_into_use(real_graph):
    recipe = load_yaml((real_graph / "pipelines/recipes/laptop.yaml").read_text())
    recipe["rl"]["problem_per_step"] = recipe["rl"].pop("problems_per_step")
    (real_graph / "pipelines/recipes/bad.yaml").write_text(yaml.safe_dump(recipe))
    before = (real_graph / "params.yaml").read_bytes()
    outcome = CliRunner().invoke(app, ["use", "bad"])
    assert outcome.exit_code == 2 and "rl.problem_per_step" in outcome.stderr
    assert "recipe bad is not usable" in outcome.stderr
    assert (real_graph / "params.yaml").read_bytes() == before and recipe_name(real_graph) == "laptop"


def test_retrace_use_names_what_is_not_installed_and_the_command(real_graph, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    engine = "{kind: ray, processes: 2, pages_per_shard: 8}"
    (real_graph / "pipelines/recipes/wide.yaml").write_text(f"extends: laptop.yaml\nextract_web.engine: {engine}\n")
    told = CliRunner().invoke(app, ["use", "wide"]).output
    assert "not installed yet: ray. `make repro` does it; before `dvc repro`, run " in told and "add ray" in told
    assert "not installed" not in CliRunner().invoke(app, ["use", "laptop"]).output


def test_parameters_with_a_mistake_are_checked_again_at_each_start(real_graph):
    params = real_graph / "params.yaml"
    params.write_text(params.read_text() + "speed: 3\n")
    stray = real_graph / "data/metrics/stray.json"
    stray.write_text("{}")
    for _ in range(2):
        with pytest.raises(UserError, match="speed: unknown section"):
            remove_orphaned_outputs(real_graph)
        assert parameters_changed(real_graph) and stray.exists()


def test_whoever_changes_the_parameters_waits_for_the_runs_that_use_them(dvc_project):
    lines, order = [], []

    def other():
        with recipe_in_use(dvc_project, "other", lines.append):
            order.append((dvc_project / "params.yaml").read_bytes())

    with recipe_in_use(dvc_project, "laptop", lines.append), recipe_in_use(dvc_project, "", lines.append):
        thread = threading.Thread(target=other)
        thread.start()
        with recipe_in_use(dvc_project, "laptop", lines.append):
            wait_until(lambda: lines)
            thread.join(1.2)
        assert thread.is_alive() and is_in_use(dvc_project, "laptop") and not order
        order.append((dvc_project / "params.yaml").read_bytes())
    thread.join()
    recipes = [dvc_project / "pipelines" / "recipes" / f"{name}.yaml" for name in ("laptop", "other")]
    assert order == [recipe.read_bytes() for recipe in recipes] and is_in_use(dvc_project, "other")
    assert len(lines) == 1 and "recipe other: waiting for the runs that use another params.yaml" in lines[0]
    with pytest.raises(UserError, match=r"unknown recipe 'none': there are laptop, other; .*recipes/NAME\.yaml"):
        recipe_in_use(dvc_project, "none", lines.append).__enter__()


# ------------------------------------------------------------------ recipes that extend others
WHOLE = """# The recipe below.
first: 1
model:
  kind: small    # enough
  layers: 2
  widths: [1, 2]
  limit: null
rounds:
  a: {start: first, steps: 3}
  b: {start: a, steps: 3}
other: {x: 1}
"""


def resolved(root, **recipes):
    for name, text in recipes.items():
        (root / "pipelines/recipes" / f"{name}.yaml").write_text(text)
    name = list(recipes)[-1]
    values = read_recipe(root, name)
    assert values == load_yaml(recipe_text(root, name)), "values and text are read by two readers"
    return values


@pytest.mark.parametrize(
    ("changes", "path", "value"),
    [
        ("model: {layers: 5}", "model", {"kind": "small", "layers": 5, "widths": [1, 2], "limit": None}),
        ("model.layers: 5", "model", {"kind": "small", "layers": 5, "widths": [1, 2], "limit": None}),
        ("model: {widths: [3]}", "model", {"kind": "small", "layers": 2, "widths": [3], "limit": None}),
        ("model: {layers: null}", "model", {"kind": "small", "layers": None, "widths": [1, 2], "limit": None}),
        ("model: {kind: large, heads: 4}", "model", {"kind": "large", "heads": 4}),
        ("model: {study: {noise: 1}}", "model.study", {"noise": 1}),
        ("model.study.noise: 1", "model.study", {"noise": 1}),
        ("rounds: {b: {steps: 9}}", "rounds.b", {"start": "a", "steps": 9}),
        ("without: [rounds.b]", "rounds", {"a": {"start": "first", "steps": 3}}),
        ("without: [rounds]\nrounds: {c: {start: first}}", "rounds", {"c": {"start": "first"}}),
        ("without: [rounds]", "rounds", {}),  # dvc.yaml iterates over it, so an empty one is written
        ("other: {}", "other", {}),
        ("base.kind: hub", "base", {"kind": "hub"}),
        ("base: {kind: hub}", "base", {"kind": "hub"}),
        ("model.kind: small", "model.kind", "small"),
        ("without: [model.layers, model.widths, model.limit]\nmodel.kind: large", "model", {"kind": "large"}),
    ],
)
def test_a_recipe_gives_only_what_differs(dvc_project, changes, path, value):
    found = resolved(dvc_project, below=WHOLE, top=f"extends: below.yaml\n{changes}\n")
    for name in path.split("."):
        found = found[name]
    assert found == value


def test_what_is_in_use_is_whole_and_resolving_twice_gives_the_same_bytes(dvc_project):
    resolved(
        dvc_project, below=WHOLE, middle="extends: below.yaml\nfirst: 2\n", top="extends: middle.yaml\nother.x: 3\n"
    )
    use_recipe(dvc_project, "top")
    text = (dvc_project / "params.yaml").read_text()
    assert yaml.safe_load(text) == yaml.safe_load(WHOLE) | {"first": 2, "other": {"x": 3}}
    assert "# enough" in text and "limit: null" in text and text.startswith("# Recipe top, resolved.")
    assert is_in_use(dvc_project, "top") and recipe_name(dvc_project) == "top"
    use_recipe(dvc_project, "top")
    assert (dvc_project / "params.yaml").read_text() == text
    (dvc_project / "pipelines/recipes/below.yaml").write_text(WHOLE.replace("layers: 2", "layers: 3"))
    assert not is_in_use(dvc_project, "top"), "a change below is a change"
    use_recipe(dvc_project, "below")
    assert (dvc_project / "params.yaml").read_text() == WHOLE.replace("layers: 2", "layers: 3")


@pytest.mark.parametrize(
    ("recipes", "told"),
    [
        ({"a": "extends: b.yaml\n", "b": "extends: a.yaml\n"}, "forms a cycle: b.yaml -> a.yaml -> b.yaml"),
        (
            {"a": "extends: gone.yaml\n"},
            "recipe a.yaml: it extends gone.yaml, but there is no pipelines/recipes/gone.yaml",
        ),
        ({"a": "extends: ../laptop.yaml\n"}, "there is no pipelines/recipes/../laptop.yaml"),
        ({"a": "extends: laptop.yaml\nwithout: [sfft]\n"}, "recipe a: sfft: laptop.yaml has no such key"),
        ({"a": "extends: laptop.yaml\nfirst.x: 1\n"}, "recipe a: first.x: laptop.yaml has no such key"),
        ({"a": "extends: [laptop.yaml\n"}, "pipelines/recipes/a.yaml is not valid YAML"),
        ({"a": "first: " + "[" * 50_000}, "more than 100 lists or mappings inside each other"),
        ({"a": "extends: laptop.yaml\nfirst: 1\nfirst: 2\n"}, 'found duplicate key "first": remove one'),
        ({"a": "base: laptop.yaml\n"}, "`base: laptop.yaml` is the old spelling: write `extends: laptop.yaml`"),
        ({"a": "extends: [laptop.yaml]\n"}, "`extends` is ['laptop.yaml']: write a file name"),
        (
            {"b": "x: {y: {kind: deep, size: 1}}\n", "a": "extends: b.yaml\nx: {y.kind: flat}\n"},
            "`x.y.kind: flat` would keep size of kind deep: write the mapping whole, `x.y: {kind: flat, ...}`",
        ),
        (
            {"b": "base: {kind: random, size: 1}\n", "a": "extends: b.yaml\nbase.kind: folder\n"},
            "`base.kind: folder` would keep size of kind random",
        ),
        ({"a": "- first\n"}, "pipelines/recipes/a.yaml must hold a mapping of sections"),
    ],
)
def test_what_cannot_be_resolved_is_told_in_a_sentence(dvc_project, recipes, told):
    with pytest.raises(UserError) as raised:
        resolved(dvc_project, **recipes)
    assert told in str(raised.value) and "\n" not in str(raised.value)


def test_a_recipe_of_an_earlier_commit_is_read_in_the_old_spelling(dvc_project):
    """Retraining resolves the champion's recipe at its commit."""
    from pipelines.retraining.flow import recipe_at

    top = dvc_project / "pipelines/recipes/top.yaml"
    git(dvc_project, "init", "-q")
    for key in ("base", "extends"):
        top.write_text(f"{key}: laptop.yaml\nfirst: 5\nbase.kind: hub\n")
        commit_all(dvc_project, key, "pipelines", "dvc.yaml")
        found = recipe_at(dvc_project, "HEAD", "top")
        assert found == {"first": 5, "rounds": {"a": 1, "b": 2}, "base": {"kind": "hub"}}
    assert recipe_at(dvc_project, "HEAD", "none") is None
