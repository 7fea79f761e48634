"""Imports point down: pipelines -> stages/<stage> -> engines -> algorithms -> observe -> foundations.

The wing stages/images has engines and algorithms of its own, which only its stages import.

No circle among modules, and none among the rooms (folders) that they lie in.
"""

import ast
import functools
from pathlib import Path

import networkx
import pytest

PROJECT = Path(__file__).resolve().parents[2]
LEVELS = {"stages.foundations": 0, "stages.observe": 1, "stages.algorithms": 2, "stages.engines": 3, "stages.pages": 3}
LEVELS |= {"stages.images.algorithms": 2, "stages.images.engines": 3}
WING = "stages.images"
STAGE_LEVEL, PIPELINES_LEVEL = 4, 5
OWNERS_OF_SHARED_SECTIONS = (
    "stages.engines.samplers.params",
    "stages.engines.trainers.params",
    "stages.engines.verifier",
)
"""Where the models of the sections `sampler`, `trainer` and `verifier` live."""
INTERVALS = ("stages.algorithms.estimators",)
"""What compares runs needs the formulas of comparisons and of scores, and no other."""
SAME_TEXT = ("stages.algorithms.problem_text", "stages.algorithms.decontamination")
"""When two texts are the same one: `compare`, the gate and `phrases` must mean by it what `curate` does."""
PINNED = ("stages.engines.pinned_files",)
"""`retrace phrases` gets the paper's list as a recipe gets its files: from the mirror too, by its hash."""
POLICIES = (
    "stages.engines.new_tokenizers",
    "stages.engines.policies.packing",
    "stages.engines.policies.policy_folders",
    "stages.engines.policies.statistics",
    "stages.engines.policies.tokenizers",
    "stages.engines.samplers",
    "stages.engines.trainers",
    "stages.engines.turns",
)
"""What the planner counts and the page of rollouts asks, instead of a copy."""
PROBED = ("stages.engines.workers.sandbox", "stages.engines.environments.python_programs")
"""What `retrace doctor` says of the kernel and of the sandbox for programs must be what workers find."""
CUSTOM = ("stages.engines.custom_functions", "stages.engines.environments.pool")
"""`retrace reward` and `retrace environment` must treat code of the user's as a round does."""
MARKED = ("stages.algorithms.answers.extraction",)
"""The page of rollouts marks the answer that the verifier reads."""
PAGES = ("stages.pages",)
"""Pages, figures and Markdown tables of `compare`, `ablate`, `explain` and Prefect look like the report."""
ENGINES_ONLY = {"vllm", "deepspeed", "transformers", "ray"}


def module_name(path: Path) -> str:
    parts = path.relative_to(PROJECT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_name(path): path for folder in ("stages", "pipelines") for path in sorted((PROJECT / folder).rglob("*.py"))
}


def imports_of(path: Path, package: str) -> set[str]:
    """Names that the file's import statements bind or load, inside functions too.

    `from a import b` gives `a` and `a.b`, which may be a module or not.
    """
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, [base, node.module]))
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return found


@functools.cache
def imports() -> dict[str, set[str]]:
    """What each module imports; not read while tests are collected, which every worker does."""
    return {
        module: imports_of(path, module if path.name == "__init__.py" else module.rpartition(".")[0])
        for module, path in MODULES.items()
    }


def offenders(modules, is_wrong, names=None) -> dict[str, set[str]]:
    """The wrong imports of those of the modules that have any; `names(module)` are what it imports itself."""
    found = {m: {name for name in (names or imports().get)(m) if is_wrong(m, name)} for m in modules}
    return {module: wrong for module, wrong in found.items() if wrong}


def level(module: str) -> int | None:
    """The layer of a module of the project; None for other people's and for the bare package `stages`."""
    if module.split(".")[0] == "pipelines":
        return PIPELINES_LEVEL
    for prefix, number in LEVELS.items():
        if f"{module}.".startswith(f"{prefix}."):
            return number
    return STAGE_LEVEL if module.startswith("stages.") else None


def stage_of(module: str) -> str | None:
    if level(module) != STAGE_LEVEL or module == WING:
        return None
    return module.removeprefix("stages.images.").removeprefix("stages.").split(".")[0]


