"""What a change of the project's own code, or of a `kind`, re-runs: the real stages and dvc.yaml, copied and edited."""

import ast
import functools
import json
import random
import shutil
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from pipelines.graph.schema import section_models
from stages.foundations.definitions import ALL, GUARD, read_source
from stages.foundations.errors import UserError
from stages.foundations.fingerprints import ASKS_OTHERS, Project, stage_names, stage_roots
from stages.foundations.params import read_yaml

PROJECT = Path(__file__).resolve().parents[2]
LAPTOP = read_yaml(PROJECT / "pipelines" / "recipes" / "laptop.yaml")
STAGES = stage_names(PROJECT)
DVC_STAGES = {name: stage.get("do", stage) for name, stage in read_yaml(PROJECT / "dvc.yaml")["stages"].items()}
MEMORY = {}


@functools.cache
def reaches():
    """What every stage reaches; not read while tests are collected, which every worker does."""
    project = Project(PROJECT, LAPTOP, MEMORY)
    return {name: project.reach(*stage_roots(PROJECT, name)) for name in STAGES}


@pytest.fixture
def project(tmp_path):
    """A copy of the stages."""
    shutil.copytree(PROJECT / "stages", tmp_path / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "dvc.yaml").write_bytes((PROJECT / "dvc.yaml").read_bytes())
    return tmp_path


@pytest.fixture
def memory(project):
    """What is known of the copy's files; an edited one must be forgotten."""
    reaches()
    return {project / path.relative_to(PROJECT): source for path, source in MEMORY.items()}


def fingerprints(root, memory, stages=None):
    project = Project(root, LAPTOP, memory)
    return {stage: project.fingerprint(stage) for stage in stages or stage_names(root)}


def edit(root, memory, place, old, new):
    path = root / place
    assert old in path.read_text(), (place, old)
    path.write_text(path.read_text().replace(old, new))
    memory.pop(path, None)


SCHEMA = """
from stages.foundations.tables import TEXT, TableSchema

PICTURE = TableSchema("picture", {"picture_id": TEXT})
"""
MAIN = """
from stages.foundations.params import load_section
from stages.foundations.picture import PICTURE


def main(job):
    print(load_section, PICTURE)
"""


def test_what_a_stage_does_not_compute_with_leaves_its_fingerprint(project, memory):
    before = fingerprints(project, memory)

    def changed():
        after = fingerprints(project, memory)
        return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}

    whole = {reach.files[module] for reach in reaches().values() for module, name in reach.definitions if name == ALL}
    sources = [path for path in memory if path.name != "stage.py"]
    files = [path for path in sources if path.relative_to(project) not in whole]
    for path in files:
        path.write_text(f"{path.read_text()}\n\ndef a_function_more():\n    return {path.name!r}\n")
        del memory[path]
    assert len(files) > 0.9 * len(sources) and changed() == set(), "a function more in nearly every file"
    (project / "stages/foundations/picture.py").write_text(SCHEMA)
    assert changed() == set(), "a new schema"
    edit(project, memory, "stages/observe/tracking.py", "math.isfinite(value)", "value < 1e9")
    assert changed() == set(), "tracking"
    for place in (
        "engines/trainers/deepspeed_trainer.py",
        "engines/samplers/vllm_sampler.py",
        "engines/verifier/model_judge.py",
        "rl_round/judging.py",
        "engines/distributed/ray_session.py",
    ):
        edit(project, memory, f"stages/{place}", ":\n    ", ":\n    1 + 1\n    ")
    assert LAPTOP["trainer"]["kind"] == "torch" and changed() == set(), "DeepSpeed, vLLM, the judge and Ray"
    (project / "stages/paint").mkdir()
    (project / "stages/paint/__init__.py").write_text("")
    (project / "stages/paint/run.py").write_text(MAIN)
    (project / "stages/paint/stage.py").write_text("STAGE = ABOUT = None\n")
    assert changed() == {"paint"}, "a whole new stage with its table"
    trained = {"sft", "rl_round", "reward_model", "refl"}
    edit(
        project, memory, "stages/engines/trainers/torch_trainer.py", "class TorchTrainer(", "class TorchTrainer(dict, "
    )
    assert changed() == {"paint", *trained}, "what is chosen counts"


