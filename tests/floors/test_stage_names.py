"""Stage names stand in dvc.yaml and in the stage's own package: nothing else in Python compares with one or lists them.

Prose (docstrings, comments, sentences of errors) may name a stage, and so may a `python -m` line in it.
"""

import ast
import re
from pathlib import Path

import pytest

from stages.foundations.stage import about, declared_stage
from stages.foundations.stage_graph import read_definitions

PROJECT = Path(__file__).resolve().parents[2]
DEFINITIONS = read_definitions(PROJECT / "dvc.yaml")
NAMES = sorted(set(DEFINITIONS) - {"code"})
"""`code` makes the fingerprints that are looked up everywhere; it has no section and no policy."""
NAMED = re.compile(rf"(?:{'|'.join(NAMES)})(?:[@/].*)?|stages\.(?:{'|'.join(NAMES)})\b\S*")
FILES = [path for folder in ("pipelines", "stages") for path in (PROJECT / folder).rglob("*.py")]
OTHER_THINGS = {
    ("pipelines/graph/recipes.py", "base"): "the key of a recipe that stands on another one",
    ("pipelines/commands/grading.py", "grade"): "the label of the command's progress",
}


def named_stages(path: Path) -> set[str]:
    """Strings of the file that are the name or address of a stage other than its own package."""
    tree = ast.parse(path.read_text())
    parts = path.relative_to(PROJECT).parts
    own = parts[1] if parts[0] == "stages" else ""
    # The sections that a stage's checks and estimates read have the names of stages; dvc.yaml says which it reads.
    keys = {
        key.value
        for node in ast.walk(tree)
        for key in ([node.slice] if isinstance(node, ast.Subscript) else [])
        + ([node.left] if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In) else [])
        if isinstance(key, ast.Constant)
    }
    sections = keys if path.name == "stage.py" else set()
    found = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and NAMED.fullmatch(node.value)
    }
    return {text for text in found - sections if not re.fullmatch(rf"(stages\.)?{own}([@/.].*)?", text)}


def test_no_other_package_knows_a_stage_by_name():
    found = {(path.relative_to(PROJECT).as_posix(), text) for path in FILES for text in named_stages(path)}
    assert found - set(OTHER_THINGS) == set()


def test_the_search_finds_names(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.PROJECT", tmp_path)
    file = tmp_path / "pipelines" / "x.py"
    file.parent.mkdir()
    file.write_text('"""The stage sft."""\nA = "sft"\nB = f"grade@{A}"\nC = ("rl_round/x", "stages.respond.stage")\n')
    assert named_stages(file) == {"sft", "grade@", "rl_round/x", "stages.respond.stage"}


@pytest.mark.parametrize("name", NAMES)
def test_every_stage_tells_of_itself(name):
    """Its section has its name, so that a recipe without that section is one without the stage."""
    told, stage = about(name), declared_stage(name)
    assert stage.foreach or name in stage.sections
    assert told.lane
    assert not told.way or told.has_funnel
