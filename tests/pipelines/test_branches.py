"""Branches of the graph that a recipe omits, and a new one that is added: real DVC in copies of the project."""

import json
import shutil
import subprocess
import sys

import pytest

from stages.foundations.files import load_yaml
from tests.fakes.miniature import LAPTOP, copy_project, dvc, environment, stages_run, use_miniature

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WEB = {"collect_web", "extract_web", "filter_web"}
NO_WEB = """
extends: mini.yaml
without: [collect_web, extract_web, filter_web]
demonstrate:
  sources: [{kind: given, sources: null, max_rows: null}]
"""
TOYS = "seed: 3\ntoy: {value: 4}\ntwists: {one: {by: 2}, two: {by: 5}}\n"
STAGE = """from stages.foundations.params import StrictParams
from stages.foundations.stage import About, Stage


class {model}(StrictParams):
    {field}: int


STAGE = Stage(
    sections={{"seed": int, "{section}": {type}}},
    inputs={inputs},
    outputs={{"out": "data/toys/{out}.json", "metrics": "data/metrics/{metrics}.json"}},
    foreach="{foreach}",
)


def _contradictions(sections):
    return ["toy.value 13 brings bad luck: take another"] if sections["{section}"] and {wrong} else []


ABOUT = About(description="A toy.", contradictions=_contradictions, named_after=("policy",), raw={raw})
"""
RUN = """import json

from stages.foundations.files import write_json
from stages.foundations.files import write_metrics


def main(job):
    value = {value}
    write_json(job.paths.out, {{"value": value}})
    write_metrics(job.paths.metrics, {{"value": value}})
"""


