"""`retrace reference`: writes the pages of docs/reference that are made from the code, so that they cannot be wrong.

    cli.md       commands with their options, from the functions of typer
    params.md    sections of a parameter file, from the pydantic models; the sentence below a field is its meaning
    tables.md    outputs of the stages and the columns of their tables, from the declarations and schemas
    metrics.md   metrics by stage, from pipelines/reference/metrics.tsv

and docs/pictures/house.svg: the folders of the code, each floor above those that it imports.

pipelines/reference has the beginning of each page, and the meanings of columns and metrics, which code names in many
places. A test compares them with the code.
"""

from __future__ import annotations

import ast
import csv
import functools
import importlib
import inspect
import itertools
import re
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pipelines.graph.schema import section_models
from stages.foundations.errors import UserError
from stages.foundations.files import write_text_atomically
from stages.foundations.machine import PROJECT
from stages.foundations.stage import about, declared_stage, stage_folder
from stages.foundations.stage_graph import read_definitions

FOLDER = PROJECT / "docs" / "reference"
WORDS = PROJECT / "pipelines" / "reference"
HOUSE = PROJECT / "docs" / "pictures" / "house.svg"
FLOORS = ("pipelines", "stages", "stages/images", "stages/engines", "stages/pages", "stages/algorithms")
FLOORS += ("stages/observe", "stages/foundations")
"""Floors of the picture from the top."""
MADE = "<!-- Written by `retrace reference`. Change the code, and run it again. -->"
CHECKS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than", "min_length": "length at least"}


def write_pages(app: typer.Typer) -> list[str]:
    """Writes the pages and the picture where they differ, and returns their names."""
    made = {FOLDER / name: text for name, text in pages(app).items()} | {HOUSE: house_picture()}
    changed = {path: text for path, text in made.items() if not path.exists() or path.read_text("utf-8") != text}
    for path, text in changed.items():
        write_text_atomically(path, text)
    return [path.name for path in changed]


def pages(app: typer.Typer) -> dict[str, str]:
    """Returns the text of each page by its file name; UserError for a column without a meaning."""
    makers = {"cli.md": _commands(app), "params.md": _params(), "tables.md": _tables(), "metrics.md": _metrics()}
    heads = {name: (WORDS / name).read_text(encoding="utf-8") for name in makers}
    return {name: f"{MADE}\n{heads[name]}\n" + "\n".join(lines) for name, lines in makers.items()}


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = [header, ("---",) * len(header), *rows]
    cells = [[" ".join(cell.replace("|", "\\|").split()) for cell in row] for row in lines]
    return [*(f"| {' | '.join(row)} |" for row in cells), ""]


def _paragraphs(function: Any) -> list[str]:
    return [*(inspect.getdoc(function) or "").splitlines(), ""]


# cli.md


def _commands(app: typer.Typer) -> Iterator[str]:
    groups = [("", app), *((f"{group.name} ", group.typer_instance) for group in app.registered_groups)]
    listed = sorted(
        (prefix + (command.name or command.callback.__name__.replace("_", "-")), command.callback)
        for prefix, holder in groups
        for command in holder.registered_commands
        if not command.hidden
    )
    for name, function in listed:
        yield f"## `retrace {name}`\n"
        yield from _paragraphs(function)
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters
        rows = [_option(parameter, hints[parameter.name]) for parameter in parameters.values()]
        if rows:
            yield from _table(("Argument or option", "Value", "Default", "Meaning"), rows)


def _option(parameter: inspect.Parameter, hint: Any) -> tuple[str, str, str, str]:
    kind, info = typing.get_args(hint)[:2]
    is_argument, default = type(info).__name__ == "ArgumentInfo", parameter.default
    # Inside of `Annotated`, typer takes the first name for the default.
    given = [one for one in (info.default, *(info.param_decls or ())) if isinstance(one, str)]
    names = given or [f"--{parameter.name.replace('_', '-')}"]
    value = "" if kind is bool else _type(_plain(kind), {})
    if default is inspect.Parameter.empty:
        shown = "required"
    elif default in (None, "", False) or default == []:
        shown = ""
    else:
        # The project's folder differs between machines.
        shown = f"`{str(default).replace(f'{PROJECT}/', '')}`"
    return parameter.name.upper() if is_argument else ", ".join(f"`{one}`" for one in names), value, shown, info.help


# params.md


def _params() -> Iterator[str]:
    titles: dict[type, str] = {}
    sections = section_models()
    places = {name: f"{name}{_entry(model)}" for name, model in sections.items()}
    # First, because a section that is also part of another section is described separately.
    claimed = {name: _claim(_models_in(model), places[name], titles) for name, model in sections.items()}
    for name, model in sections.items():
        yield f"## `{name}`\n"
        if name != places[name]:
            yield "One entry for each name that you choose.\n"
        if not _models_in(model):
            yield f"{_common().get(name, 'One value')}. Value: {_type(model, titles)}.\n"
        for known in (one for one in _models_in(model) if one not in claimed[name]):
            yield f"As {_link(titles[known])}.\n"
        for new in claimed[name]:
            yield from _model(new, places[name], titles)


