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
    # Pages of the web that a recipe reads are data.
    outside = [path for path in paths if kit not in path.parents and path.name != "generated_pages.py"]
    assert [path for path in outside if "matplotlib" in path.read_text() or "<!DOCTYPE" in path.read_text()] == []
    templates = [path for folder in ("stages", "pipelines") for path in (PROJECT / folder).rglob("*.html")]
    assert templates == []


def test_the_html_of_a_page_is_written_in_code():
    """A run's text is a value, which is escaped: the first argument of `html` and `paragraph` never holds one."""
    calls = [
        call
        for folder in ("stages", "pipelines")
        for path in (PROJECT / folder).rglob("*.py")
        if "from stages.pages.page import" in (source := path.read_text())
        for call in _calls(ast.parse(source), frozenset(), path.name)
    ]
    assert len(calls) > 100 and [place for place, is_written in calls if not is_written] == []


def test_a_text_made_from_a_value_is_seen():
    page = "def part(run, told: LiteralString):\n    {}\n    return html(shown, run.name)"
    for line, is_written in {"shown = told + '<p>{}</p>'": True, "shown = f'<p>{run.title}</p>'": False}.items():
        assert [found for _, found in _calls(ast.parse(page.format(line)), frozenset(), "")] == [is_written]


def _calls(node, written, name):
    """Yields place and verdict of each call of `html` and `paragraph`; `written` are names that hold only literals.

    In each function a name is written if all that it is given there is: literals, arguments of the type LiteralString,
    and other written names. A failure here means: make the text a value behind `{}`.
    """
    if isinstance(node, ast.Module | ast.FunctionDef | ast.Lambda):
        given = {}
        for inner in ast.walk(node) if not isinstance(node, ast.Module) else node.body:
            match inner:
                case ast.Assign(targets=[ast.Name(id=target)], value=value):
                    given.setdefault(target, []).append(_is_written(value, written))
                case ast.arg(arg=target, annotation=annotation):
                    says = annotation is not None and ast.unparse(annotation) == "LiteralString"
                    given.setdefault(target, []).append(says)
                case ast.For(target=targets) | ast.comprehension(target=targets) | ast.Assign(targets=[targets]):
                    given |= {part.id: [False] for part in ast.walk(targets) if isinstance(part, ast.Name)}
        written = (written - given.keys()) | {target for target, all_ in given.items() if all(all_)}
        # A name may be put together from others of the same function.
        written |= {
            inner.targets[0].id
            for inner in ast.walk(node)
            if isinstance(inner, ast.Assign)
            and isinstance(inner.targets[0], ast.Name)
            and len(given.get(inner.targets[0].id, "")) == 1
            and _is_written(inner.value, written)
        }
    match node:
        case ast.Call(func=ast.Name(id="html" | "paragraph"), args=[text, *_]):
            yield f"{name}:{node.lineno}", _is_written(text, written)
    for inner in ast.iter_child_nodes(node):
        yield from _calls(inner, written, name)


def _is_written(node, written):
    match node:
        case ast.Constant(value=str()):
            return True
        case ast.Name(id=name):
            return name in written
        case ast.IfExp(body=first, orelse=second) | ast.BinOp(left=first, right=second, op=ast.Add()):
            return _is_written(first, written) and _is_written(second, written)
    return False