def test_a_users_file_counts_for_the_stages_whose_parameters_name_it(project, memory):
    """Its comments do not; a file that is missing is an error before anything runs."""
    shutil.copytree(PROJECT / "custom", project / "custom")
    file = project / "custom/mine.py"
    params = json.loads(json.dumps(LAPTOP))
    for section, field in (("rl", "reward"), ("grade", "verifier"), ("curate", "filter")):
        params[section][field] = {"kind": "function", "file": "custom/mine.py", "name": "score"}

    def seen(text):
        file.write_text(text)
        known = Project(project, params, memory)
        return {stage: known.fingerprint(stage) for stage in ("sft", "rl_round", "grade", "curate")}

    first, commented, changed = map(seen, ("def score(): return 1", "# Why.\ndef score(): return 1", "score = len"))
    assert first == commented and first["sft"] == changed["sft"]
    for stage in ("rl_round", "grade", "curate"):
        assert first[stage].keys() == changed[stage].keys() and "CustomFunction" in first[stage]
        differing = [name for name, value in first[stage].items() if changed[stage][name] != value]
        assert differing == ["custom/mine.py"]
    without = Project(project, LAPTOP, memory).fingerprint("grade")
    assert "CustomFunction" not in without, "the rules do not run again where the user's functions change"
    file.unlink()
    with pytest.raises(UserError, match=r"custom/mine.py does not exist: there are custom/brevity.py"):
        Project(project, params, memory).fingerprint("rl_round")


@pytest.fixture(scope="module")
def choices():
    """Section and class of every choice that a stage's code makes."""
    return {
        (case.section, *(source.imports | definition.imports)[case.params_class])
        for path in PROJECT.glob("stages/**/*.py")
        for source in [read_source(path, ".".join(path.relative_to(PROJECT).parent.parts))]
        for definition in source.definitions.values()
        for case in definition.cases
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
        model, default = (info.annotation, None if info.is_required() else info.get_default(call_default_factory=True))
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
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
        calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "chosen"]
        assert calls == [node.subject for node in nodes if is_choice(node)], path


def is_choice(node):
    return isinstance(node, ast.Match) and ast.unparse(node.subject).startswith("chosen('")


@pytest.mark.parametrize("stage", STAGES)
def test_a_change_of_kind_reaches_the_stage_through_its_parameters(stage):
    """dvc.yaml lists every section that chooses code of the stage; DVC compares the values."""
    project = Project(PROJECT, LAPTOP, MEMORY)
    definitions = [project.definition(address) for address in reaches()[stage].definitions]
    sections = {case.section.split(".")[0] for one in definitions if one for case in one.cases}
    assert sections <= set(DVC_STAGES[stage].get("params", []))


def test_the_fingerprint_follows_the_kind():
    def reached(stage, section, kind):
        params = json.loads(json.dumps(LAPTOP))
        place = params
        for part in section.split("."):
            place = place[part]
        place["kind"] = kind
        return {name for _, name in Project(PROJECT, params, MEMORY).reach(*stage_roots(PROJECT, stage)).definitions}

    for stage, section, alternatives in (
        ("sft", "trainer", {"torch": "TorchTrainer", "deepspeed": "DeepspeedTrainer"}),
        ("rl_round", "trainer", {"torch": "TorchTrainer", "deepspeed": "DeepspeedTrainer"}),
        ("respond", "sampler", {"torch": "TorchSampler", "vllm": "VllmSampler"}),
        ("rl_round", "rl.verifier", {"model": "ModelJudge", "rule": ""}),
        ("rl_round", "rl.loop", {"replay": "ReplayedBatches", "synchronous": ""}),
        ("extract_web", "extract_web.engine", {"ray": "map_with_ray", "local": ""}),
    ):
        names = set(filter(None, alternatives.values()))
        for kind, name in alternatives.items():
            assert reached(stage, section, kind) & names == set(filter(None, [name])), (stage, section, kind)


