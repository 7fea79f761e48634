"""The stages that dvc.yaml creates from a parameter file, resolved without DVC, which needs seconds and a repository.

A recipe may leave branches out. A stage with `foreach` vanishes where its section is empty, as for DVC. A plain
stage is left out where the section with its name is absent, and DVC gets the names of the others. A section that
`vars` of dvc.yaml has as `{}` may be absent for DVC as well.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.foundations.errors import UserError
from stages.foundations.files import load_yaml
from stages.foundations.params import CUSTOM, read_yaml

_ITEM = re.compile(r"\$\{(key|item)((?:\.\w+)*)\}")
_SECTION = re.compile(r"\$\{(\w+)[.}]")
_ANYTHING = re.compile(r"\$\{([^}]*)\}")
# No `-` in front: a command would take the name for a flag. A file's name, with its ending, has at most 255 bytes.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")

_JSON = str | int | float | None

_ANY = "*"
"""Stands for any value of an item when paths of different stages are compared."""

KEEP = ".keep"
"""File that keeps a folder from being empty."""

METRICS = "data/metrics/"

Definitions = Mapping[str, Mapping[str, Any]]
"""Stage -> its entry under `stages` of dvc.yaml."""


@dataclass(frozen=True)
class GraphStage:
    """One stage as DVC would run it."""

    name: str
    item: str
    """Its item of `foreach`; "" for a plain stage."""
    reads: tuple[str, ...]
    """Top-level sections of the parameter file."""
    params: tuple[str, ...]
    """Dotted names of the values that DVC compares: `seed`, `rl_rounds.rl_1`."""
    deps: tuple[str, ...]
    outs: tuple[str, ...]
    """Includes metric files and curves."""
    metrics: tuple[str, ...]
    """Files with all its metrics; the files that dvc.yaml calls `metrics` have only their headlines."""
    curves: tuple[str, ...]
    """Files that `dvc plots` draws."""

    @property
    def address(self) -> str:
        """Returns DVC's name of it: `rl_round@rl_1`, `sft`."""
        return f"{self.name}@{self.item}" if self.item else self.name


def read_definitions(dvc_yaml: Path) -> Definitions:
    """Returns the stages of a dvc.yaml; none where there is no such file."""
    return load_yaml(dvc_yaml.read_bytes())["stages"] if dvc_yaml.exists() else {}


def optional_sections(dvc_yaml: Path) -> list[str]:
    """Sections that `vars` of a dvc.yaml has as `{}`: DVC treats them as empty if the parameter file has none."""
    content = load_yaml(dvc_yaml.read_bytes()) if dvc_yaml.exists() else {}
    return [name for part in content.get("vars", ()) for name in part]


def stages_of(definitions: Definitions, params: Mapping[str, Any]) -> list[GraphStage]:
    """The stages of the parameter file, in the order of dvc.yaml and of their items. UserError: `require_names`."""
    require_names(definitions, params)
    gone = left_out(definitions, params)
    return [
        _resolved(name, definition, key, item)
        for name, definition in definitions.items()
        if name not in gone
        for key, item in _items(definition, params)
    ]


def require_names(definitions: Definitions, params: Mapping[str, Any]) -> None:
    """UserError for a value that DVC would put into a command or a path and that is not a plain name.

    DVC runs commands with a shell and quotes nothing: `a; rm -r x` as the name of a source would be executed. A name
    has letters, digits, `_` and `-`. A value that does not name a stage may be several names with `/` between.
    """
    for name, definition in definitions.items():
        body = str(definition.get("do", definition))
        for key, item in _items(definition, params):
            if "foreach" in definition and not _NAME.fullmatch(key):
                raise _no_name(f"a name in `{_named_in([definition['foreach']])[0]}`", key)
            for expression in dict.fromkeys(_ANYTHING.findall(body)):
                first, *names = expression.split(".")
                # A plain stage may interpolate any section; one with `foreach` only its item.
                value = {"key": key, "item": item}.get(first) if key else params.get(first)
                for one in names:
                    value = value.get(one) if isinstance(value, Mapping) else None
                # DVC would write a mapping as flags of the command, so it is not a name either.
                words = [""] if isinstance(value, Mapping | list) else str(value).split("/")
                if value is not None and not all(_NAME.fullmatch(word) for word in words):
                    raise _no_name(f"`{'.'.join(names) or first}` of {f'{name}@{key}' if key else name}", value)


