"""Reports: a section is a function of the run, and each of them has its line in the table of its page."""

import ast
from importlib import import_module

import pytest

from stages.foundations.machine import PROJECT


@pytest.mark.parametrize("package", ["report", "images.t2i_report"])
def test_every_section_stands_once_in_the_table_of_its_page(package):
    """A function of one argument, `run`, that returns a `Part` is a section; so is what both reports share."""
    folder = PROJECT / "stages" / package.replace(".", "/")
    found = {
        f"stages.{package}.{path.stem}.{node.name}"
        for path in folder.glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and not node.name.startswith("_")
        and [argument.arg for argument in node.args.args] == ["run"]
        and node.returns is not None
        and ast.unparse(node.returns) == "Part"
    }
    table = import_module(f"stages.{package}.sections").SECTIONS
    listed = [f"{section.__module__}.{section.__name__}" for *_, section in table]
    own = [name for name in listed if name.startswith(f"stages.{package}.")]
    assert sorted(own) == sorted(found) and len(listed) == len(set(listed))
    places = [place for place, *_ in table]
    # The link above the page's head leads to the first section.
    assert places[0] == "result" and len(places) == len(set(places))


def test_only_the_kit_draws_and_writes_html():
    """A second way to draw a chart, or to build a page, would look different and escape differently."""
    kit = PROJECT / "stages/pages"
    paths = [path for folder in ("stages", "pipelines") for path in (PROJECT / folder).rglob("*.py")]
    outside = [path for path in paths if kit not in path.parents]
    assert [path for path in outside if "matplotlib" in path.read_text() or "<!DOCTYPE" in path.read_text()] == []
    templates = [path for folder in ("stages", "pipelines") for path in (PROJECT / folder).rglob("*.html")]
    assert templates == []
