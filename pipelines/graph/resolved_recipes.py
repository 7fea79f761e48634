"""Recipes as files: pipelines/recipes/<name>.yaml, whole or on top of another one.

A recipe is whole, or says `extends: other.yaml` and what differs:

    extends: gsm8k-smollm2.yaml    # a file beside it
    without: [collect_web]         # what is not taken over, by dotted names; comes first
    sft: {steps: 1000}             # goes into the mapping that is there; one of another `kind`, an empty one, a list
    sampler.dtype: bfloat16        # and every other value replace; dotted names do as well

It leaves out the sections of branches that it does not use. What runs is the resolved, whole file: without `extends`,
and with `{}` for a section over which stages run and that the recipe leaves out, where DVC would miss it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from pipelines.graph.overrides import dotted, value_at, with_changes, without
from stages.foundations.errors import UserError
from stages.foundations.stage_graph import foreach_sections, optional_sections, read_definitions
from stages.foundations.yaml_text import load_yaml

EXTENDS, WITHOUT = "extends", "without"


def recipe_names(root: Path) -> list[str]:
    return sorted(path.stem for path in (root / "pipelines" / "recipes").glob("*.yaml"))


def require_recipe(root: Path, name: str) -> None:
    """UserError names the recipes there are."""
    if name not in recipe_names(root):
        known = ", ".join(recipe_names(root)) or f"none in {root / 'pipelines' / 'recipes'}"
        raise UserError(f"unknown recipe {name!r}: there are {known}")


def read_recipe(root: Path, name: str, read: Callable[[str], str | None] | None = None) -> dict[str, Any]:
    """The resolved parameters. UserError for an unknown recipe, a circle, an unknown key, and another dotted `kind`.

    `read` gives the text of a file by its path from the root, None where there is none (default: the file itself).
    These are the values of `recipe_text`, in a tenth of its time: comments are not looked at.
    """
    if read is None:
        require_recipe(root, name)
        read = partial(_text, root)
    content = _merged(_chain(name, read, _values), name)
    return content | {section: {} for section in _left_out(root, content)}


def recipe_text(root: Path, name: str, read: Callable[[str], str | None] | None = None) -> str:
    """The resolved parameters as text: byte by byte the file of a whole recipe. Comments are those of the last one."""
    if read is None:
        require_recipe(root, name)
        read = partial(_text, root)
    chain = _chain(name, read, _with_comments)
    text, content = chain[-1][0], _merged(chain, name)
    if len(chain) > 1:
        told = f"# Recipe {name}, resolved. What it changes: pipelines/recipes/{name}.yaml. Comments are inherited."
        text = f"{told}\n{_dumped(content)}"
    missing = _left_out(root, content)
    if missing:
        text = (
            text.rstrip("\n")
            + "\n\n# Left out by the recipe:\n"
            + "".join(f"{one}: {{}}\n" for one in missing)
        )
    return text


def _merged(chain: list[tuple[str, dict[str, Any]]], name: str) -> dict[str, Any]:
    content = chain[-1][1]
    for _, recipe in reversed(chain[:-1]):
        content = _on_top(content, recipe, name)
    return content


def _left_out(root: Path, content: dict[str, Any]) -> list[str]:
    """Sections over which stages run, and which DVC would miss."""
    graph = root / "dvc.yaml"
    optional = optional_sections(graph)
    needed = [name for name in foreach_sections(read_definitions(graph)) if name not in optional]
    return [name for name in needed if name not in content]


def _chain(
    name: str, read: Callable[[str], str | None], load: Callable[[str], Any]
) -> list[tuple[str, dict[str, Any]]]:
    """Text and content of the recipe, of the one that it extends, and so on."""
    chain: dict[str, tuple[str, dict[str, Any]]] = {}
    wanted, asked_by = f"{name}.yaml", ""
    while True:
        if wanted in chain:
            raise UserError(
                f"recipe {name}: `extends` goes round in a circle: {' -> '.join([*chain, wanted])}"
            )
        text = read(f"pipelines/recipes/{wanted}") if "/" not in wanted else None
        if text is None:
            raise UserError(
                f"recipe {asked_by or name}: it extends {wanted}, and there is no pipelines/recipes/{wanted}"
            )
        content = _loaded(text, wanted, load)
        chain[wanted] = (text, content)
        _refuse_old_spelling(content, wanted)
        below = content.get(EXTENDS)
        if below is None:
            return list(chain.values())
        if not isinstance(below, str):
            raise UserError(
                f"recipe {wanted}: `extends` is {below!r}: write a file name, `extends: laptop.yaml`"
            )
        wanted, asked_by = below, wanted


def _on_top(content: dict[str, Any], recipe: dict[str, Any], name: str) -> dict[str, Any]:
    changes = {key: value for key, value in recipe.items() if key not in (EXTENDS, WITHOUT)}
    try:
        content = without(content, recipe.get(WITHOUT) or [])
        found = dict(dotted(content, changes))
        _refuse_other_kinds(content, found, name)
        return with_changes(content, found)
    except KeyError as error:
        raise UserError(f"recipe {name}: {error.args[0]}: {recipe[EXTENDS]} has no such key") from None


def _refuse_old_spelling(content: dict[str, Any], file: str) -> None:
    """`base` was the key of inheritance once; it is a section now, and nothing else."""
    below = content.get("base")
    if isinstance(below, str):
        raise UserError(f"recipe {file}: `base: {below}` is the old spelling: write `extends: {below}`")


def _refuse_other_kinds(content: dict[str, Any], changes: dict[str, Any], name: str) -> None:
    """UserError for a dotted `kind` under which the keys of the kind below would stay."""
    for key, kind in changes.items():
        *sections, last = key.split(".")
        there = value_at(content, sections)
        if last != "kind" or not isinstance(there, dict) or there.get("kind") == kind:
            continue
        staying = [other for other in there if other != "kind"]
        if sections and staying:
            section = ".".join(sections)
            raise UserError(
                f"recipe {name}: `{key}: {kind}` would keep {', '.join(staying)} of kind {there.get('kind')}: write "
                f"the mapping whole, `{section}: {{kind: {kind}, ...}}`"
            )


def _yaml() -> Any:
    from ruamel.yaml import YAML

    reader = YAML()
    reader.preserve_quotes, reader.width = True, 4096
    reader.indent(mapping=2, sequence=4, offset=2)
    reader.representer.add_representer(
        type(None), lambda to, _: to.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    return reader


def _with_comments(text: str) -> Any:
    """The document as what writes it again as it was; ValueError when it is not valid YAML."""
    from ruamel.yaml.error import YAMLError

    _values(text)  # ruamel reads any depth, until Python gives up
    try:
        return _yaml().load(text)
    except YAMLError as error:
        raise ValueError(str(error)) from None


def _values(text: str) -> Any:
    try:
        return load_yaml(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _loaded(text: str, told: str, load: Callable[[str], Any]) -> dict[str, Any]:
    try:
        content = load(text)
    except ValueError as error:
        raise UserError(
            f"pipelines/recipes/{told} is not valid YAML: {' '.join(str(error).split())}"
        ) from None
    if not isinstance(content, dict):
        raise UserError(f"pipelines/recipes/{told} must hold a mapping of sections")
    return content


def _dumped(content: dict[str, Any]) -> str:
    stream = io.StringIO()
    _yaml().dump(content, stream)
    return stream.getvalue()


def _text(root: Path, file: str) -> str | None:
    path = root / file
    return path.read_text(encoding="utf-8") if path.is_file() else None
