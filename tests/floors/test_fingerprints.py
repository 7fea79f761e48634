"""What a change of the project's own code, or of a `kind`, re-runs: the real stages and dvc.yaml, copied and edited."""

import ast
import functools
import json
import random
import shutil
from pathlib import Path
from typing import get_args

import pytest
import yaml
from pydantic import BaseModel

from pipelines.graph.schema import section_models
from stages.foundations.fingerprints import ABOUT, fingerprint, import_closure, read_source, stage_names
from stages.foundations.params import read_yaml
from tests.fakes.miniature import dvc, stages_run

PROJECT = Path(__file__).resolve().parents[2]
LAPTOP = read_yaml(PROJECT / "pipelines" / "recipes" / "laptop.yaml")
STAGES = stage_names(PROJECT)
DVC_STAGES = {
    name: stage.get("do", stage) for name, stage in read_yaml(PROJECT / "dvc.yaml")["stages"].items()
}
MEMORY = {}


@functools.cache
def closures():
    """Every stage's files; not read while tests are collected, which every worker does."""
    return {name: import_closure(PROJECT, f"stages.{name}.__main__", LAPTOP, MEMORY) for name in STAGES}


@pytest.fixture
def project(tmp_path):
    """A copy of the stages."""
    shutil.copytree(PROJECT / "stages", tmp_path / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.fixture
def memory(project):
    """What is known of the copy's files; an edited one must be forgotten."""
    closures()
    return {project / path.relative_to(PROJECT): source for path, source in MEMORY.items()}


def fingerprints(root, memory):
    return {name: fingerprint(root, f"stages.{name}.__main__", LAPTOP, memory) for name in stage_names(root)}


def add_line(root, memory, *places):
    for place in places:
        assert list(root.glob(place)), place
        for path in root.glob(place):
            path.write_text(path.read_text() + "\nADDED = 1\n")
            memory.pop(path, None)


SCHEMA = """
from stages.foundations.tables.table import TEXT, TableSchema

PICTURE = TableSchema("picture", {"picture_id": TEXT})
"""
MAIN = """
from stages.foundations.params import load_section
from stages.foundations.tables.picture import PICTURE
from stages.observe.command import run_stage


def main(argv=None):
    print(load_section, PICTURE)


if __name__ == "__main__":
    run_stage(main)
"""


def test_what_a_stage_does_not_compute_with_leaves_its_fingerprint(project, memory):
    before = fingerprints(project, memory)

    def changed():
        after = fingerprints(project, memory)
        return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}

    (project / "stages/foundations/tables/picture.py").write_text(SCHEMA)
    assert changed() == set(), "a new schema"
    tracking = project / "stages/observe/tracking.py"
    tracking.write_text(tracking.read_text().replace("math.isfinite(value)", "value < 1e9"))
    add_line(project, memory, "stages/observe/*.py")
    assert changed() == set(), "tracking"
    add_line(project, memory, "stages/engines/trainers/deepspeed*.py")
    assert LAPTOP["trainer"]["kind"] == "torch" and changed() == set(), "DeepSpeed's trainer"
    add_line(project, memory, "stages/engines/samplers/vllm*.py", "stages/engines/verifier/model_judge.py")
    add_line(project, memory, "stages/rl_round/rollouts/judging.py", "stages/engines/distributed/ray*.py")
    assert changed() == set(), "vLLM, the judge and Ray"
    (project / "stages/paint").mkdir()
    (project / "stages/paint/__init__.py").write_text("")
    (project / "stages/paint/__main__.py").write_text(MAIN)
    assert changed() == {"paint"}, "a whole new stage with its table"
    trained = {"sft", "rl_round", "reward_model", "refl"}
    add_line(project, memory, "stages/engines/trainers/torch_trainer.py")
    assert changed() == {"paint", *trained}, "what is chosen counts"
    add_line(project, memory, "stages/foundations/tables/rollout.py", "stages/extract_web/readers/mathml.py")
    assert changed() == {"paint", *trained, "extract_web"}


@pytest.fixture(scope="module")
def choices():
    """Section and class of every choice that a stage's code makes."""
    return {
        (choice.section, choice.params_class)
        for path in PROJECT.glob("stages/**/*.py")
        for choice in read_source(path, ".".join(path.relative_to(PROJECT).parent.parts)).choices
    }


def test_the_choices_there_are(choices):
    assert {section for section, _ in choices} == {
        "annotate",
        "extract_web.engine",
        "extract_web.method",
        "extract_web.method.model",
        "filter_web.agreement",
        "refl.feedback",
        "refl.pretraining.images",
        "rl.loop",
        "rl.verifier",
        "sampler",
        "sampler.replicas",
        "scorer_base",
        "t2i_base",
        "trainer",
    }