def write_branch(folder):
    """Writes two packages, the output of `retrace graph`, and a recipe with only this branch."""
    packages = {
        "toy": {
            "stage": {
                "section": "toy",
                "model": "ToyParams",
                "type": "ToyParams",
                "field": "value",
                "inputs": {},
                "foreach": "",
            }
            | {"out": "first", "metrics": "toy", "wrong": 'sections["toy"].value == 13'}
            | {"raw": 'lambda params: [{"kind": "toys", "seed": 1}]'},
            "run": 'job.sections["toy"].value',
        },
        "twist": {
            "stage": {"section": "twists", "model": "TwistParams", "type": "dict[str, TwistParams]", "field": "by"}
            | {"inputs": {"first": "data/toys/first.json"}, "foreach": "twists", "out": "twisted/${key}"}
            | {"metrics": "twist/${key}", "wrong": "False", "raw": "lambda params: []"},
            "run": 'job.sections["twists"].by * json.loads(job.paths.first.read_text())["value"]',
        },
    }
    for name, parts in packages.items():
        place = folder / "stages" / name
        place.mkdir()
        (place / "__init__.py").touch()
        (place / "stage.py").write_text(STAGE.format(name=name, **parts["stage"]))
        (place / "run.py").write_text(RUN.format(value=parts["run"]))
    assert retrace(folder, "graph", "--check", code=1) == (
        "dvc.yaml differs from what these stages declare: toy, twist. Run `retrace graph`\n"
    )
    assert retrace(folder, "graph") == "dvc.yaml now matches what these stages declare: toy, twist\n"
    assert retrace(folder, "graph", "--check") == "dvc.yaml matches what the stages declare\n"
    (folder / "pipelines/recipes/toys.yaml").write_text(TOYS)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Makes a copy with the toy branch, the miniature as a recipe, and a recipe based on it without the web."""
    folder = copy_project(tmp_path_factory.mktemp("project"))
    write_branch(folder)
    one_round = {"policies": ["sft", "rl_1"], "rl_rounds.rl_2": None}
    use_miniature(folder, "laptop", LAPTOP | one_round)
    shutil.copy(folder / "params.yaml", folder / "pipelines/recipes/mini.yaml")
    (folder / "pipelines/recipes/no-web.yaml").write_text(NO_WEB)
    return folder


def python(folder, *arguments, tracking=False, code=0):
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment(tracking), text=True, capture_output=True, check=False)
    printed = done.stdout + done.stderr
    assert done.returncode == code, printed
    return printed


def retrace(folder, *words, **more):
    return python(folder, "-c", "from pipelines.cli import app; app()", *words, **more)


def names_in(folder, *arguments):
    """Returns the stages, without their items, that DVC would run for `make repro`."""
    script = "from pipelines.graph.graph import repro_arguments as w; from pathlib import Path; print(*w(Path('.')))"
    chosen = python(folder, "-c", script).split()
    printed = dvc(folder, "repro", "--dry", *arguments, *chosen)
    return {name.partition("@")[0] for name in stages_run(printed)}


def test_a_new_branch_is_two_packages_and_one_command(project):
    printed = python(project, "-m", "pipelines.commands.repro", "toys", tracking=True)
    shown = [line.split()[:2] for line in printed.splitlines() if line.startswith("[")]
    assert shown == [["[2/4]", "toy"], ["[3/4]", "twist@one"], ["[4/4]", "twist@two"]]
    assert "stages  up to 3 of 4: toy, twist (2)" in printed and "\x1b" not in printed
    assert "4 stages ran" in printed and "python -m stages toy" not in printed
    assert json.loads((project / "data/toys/twisted/two.json").read_text()) == {"value": 20}
    again = python(project, "-m", "pipelines.commands.repro", "toys")
    assert again == "recipe  toys\neverything is up to date: 4 stages\n"
    again = stages_run(python(project, "-m", "pipelines.commands.repro", "toys", "--verbose"))
    assert again in (["code"], [])
    explained = retrace(project, "explain", "data/toys/twisted/one.json")
    assert explained.index("twist@one") < explained.index("\ntoy\n") and "raw     kind toys" in explained
    assert "MLflow has every run" in retrace(project, "mirror", tracking=True)
    assert "no stage of this recipe trains or samples a language model" in retrace(project, "plan", "toys", code=2)
    assert "is no policy of this project" in retrace(project, "compare", "one", "two", code=2)


@pytest.mark.parametrize(
    ("raised", "code", "said"), [("UserError", 2, "error: no toys"), ("RuntimeError", 1, "RuntimeError: no toys")]
)
def test_a_failing_stage_is_shown_with_all_it_said_and_gives_its_exit_code(project, raised, code, said):
    source = project / "stages/toy/run.py"
    before = source.read_text()
    imported = "    from stages.foundations.errors import UserError\n"
    source.write_text(before.replace("    value =", f"{imported}    raise {raised}('no toys')\n    value =", 1))
    printed = python(project, "-m", "pipelines.commands.repro", "toys", code=code)
    source.write_text(before)
    failed, rest = printed.split("[2/4] toy  failed after ")[1].split("\n", 1)
    assert failed.endswith(f"exit code {code}") and said in rest
    assert rest.splitlines()[-1] == "The whole output is in state/repro.log."
    assert ("Traceback" in rest) == (raised == "RuntimeError")


def test_its_mistakes_are_told_by_its_own_package(project):
    recipe = project / "pipelines/recipes/unlucky.yaml"
    recipe.write_text("extends: toys.yaml\ntoy.value: 13\n")
    assert "toy.value 13 brings bad luck" in python(project, "-m", "pipelines.commands.repro", "unlucky", code=2)
    recipe.write_text("extends: toys.yaml\ntoy: {vlaue: 1}\n")
    assert "toy.vlaue: unknown key" in python(project, "-m", "pipelines.commands.repro", "unlucky", code=2)
    recipe.write_text("extends: toys.yaml\nwithout: [toy]\n")
    told = python(project, "-m", "pipelines.commands.repro", "unlucky", code=2)
    assert "twist@one needs data/toys/first.json" in told and "add section `toy`" in told
    recipe.unlink()


def test_a_recipe_without_the_web_runs_all_the_rest(project):
    """DVC resolves the graph here; test_paper_recipes.py runs such a graph to its report."""
    retrace(project, "use", "no-web")
    chosen = names_in(project, "--force")
    assert {"base", "collect", "curate", "demonstrate", "sft", "rl_round", "respond", "grade", "report"} <= chosen
    assert not chosen & (WEB | {"toy", "twist"})
    assert "in all" in retrace(project, "plan", "no-web", "--gpu", "H100")
    assert "extends" not in load_yaml((project / "params.yaml").read_text())
