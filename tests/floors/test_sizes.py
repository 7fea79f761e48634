"""A file has one idea: 350 lines are the most; a function has fifty."""

import ast
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
MOST_LINES, MOST_FUNCTION_LINES = 350, 50
FILES = sorted(
    path
    for folder in ("stages", "pipelines", "tests", "benchmarks")
    for path in (PROJECT / folder).rglob("*.py")
)


def test_there_is_something_to_measure():
    assert len(FILES) > 50


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PROJECT).as_posix())
def test_no_file_and_no_function_is_too_long(path):
    text = path.read_text()
    assert text.count("\n") <= MOST_LINES, path
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 > MOST_FUNCTION_LINES
    }
    assert not long, f"functions of more than {MOST_FUNCTION_LINES} lines"


def test_no_large_file_is_tracked_by_git():
    """Data and weights belong to DVC."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    tracked = [PROJECT / name for name in listed.stdout.split("\0") if name]
    large = {
        path.name: path.stat().st_size
        for path in tracked
        if path.is_file() and path.stat().st_size > 900 * 1024
    }
    assert not large