def declared(section):
    """The model classes that the section may be, and its default where it may be absent."""
    name, *fields = section.split(".")
    model, default = section_models()[name], None
    for field in fields:
        # Where the section is one of several models, those that have the field say the same of it.
        (info,) = {
            repr(one.model_fields[field]): one.model_fields[field]
            for one in flat(model)
            if field in getattr(one, "model_fields", {})
        }.values()
        model, default = (
            info.annotation,
            None if info.is_required() else info.get_default(call_default_factory=True),
        )
    return [one for one in flat(model) if isinstance(one, type) and issubclass(one, BaseModel)], default


def flat(union):
    arguments = get_args(union)
    return [one for argument in arguments for one in flat(argument)] if arguments else [union]


def test_a_choice_is_of_a_class_that_the_section_may_be(choices):
    for section, params_class in choices:
        module, _, name = params_class.rpartition(".")
        found = [one for one in declared(section)[0] if (one.__module__, one.__name__) == (module, name)]
        source = read_source(PROJECT / f"{module.replace('.', '/')}.py", "stages")
        kinds = [get_args(one.model_fields["kind"].annotation) for one in found]
        assert kinds == [(source.kinds[name],)], (section, params_class)


def test_no_default_has_code_of_its_own(choices):
    """So where a section is absent, no case of it is missing in the fingerprint."""
    for section, params_class in choices:
        default = declared(section)[1]
        assert f"{type(default).__module__}.{type(default).__name__}" != params_class, section


def test_every_call_of_chosen_is_one_that_fingerprints_understand():
    for path in PROJECT.glob("stages/**/*.py"):
        text = path.read_text()
        if "chosen(" not in text:
            continue
        called = {
            node.args[0].value
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "chosen"
        }
        assert called == {choice.section for choice in read_source(path, "stages").choices}, path


@pytest.mark.parametrize("stage", STAGES)
def test_a_change_of_kind_reaches_the_stage_through_its_parameters(stage):
    """dvc.yaml lists every section that chooses code of the stage; DVC compares the values."""
    sections = {choice.section.split(".")[0] for file in closures()[stage] for choice in MEMORY[file].choices}
    assert sections <= set(DVC_STAGES[stage].get("params", []))


def test_the_fingerprint_follows_the_kind():
    def files(stage, section, kind):
        params = json.loads(json.dumps(LAPTOP))
        place = params
        for part in section.split("."):
            place = place[part]
        place["kind"] = kind
        return set(fingerprint(PROJECT, f"stages.{stage}.__main__", params, MEMORY))

    engines = "stages/engines"
    for stage, section, kinds, own in (
        ("sft", "trainer", ("torch", "deepspeed"), (f"{engines}/trainers/%s_trainer.py",)),
        ("rl_round", "trainer", ("torch", "deepspeed"), (f"{engines}/trainers/%s_trainer.py",)),
        ("respond", "sampler", ("torch", "vllm"), (f"{engines}/samplers/%s_sampler.py",)),
    ):
        for kind, other in (kinds, kinds[::-1]):
            found = files(stage, section, kind)
            assert {path % kind for path in own} <= found and not {path % other for path in own} & found
    judge = {"stages/rl_round/rollouts/judging.py", f"{engines}/verifier/model_judge.py"}
    assert judge <= files("rl_round", "rl.verifier", "model")
    assert not judge & files("rl_round", "rl.verifier", "rule")
    replayed = "stages/rl_round/loop/replayed.py"
    assert replayed in files("rl_round", "rl.loop", "replay")
    assert replayed not in files("rl_round", "rl.loop", "synchronous")
    ray = {f"{engines}/distributed/{name}.py" for name in ("ray_rows", "ray_session", "ray_guard")}
    assert ray <= files("extract_web", "extract_web.engine", "ray")
    assert not ray & files("extract_web", "extract_web.engine", "local")
    asking = {"stages/extract_web/running/second_reading.py", "stages/extract_web/asking/spans.py"}
    assert asking <= files("extract_web", "extract_web.method", "model")
    assert not asking & files("extract_web", "extract_web.method", "rules")


def tables_of(files):
    return {file.stem for file in files if file.parent.name == "tables"} - {"__init__", "table"}


@pytest.mark.parametrize("stage", STAGES)
def test_a_closure_holds_the_schemas_that_its_stage_names_and_no_other(stage):
    """Besides those that these are made of (a benchmark has the columns of a problem), and a funnel's drops.

    What an engine names that the stage computes with counts as the stage's own: shards are image tables.
    """
    rooms = (PROJECT / "stages" / stage, PROJECT / "stages/engines")
    named = {
        name
        for file in closures()[stage]
        if any(file.is_relative_to(room) for room in rooms)
        for name in MEMORY[file].imports
    }
    of_tables = ("stages.foundations.tables.", "stages.foundations.funnel")
    modules = {name for name in named if name.startswith(of_tables)}
    wanted = {file for module in modules for file in import_closure(PROJECT, module, LAPTOP, MEMORY)}
    assert tables_of(closures()[stage]) == tables_of(wanted)