def require_comparable(params: Mapping[str, Any]) -> None:
    """UserError for a key or a value whose change DVC would not see, or cannot record.

    DVC compares the parameters of its run cache as JSON, and without the keys that its own records of files have
    (treeverse/dvc#10296). After such a change a stage would get the result of the old value.
    """
    # DVC itself is asked, so that the installed version counts. Its import takes half a second.
    from dvc.stage.cache import _get_cache_hash

    @functools.cache
    def is_seen(key: Any) -> bool:
        return _get_cache_hash({"params": {key: 0}}) != _get_cache_hash({"params": {}})

    found, known = [], set()
    pending: list[tuple[tuple[Any, ...], Any]] = [((), params)]
    while pending:
        path, value = pending.pop()
        where = ".".join(map(str, path)) or "the top level"
        if isinstance(value, Mapping | list) and id(value) not in known:
            known.add(id(value))  # an alias of YAML is the same object
            named = value.items() if isinstance(value, Mapping) else enumerate(value)
            pending += [((*path, key), one) for key, one in named]
        if isinstance(value, Mapping):
            if len(set(map(type, value))) > 1 or not all(isinstance(key, _JSON) for key in value):
                keys = ", ".join(map(repr, value))[:200]
                found.append(f"{where}: DVC cannot compare these keys together: {keys}. Write each as text, in quotes")
            elif unseen := [key for key in value if not is_seen(key)]:
                names = " and ".join(f"`{key}`" for key in unseen)
                found.append(f"{where}: DVC does not compare values named {names}: choose other names")
        elif not isinstance(value, list | _JSON):
            kind = type(value).__name__
            found.append(f"{where}: DVC cannot compare the {kind} {str(value)[:80]}: write it as text, in quotes")
    if found:
        raise UserError("\n  ".join(sorted(found)))


def _no_name(where: str, value: Any) -> UserError:
    return UserError(
        f"{where} is {str(value)[:200]!r}, which dvc.yaml would put into a shell command: use at most 100 letters, "
        "digits, _ and -"
    )


def left_out(definitions: Definitions, params: Mapping[str, Any]) -> list[str]:
    """Returns plain stages whose section is absent: DVC would run them, and fail."""
    return [
        name
        for name, definition in definitions.items()
        # With `foreach` DVC leaves the stage out by itself: an empty section has no items.
        if "foreach" not in definition and name in _reads(definition) and params.get(name) is None
    ]


def foreach_sections(definitions: Definitions) -> list[str]:
    """Returns sections over which stages run."""
    return _named_in(definition.get("foreach", "") for definition in definitions.values())


def interpolated_sections(definitions: Definitions) -> list[str]:
    """Sections that dvc.yaml interpolates: DVC resolves no stage without them; `foreach` sections may be empty."""
    return [name for name in _named_in(definitions.values()) if name not in ("key", "item")]


def _named_in(parts: Iterable[Any]) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in _SECTION.findall(str(part))))


def written_outs(definitions: Definitions) -> list[str]:
    """Returns all outputs as in dvc.yaml, with `${key}` and the like unresolved."""
    return [path for definition in definitions.values() for path in _outs(definition.get("do", definition))]