def test_imports_point_down():
    modules = [module for module in MODULES if level(module) is not None]
    assert offenders(modules, lambda module, name: (level(name) or 0) > level(module)) == {}


def test_yaml_has_one_home():
    """A second reader would have another dialect: DVC reads YAML 1.2, PyYAML 1.1. recipes.py keeps comments."""
    home = {"stages.foundations.files", "stages.foundations.interpreter", "pipelines.graph.recipes"}
    assert offenders(MODULES.keys() - home, lambda _, name: name.split(".")[0] in ("yaml", "ruamel")) == {}


def test_no_stage_imports_another():
    modules = [module for module in MODULES if stage_of(module)]
    assert offenders(modules, lambda module, name: stage_of(name) not in (None, stage_of(module))) == {}


def test_nothing_imports_the_wing_of_pictures_but_its_own_command():
    outside = {one for one in MODULES if not f"{one}.".startswith(f"{WING}.")} - {"pipelines.commands.annotating"}
    assert offenders(outside, lambda _, name: f"{name}.".startswith(f"{WING}.")) == {}


def test_pipelines_import_only_foundations_and_what_stages_offer():
    modules = [module for module in MODULES if level(module) == PIPELINES_LEVEL]
    offered = OWNERS_OF_SHARED_SECTIONS + INTERVALS + SAME_TEXT + POLICIES + PROBED + PAGES + CUSTOM + MARKED + PINNED
    assert offenders(modules, lambda _, name: level(name) in (2, 3) and not name.startswith(offered)) == {}


def test_tests_import_no_benchmark():
    """A benchmark may borrow from tests/fakes, and not the other way round; tests/benchmarks tests benchmarks."""
    own = PROJECT / "tests" / "benchmarks"
    paths = sorted(path for path in (PROJECT / "tests").rglob("*.py") if own not in path.parents)
    assert [path for path in paths if "benchmarks" in packages(imports_of(path, package=""))] == []


def circles(edges) -> list[list[str]]:
    graph = networkx.DiGraph((one, other) for one, other in edges if one != other)
    return [sorted(part) for part in networkx.strongly_connected_components(graph) if len(part) > 1]


def edges() -> list[tuple[str, str]]:
    return [(module, name) for module in MODULES for name in imports()[module] if name in MODULES]


def test_there_is_no_circle_of_modules():
    assert circles(edges()) == []


@pytest.mark.parametrize("house", ["pipelines", "stages.engines", "stages.rl_round"])
def test_there_is_no_circle_of_rooms(house):
    """A room is a folder of the house; a file beside the rooms is a room too."""

    def room(module: str) -> str:
        return ".".join(module.split(".")[: house.count(".") + 2])

    inside = [
        (one, other)
        for one, other in edges()
        if f"{one}.".startswith(f"{house}.") and f"{other}.".startswith(f"{house}.")
    ]
    assert circles((room(one), room(other)) for one, other in inside if house not in (one, other)) == []


def reached(module: str) -> set[str]:
    """Every name imported by `module` or by a module of the project that it imports."""
    seen, pending = set(), [module]
    while pending:
        for name in imports().get(pending.pop(), ()):
            if name not in seen:
                seen.add(name)
                pending.append(name)
    return seen


def packages(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def test_torch_is_absent_below_algorithms():
    modules = [m for m in MODULES if level(m) in (0, 1) or m.startswith("stages.algorithms.answers")]
    heavy = {"torch", *ENGINES_ONLY}
    assert offenders(modules, lambda _, name: name.split(".")[0] in heavy, reached) == {}


def test_only_engines_import_the_engines():
    modules = [module for module in MODULES if level(module) != 3]
    assert offenders(modules, lambda _, name: name.split(".")[0] in ENGINES_ONLY) == {}


def test_algorithms_touch_no_files_and_no_clock():
    outside = {"os", "pathlib", "time", "datetime", "subprocess", "shutil", "tempfile"}
    modules = [module for module in MODULES if level(module) == 2]
    assert offenders(modules, lambda _, name: name.split(".")[0] in outside) == {}