def test_code_of_environments_counts_only_where_the_recipe_has_one():
    def modules(stage, **environment):
        params = json.loads(json.dumps(LAPTOP))
        params["prompt"] |= environment
        reached = Project(PROJECT, params, MEMORY).reach(*stage_roots(PROJECT, stage)).definitions
        return {module for module, _ in reached if module.startswith("stages.engines.environments")}

    tools = {"kind": "tools", "frame": {"kind": "text"}}
    for stage in ("rl_round", "respond", "demonstrate"):
        assert not modules(stage), stage
        with_tools = modules(stage, environment=tools)
        assert {"turn_sampler", "frames", "worker", "tools_environment"} <= {
            module.rpartition(".")[2] for module in with_tools
        }
        assert not any("verifiers" in module or "gym" in module for module in with_tools)


def statements(tree):
    """A module's definitions, by name."""
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def sites(tree):
    """The constants and operators of a definition, bare strings and the cases of a choice aside."""
    inside = {id(node): node for node in ast.walk(tree)}
    apart = [node for node in inside.values() if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    apart += [case for node in inside.values() if is_choice(node) for case in node.cases]
    left_out = {id(node) for one in apart for node in ast.walk(one)}
    return [
        node
        for number, node in inside.items()
        if number not in left_out
        and isinstance(node, ast.BinOp | ast.BoolOp | ast.Compare | ast.UnaryOp | ast.AugAssign | ast.Constant)
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
    """One constant or operator of a random definition that a random stage reaches: that stage's fingerprint has it.

    And one of a random definition that the stage does not reach, in a file that it imports, is not in it.
    """
    before, rng, mutated, others = fingerprints(project, memory), random.Random(0), set(), 0
    for number, stage in enumerate(rng.choices(STAGES, k=100)):
        reach = reaches()[stage]
        module = rng.choice(sorted({module for module, name in reach.definitions if name not in (ALL, GUARD)}))
        path = project / reach.files[module]
        kept, source = path.read_text(), memory.pop(path)
        if number < 20:
            path.write_text(ast.unparse(ast.parse(kept)))
            assert fingerprints(project, memory, [stage]) == {stage: before[stage]}, "it lost its comments"
        found = {True: [], False: []}
        # A stage that asks others what they declare has each one's stage.py as a file.
        is_whole = source.is_whole or str(reach.files[module]) in before[stage]
        for name, node in statements(ast.parse(kept)).items():
            found[is_whole or (module, name) in reach.definitions] += [name] if sites(node) else []
        for is_reached in (True, False):
            if not found[is_reached]:
                continue
            tree, name = ast.parse(kept), rng.choice(found[is_reached])
            mutate(rng.choice(sites(statements(tree)[name])))
            path.write_text(ast.unparse(tree))
            memory.pop(path, None)
            after = fingerprints(project, memory, [stage])[stage]
            assert (after != before[stage]) == is_reached, (stage, module, name, path.read_text())
            mutated |= {(module, name)} if is_reached else set()
            others += not is_reached
        path.write_text(kept)
        memory[path] = source
    assert len(mutated) > 50 and others > 10


def test_a_stage_or_round_more_in_the_graph_runs_nothing_again_but_the_pages():
    """What asks stages about themselves has the graph in its fingerprint: a round more would train all rounds again."""
    asking = {name for name, reach in reaches().items() if not ASKS_OTHERS.isdisjoint(reach.definitions)}
    assert asking == {"report", "t2i_report"}


def test_what_a_worker_runs_is_reached_by_every_stage_that_starts_one():
    """A worker imports its function by name, in a process of its own."""
    found = [reach.definitions for reach in reaches().values()]
    worker = ("stages.engines.workers.worker", GUARD), ("stages.engines.workers.worker", "serve")
    for starter, runs in (
        ("stages.engines.verifier.verifier", ("stages.engines.verifier.math_verify_worker", "compare")),
        ("stages.extract_web.extraction", ("stages.extract_web.extraction", "extract_page")),
    ):
        starting = [reached for reached in found if any(module == starter for module, _ in reached)]
        assert starting and all({*worker, runs} <= reached.keys() for reached in starting)