def shared_folders(definitions: Definitions, params: Mapping[str, Any]) -> list[str]:
    """Returns dependencies that no single stage makes: folders into which several stages, or items of one, write.

    A folder of a stage with `foreach` counts for every item; if nothing else writes for that item, its folder is empty.
    """
    outs = [_ITEM.sub(_ANY, path) for path in written_outs(definitions)]
    folders = []
    for name, definition in definitions.items():
        written = _paths(definition.get("do", definition).get("deps"))
        # The slash: data/web is not the folder of data/web_pages.
        shared = [any(out.startswith(f"{_ITEM.sub(_ANY, dep)}/") for out in outs) for dep in written]
        if not any("${" in dep for dep in written):
            folders += [dep for dep, is_shared in zip(written, shared, strict=True) if is_shared]
            continue
        for stage in stages_of({name: definition}, params):
            folders += [dep for dep, is_shared in zip(stage.deps, shared, strict=True) if is_shared]
    return list(dict.fromkeys(folders))


def make_shared_folders(root: Path) -> None:
    """Creates missing ones, and `custom`: a folder does not exist if the branch that writes into it is left out.

    DVC warns of each dependency that is an empty folder. So an empty one gets the file `.keep`, if .dvcignore excludes
    that file from the folder's hash. UserError when params.yaml is not YAML.
    """
    params, ignored = root / "params.yaml", root / ".dvcignore"
    # Otherwise `.keep` would be part of the folder's hash, and re-run the stages that depend on it.
    is_kept_out = ignored.exists() and KEEP in ignored.read_text(encoding="utf-8").split()
    given = read_yaml(params) if params.exists() and params.stat().st_size else {}
    definitions = read_definitions(root / "dvc.yaml")
    # The user's folder too, because git keeps no empty folder. It is not a shared folder, whose strays are moved away.
    own = [CUSTOM] if any(CUSTOM in _paths(one.get("do", one).get("deps")) for one in definitions.values()) else []
    for folder in [*shared_folders(definitions, given), *own]:
        path = root / folder
        path.mkdir(parents=True, exist_ok=True)
        if is_kept_out and not any(path.iterdir()):
            (path / KEEP).touch()


def _items(definition: Mapping[str, Any], params: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if "foreach" not in definition:
        yield "", None
        return
    (section,) = _SECTION.findall(str(definition["foreach"])) or [""]
    items = params.get(section)
    if isinstance(items, Mapping):
        yield from ((str(key), item) for key, item in items.items())
    elif isinstance(items, list):
        yield from ((str(item), item) for item in items)


def _resolved(name: str, definition: Mapping[str, Any], key: str, item: Any) -> GraphStage:
    body = definition.get("do", definition)

    def of_item(paths: list[str]) -> tuple[str, ...]:
        return tuple(filled(path, key, item) for path in paths)

    return GraphStage(
        name=name,
        item=key,
        reads=_reads(definition),
        params=of_item(body.get("params") or []),
        deps=of_item(_paths(body.get("deps"))),
        outs=of_item(_outs(body)),
        metrics=of_item([path for path in _outs(body) if path.startswith(METRICS)]),
        curves=of_item([path for path in _paths(body.get("plots")) if not path.startswith(METRICS)]),
    )


def filled(path: str, key: str, item: Any) -> str:
    """Returns `path` with `${key}`, `${item}` and `${item.name}` replaced by their values."""
    return _ITEM.sub(lambda match: _value(match, key, item), path)


def _value(match: re.Match[str], key: str, item: Any) -> str:
    """Returns the value of `${key}`, `${item}` or `${item.name}`; the text itself where the item has no such value."""
    if match[1] == "key":
        return key
    for name in filter(None, match[2].split(".")):
        item = item.get(name) if isinstance(item, Mapping) else None
    return match[0] if item is None else str(item)


def _reads(definition: Mapping[str, Any]) -> tuple[str, ...]:
    body = definition.get("do", definition)
    named = [str(name).partition(".")[0] for name in body.get("params") or []]
    interpolated = _SECTION.findall(f"{definition.get('foreach', '')} {body['cmd']}")
    return tuple(dict.fromkeys(name for name in [*named, *interpolated] if name not in ("key", "item")))


def _outs(body: Mapping[str, Any]) -> list[str]:
    return [path for kind in ("outs", "metrics", "plots") for path in _paths(body.get(kind))]


def _paths(entries: list[Any] | None) -> list[str]:
    return [entry if isinstance(entry, str) else next(iter(entry)) for entry in entries or []]