def sites(tree):
    """The constants and operators inside functions, bare strings aside: they are comments."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inside = {id(node): node for function in functions for node in ast.walk(function)}.values()
    bare = {id(node.value) for node in inside if isinstance(node, ast.Expr)}
    return [
        node
        for node in inside
        if isinstance(node, ast.BinOp | ast.BoolOp | ast.Compare | ast.UnaryOp | ast.AugAssign)
        or (isinstance(node, ast.Constant) and not (id(node) in bare and isinstance(node.value, str)))
    ]


def mutate(node):
    """Makes the constant or operator another one."""
    match node:
        case ast.Constant(bool(value)):
            node.value = not value
        case ast.Constant(int() | float() as value):
            node.value = value + 1
        case ast.Constant(str(value)):
            node.value = value + "x"
        case ast.Constant(bytes(value)):
            node.value = value + b"x"
        case ast.Constant():  # None and ...
            node.value = 1
        case ast.Compare():
            node.ops[0] = ast.NotEq() if isinstance(node.ops[0], ast.Eq) else ast.Eq()
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.UnaryOp():
            node.op = ast.UAdd() if isinstance(node.op, ast.USub) else ast.USub()
        case _:
            node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()


def test_each_of_a_hundred_mutations_is_seen(project, memory):
    """One constant or operator of a random function of a random stage's closure, each in that stage's fingerprint."""
    before, rng, counts, mutated = fingerprints(project, memory), random.Random(0), {}, []
    for name in {name for found in before.values() for name in found if name.endswith(".py")}:
        counts[name] = len(sites(ast.parse((project / name).read_bytes())))
    for stage in rng.choices(STAGES, k=100):
        name = rng.choice([name for name in before[stage] if counts.get(name)])
        path = project / name
        kept, source, tree = path.read_text(), memory.pop(path), ast.parse(path.read_bytes())
        path.write_text(ast.unparse(tree))
        module = f"stages.{stage}.__main__"
        assert fingerprint(project, module, LAPTOP, memory) == before[stage], f"{name} lost only its comments"
        mutate(sites(tree)[rng.randrange(counts[name])])
        path.write_text(ast.unparse(tree))
        del memory[path]
        assert fingerprint(project, module, LAPTOP, memory).get(name) != before[stage][name], path.read_text()
        path.write_text(kept)
        memory[path] = source
        mutated.append(name)
    assert len(mutated) == 100 and len(set(mutated)) > 50


def test_dvc_runs_nothing_but_code(project):
    """Real DVC and fingerprints over the stage `sft` with its own dependencies; its command only writes a file."""
    sft = DVC_STAGES["sft"]
    code = [dep for dep in sft["deps"] if dep.startswith("data/code/")]
    mini = {
        "code": DVC_STAGES["code"],
        "sft": {"cmd": "date +%N > policy", "deps": code, "params": sft["params"], "outs": ["policy"]},
    }
    (project / "dvc.yaml").write_text(yaml.safe_dump({"stages": mini}))
    (project / "params.yaml").write_text(yaml.safe_dump(LAPTOP))
    (project / ".dvc").mkdir()
    (project / ".dvc/config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    assert stages_run(dvc(project, "repro")) == ["code", "sft"]
    written = {path.name: path.read_bytes() for path in project.glob("data/code/*.json")}
    (project / "stages/foundations/tables/picture.py").write_text(SCHEMA)
    add_line(project, {}, "stages/observe/*.py", "stages/engines/trainers/deepspeed_trainer.py")
    assert stages_run(dvc(project, "repro")) == ["code"]
    assert written == {path.name: path.read_bytes() for path in project.glob("data/code/*.json")}
    assert len(written) == len(STAGES)
    params = {**LAPTOP, "trainer": {**LAPTOP["trainer"], "kind": "deepspeed"}}
    (project / "params.yaml").write_text(yaml.safe_dump(params))
    assert "trainer" in dvc(project, "status", "sft"), "before `code` has run: the parameters say it"
    assert stages_run(dvc(project, "repro")) == ["code", "sft"]
    add_line(project, {}, "stages/engines/trainers/deepspeed_trainer.py")
    assert stages_run(dvc(project, "repro")) == ["code", "sft"]


def test_a_stage_or_round_more_in_the_graph_runs_nothing_again_but_the_pages():
    """What asks stages about themselves has the graph in its fingerprint: a round more would train all rounds again."""
    asking = {name for name, files in closures().items() if PROJECT / ABOUT in files}
    assert asking == {"report", "t2i_report"}


def test_what_a_worker_runs_is_in_the_closure_of_every_stage_that_starts_one():
    """A worker imports its function by name, in a process of its own."""
    found = [{path.relative_to(PROJECT).as_posix() for path in files} for files in closures().values()]
    worker = "stages/engines/workers/worker.py"
    for starter, runs in (
        ("engines/verifier/verifier.py", {worker, "stages/engines/verifier/math_verify_worker.py"}),
        ("extract_web/running/page_readers.py", {worker, "stages/extract_web/running/extraction.py"}),
    ):
        starting = [closure for closure in found if f"stages/{starter}" in closure]
        assert starting and all(runs <= closure for closure in starting)