def _entry(annotation: Any) -> str:
    return ".NAME" if typing.get_origin(_plain(annotation)) is dict else ""


def _claim(models: list[type], place: str, titles: dict[type, str]) -> list[type]:
    """Returns the models that have no table yet, and gives them a heading with this place of the file."""
    new = [model for model in models if model not in titles]
    titles |= {model: f"`{place}`" + (f", kind {kinds}" if (kinds := _kinds(model)) else "") for model in new}
    return new


def _model(model: type, place: str, titles: dict[type, str]) -> Iterator[str]:
    """The table of a model, followed by those of the values inside it. A model of several places has one table."""
    kinds, meanings = _kinds(model), _meanings(model)
    # A section has its heading already.
    if kinds or "." in place:
        yield f"### {titles[model]}\n"
    yield from _paragraphs(model)
    inside, rows = [], []
    for name, field in model.model_fields.items():
        # The heading has it.
        if name == "kind" and kinds:
            continue
        key, annotation = field.alias or name, field.annotation
        below = f"{place}.{key}{_entry(annotation)}"
        inside += [(one, below) for one in _claim(_models_in(annotation), below, titles)]
        kind = _type(annotation if field.is_required() else _plain(annotation), titles) + _limits(field)
        # Most kinds say what their choice is for; keys that many models have are described once.
        meaning = meanings.get(name) or ("" if _models_in(annotation) else _common().get(key, ""))
        rows.append((f"`{key}`", kind, ("" if field.is_required() else "*optional* ") + meaning))
    if rows:
        yield from _table(("Key", "Value", "Meaning"), rows)
    for one, below in inside:
        yield from _model(one, below, titles)


@functools.cache
def _common() -> dict[str, str]:
    return {row["key"]: row["meaning"] for row in rows_of("keys")}


def _kinds(model: type) -> str:
    field = model.model_fields.get("kind")
    return " or ".join(f"`{kind}`" for kind in typing.get_args(field.annotation)) if field else ""


def _meanings(model: type) -> dict[str, str]:
    """Returns the sentences below the fields of a model, inherited ones included."""
    found: dict[str, str] = {}
    for parent in (one for one in reversed(model.__mro__) if issubclass(one, BaseModel) and one is not BaseModel):
        for node in _tree(parent.__module__).body:
            if isinstance(node, ast.ClassDef) and node.name == parent.__name__:
                found |= _sentences_below(node.body)
    return found


@functools.cache
def _tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(importlib.import_module(module)))


def _sentences_below(body: list[ast.stmt]) -> dict[str, str]:
    """Returns name -> the string that follows its assignment."""
    return {
        node.target.id if isinstance(node, ast.AnnAssign) else node.targets[0].id: inspect.cleandoc(after.value.value)
        for node, after in itertools.pairwise(body)
        if (isinstance(node, ast.AnnAssign) or (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)))
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }


def _plain(annotation: Any) -> Any:
    """Returns the type without `Annotated` and without `None`."""
    if typing.get_origin(annotation) is Annotated:
        return _plain(typing.get_args(annotation)[0])
    others = [one for one in typing.get_args(annotation) if one is not types.NoneType]
    is_union = typing.get_origin(annotation) in (Union, types.UnionType)
    return _plain(others[0]) if is_union and len(others) == 1 else annotation


def _models_in(annotation: Any) -> list[type]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return list(dict.fromkeys(model for inner in typing.get_args(annotation) for model in _models_in(inner)))


def _type(annotation: Any, titles: Mapping[type, str], is_one_of: bool = False) -> str:
    """Returns a type in words. Models are links to their tables, and alternatives are named by their kinds."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _type(inner[0], titles, is_one_of) + "".join(_limits(one) for one in inner[1:])
    if origin in (Union, types.UnionType):
        return " or ".join(_type(one, titles, True) for one in inner)
    if origin is Literal:
        return " or ".join(f"`{str(one).lower() if isinstance(one, bool) else one}`" for one in inner)
    if origin in (list, tuple):
        return "list of " + _type(inner[0], titles)
    if origin is dict:
        return "name: " + _type(inner[1], titles)
    if annotation in titles:
        return _link(titles[annotation], is_one_of)
    words = {str: "text", int: "whole number", float: "number", bool: "true or false", types.NoneType: "`null`"}
    return words.get(annotation) or {Any: "any value", Path: "path"}.get(annotation, "text")


def _limits(field: Any) -> str:
    """The limits of a value: those of a field, or of pydantic's metadata."""
    if isinstance(field, FieldInfo):
        return "".join(_limits(one) for one in field.metadata)
    words = [f"{word} {limit:g}" for name, word in CHECKS.items() if (limit := getattr(field, name, None)) is not None]
    if pattern := getattr(field, "pattern", None):
        words.append(f"matches `{pattern}`")
    return "".join(f", {word}" for word in words)


def _link(title: str, is_kind: bool = False) -> str:
    """A link to a heading. `is_kind` shows only its kind, beside the other kinds of the same place."""
    # The address that GitHub and the docs site make of a heading.
    address = re.sub(r"[^\w\s-]", "", title).strip().lower().replace(" ", "-")
    return f"[{(is_kind and title.partition(', ')[2]) or title}](#{address})"


# tables.md


def _tables() -> Iterator[str]:
    from stages.foundations import tables  # which imports pandas: a second at the start of every command

    yield "## Outputs of the stages\n"
    for name in read_definitions(PROJECT / "dvc.yaml"):
        if stage := declared_stage(name):
            yield f"### `{name}`\n\n{about(name).description}\n"
            paths = {name: re.sub(r"\$\{(key|item)\}", "NAME", path) for name, path in stage.outputs.items()}
            yield from _table(("Output", "Path"), [(f"`{name}`", f"`{path}`") for name, path in paths.items()])
    schemas = {name: value for name, value in vars(tables).items() if isinstance(value, tables.TableSchema)}
    meanings = _sentences_below(_tree(tables.__name__).body)
    columns = {row["column"]: row["meaning"] for row in rows_of("columns")}
    yield "## Columns of the tables\n"
    for name, schema in schemas.items():
        yield f"### Table `{schema.name}`\n\n{meanings[name]}\n"
        rows = []
        for column, kind in {**schema.columns, **schema.optional}.items():
            # A name with the table's comes first: some columns differ between tables.
            if not (meaning := columns.get(f"{schema.name}.{column}") or columns.get(column)):
                raise UserError(f"pipelines/reference/columns.tsv has no meaning of {schema.name}.{column}: add a row")
            rows.append((f"`{column}`", str(kind), ("*optional* " if column in schema.optional else "") + meaning))
        yield from _table(("Column", "Type", "Meaning"), rows)


def rows_of(name: str) -> list[dict[str, str]]:
    """Returns the rows of a file in pipelines/reference."""
    with open(WORDS / f"{name}.tsv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


# metrics.md


def _metrics() -> Iterator[str]:
    rows = rows_of("metrics")
    for stage in ["all stages", "all data stages", *read_definitions(PROJECT / "dvc.yaml")]:
        if listed := [(f"`{row['metric']}`", row["unit"], row["meaning"]) for row in rows if row["stage"] == stage]:
            yield f"## {stage.capitalize() if ' ' in stage else f'`{stage}`'}\n"
            yield from _table(("Metric", "Unit", "Meaning"), listed)


# house.svg


def house_picture() -> str:
    """Returns the folders of the code as an SVG: a row of boxes for each floor, stages in the order of the graph."""
    stages = [name for name in read_definitions(PROJECT / "dvc.yaml") if declared_stage(name)]
    plain = [name for name in stages if stage_folder(PROJECT, name).parent.name == "stages"]
    rows = {floor: _folders(PROJECT / floor) for floor in FLOORS} | {"stages": plain}
    rows["stages/images"] = [*(one for one in stages if one not in plain), "algorithms", "engines"]
    parts, top = [], 8
    for floor, names in rows.items():
        lines = _wrapped([f"{name}/" for name in names])
        height = 34 + 30 * len(lines)
        parts.append(f'<rect class="floor" x="8" y="{top}" width="744" height="{height - 8}" rx="6"/>')
        parts.append(f'<text class="name" x="20" y="{top + 18}">{floor}/</text>')
        for number, line in enumerate(lines):
            left = 20
            for name in line:
                width = 14 + 7 * len(name)
                parts.append(f'<rect x="{left}" y="{top + 26 + 30 * number}" width="{width}" height="24" rx="4"/>')
                parts.append(f'<text x="{left + 7}" y="{top + 42 + 30 * number}">{name}</text>')
                left += width + 8
        top += height
    style = (
        "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1b1f24}.name{font-weight:700}"
        "rect{fill:#fff;stroke:#8c959f}.floor{fill:#f6f8fa;stroke:#d0d7de}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {top}" role="img">'
    title = "<title>The folders of the code: each floor imports only floors below it</title>"
    return "\n".join([head, title, f"<style>{style}</style>", *parts, "</svg>"]) + "\n"


def _folders(place: Path) -> list[str]:
    return sorted(init.parent.name for init in place.glob("*/__init__.py"))


def _wrapped(names: list[str], width: int = 720) -> list[list[str]]:
    """Returns the names in lines of boxes that fit the width."""
    lines, left = [[]], 0
    for name in names:
        if left + 22 + 7 * len(name) > width:
            lines.append([])
            left = 0
        lines[-1].append(name)
        left += 22 + 7 * len(name)
    return lines if names else []
