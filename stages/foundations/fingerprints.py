"""The static import closure of a module, as the parameters have it, and the hash of each file in it.

What counts as an import: every `import` statement, inside functions too; the `__init__` of each package on the way;
a string that is the dotted name of a module of the project (workers are started as `python -m stages.engines.x`).
What does not: what only observes (`OBSERVERS`), and of `match chosen("trainer", ...)` the cases whose `kind` is not the
one that the parameter file has. Where it has no such section none of them counts: the stage refuses to run, or what is
absent is off (tests/floors/test_fingerprints.py sees to it that no default has code of its own).
What counts as a file: Python sources, and whatever else lies in their folders (page templates, word lists).
What counts as a library: a package of requirements.lock that one of these sources names in an import, by its version
there. What it needs itself does not count, nor does the interpreter.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.foundations.errors import UserError
from stages.foundations.stage_graph import read_definitions, stages_of

DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.MULTILINE)
LOCK, LIBRARY = "requirements.lock", "library "
PACKAGES = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml"}
"""Packages that are not called as what is imported of them."""
NO_CODE = {".py", ".pyc", ".md"}
ABOUT = "stages/foundations/about.py"
"""A stage with this file in its closure asks the stages of the graph about themselves while it runs."""
OBSERVERS = "stages.observe"
"""The room of what touches no value that reaches an output: tests/floors/test_observers.py holds it to that."""


def stage_names(root: Path) -> list[str]:
    """Names of the packages under stages/ that can be run, without `code` itself: it depends on every source."""
    return sorted(
        main.parent.name for main in root.glob("stages/*/__main__.py") if main.parent.name != "code"
    )


@dataclass(frozen=True)
class Choice:
    """A case of `match chosen(section, ...)`."""

    section: str
    """Dotted place in the parameter file."""
    params_class: str
    """Dotted name of the class that the case is for; its `kind` is what the section must say."""
    imports: frozenset[str]


@dataclass(frozen=True)
class Source:
    """What a Python file says."""

    sha256: str
    """"" when the file holds no statement."""
    imports: frozenset[str]
    """Names that it may import whatever the parameters are."""
    choices: tuple[Choice, ...]
    kinds: Mapping[str, str]
    """The `kind` of each class that has one."""


Memory = dict[Path, Source]
"""Sources read so far, shared by the fingerprints of all stages: each file is parsed once."""


def stage_fingerprint(root: Path, stage: str, params: Mapping[str, Any], memory: Memory) -> dict[str, str]:
    """What data/code/<stage>.json holds: the files that the stage may import, what it learns about other stages, and
    `library NAME` with the version of each library.

    `params` is the whole parameter file. UserError when a source does not parse.
    """
    module = f"stages.{stage}.__main__"
    hashes = fingerprint(root, module, params, memory) | library_versions(root, module, params, memory)
    return hashes | what_stages_say(root, params, memory) if ABOUT in hashes else hashes


def library_versions(root: Path, module: str, params: Mapping[str, Any], memory: Memory) -> dict[str, str]:
    """Versions in requirements.lock of what `module` may import; both where a package has one for each machine."""
    lock = root / LOCK
    pinned: dict[str, set[str]] = {}
    for name, version in PINNED.findall(lock.read_text(encoding="utf-8")) if lock.is_file() else ():
        pinned.setdefault(name.lower().replace("_", "-"), set()).add(version)
    # `dvc` stands in names of files, such as dvc.yaml, and no stage computes with it.
    imported = {name.partition(".")[0] for name in _closure(root, module, params, memory)[1]} - {"dvc"}
    packages = {PACKAGES.get(name, name.lower().replace("_", "-")) for name in imported}
    return {f"{LIBRARY}{name}": ", ".join(sorted(pinned[name])) for name in sorted(packages & pinned.keys())}


def fingerprint(root: Path, module: str, params: Mapping[str, Any], memory: Memory) -> dict[str, str]:
    """`{path under root: sha256}` of all that `module` imports; files without a statement are left out.

    `params` is the whole parameter file. UserError when a source does not parse.
    """
    files = import_closure(root, module, params, memory)
    hashes = {file: memory[file].sha256 for file in files}
    for folder in {file.parent for file in files}:
        others = (path for path in folder.iterdir() if path.is_file() and path.suffix not in NO_CODE)
        hashes |= {path: _sha256(path.read_bytes()) for path in others}
    return {path.relative_to(root).as_posix(): hashes[path] for path in sorted(hashes) if hashes[path]}


def what_stages_say(root: Path, params: Mapping[str, Any], memory: Memory) -> dict[str, str]:
    """Hashes of what such a stage sees: the stages that dvc.yaml makes of the parameters, and each one's about.py.

    Stages that the parameters leave out are not seen.
    """
    stages = stages_of(read_definitions(root / "dvc.yaml"), params)
    hashes = {"dvc.yaml": _sha256(repr(stages).encode())}
    for name in {stage.name for stage in stages}:
        file = root / "stages" / name / "about.py"
        if file.is_file():
            memory[file] = memory.get(file) or read_source(file, f"stages.{name}")
            hashes[file.relative_to(root).as_posix()] = memory[file].sha256
    return hashes


def import_closure(root: Path, module: str, params: Mapping[str, Any], memory: Memory) -> set[Path]:
    """Files under `root` that importing `module` may execute, now or later, with these parameters."""
    return _closure(root, module, params, memory)[0]


def _closure(
    root: Path, module: str, params: Mapping[str, Any], memory: Memory
) -> tuple[set[Path], set[str]]:
    """The files, and the names that were looked for."""
    pending, seen, files = [module], set(), set()
    while pending:
        name = pending.pop()
        if name in seen or f"{name}.".startswith(f"{OBSERVERS}."):
            continue
        seen.add(name)
        pending += [name.rpartition(".")[0]] if "." in name else []
        file = _file_of(root, name)
        if file and file not in files:
            files.add(file)
            source = _remembered(file, name, memory)
            pending += source.imports
            pending += (
                imported
                for choice in source.choices
                if _is_chosen(choice, root, params, memory)
                for imported in choice.imports
            )
    return files, seen


def _remembered(file: Path, module: str, memory: Memory) -> Source:
    if file not in memory:
        memory[file] = read_source(file, module if file.name == "__init__.py" else module.rpartition(".")[0])
    return memory[file]


def _is_chosen(choice: Choice, root: Path, params: Mapping[str, Any], memory: Memory) -> bool:
    """Whether the parameter file has the case's kind; True also for a class that has none."""
    said: Any = params
    for part in [*choice.section.split("."), "kind"]:
        said = said.get(part) if isinstance(said, Mapping) else None
    module, _, name = choice.params_class.rpartition(".")
    file = _file_of(root, module)
    own = _remembered(file, module, memory).kinds.get(name) if file else None
    return own is None or own == said


def read_source(path: Path, package: str) -> Source:
    """Hashes the syntax tree without positions, comments and bare strings, and collects imports, choices and kinds.

    Fields that are empty are not hashed, so that Python 3.11 and 3.12 (which adds `type_params`) agree.
    """
    text = path.read_bytes()
    tree = _without_bare_strings(_parse(path, text))
    dump: list[str] = []
    if tree.body:
        _dump(tree, dump.append)
    cases = (
        list(_cases(tree, package)) if b"chosen" in text else []
    )  # few files have any, and a walk takes long
    inside = {id(node) for _, case in cases for part in case.body for node in ast.walk(part)}
    choices = (
        Choice(section, name, frozenset(imported_names(ast.Module(case.body, []), package)))
        for (section, name), case in cases
    )
    return Source(
        _sha256("".join(dump).encode()) if dump else "",
        frozenset(imported_names(tree, package, inside)),
        tuple(choices),
        dict(_kinds(tree)),
    )


def _cases(tree: ast.Module, package: str) -> Iterator[tuple[tuple[str, str], ast.match_case]]:
    """Section and dotted class name of each case of a `match chosen("section", ...)`, with the case.

    A case that is not for one imported class is none: it counts whatever is chosen.
    """
    classes = {
        alias.asname or alias.name: f"{_base(node, package)}.{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        match node:
            case ast.Match(subject=ast.Call(func=ast.Name("chosen"), args=[ast.Constant(section), _])):
                for case in node.cases:
                    pattern = case.pattern.pattern if isinstance(case.pattern, ast.MatchAs) else case.pattern
                    match pattern:
                        case ast.MatchClass(cls=ast.Name(name)) if name in classes:
                            yield (section, classes[name]), case


def _kinds(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name and kind of each class that says `kind: Literal["..."]`."""
    for node in tree.body:
        for part in node.body if isinstance(node, ast.ClassDef) else ():
            match part:
                case ast.AnnAssign(
                    target=ast.Name("kind"),
                    annotation=ast.Subscript(value=ast.Name("Literal"), slice=ast.Constant(kind)),
                ):
                    yield node.name, kind


def imported_names(tree: ast.Module, package: str, left_out: Collection[int] = ()) -> Iterator[str]:
    """Dotted names that `tree` may import, relative ones resolved against `package`.

    `from a import b` gives `a` and `a.b`, which may be a module or not. `left_out`: nodes by `id`.
    """
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and DOTTED_NAME.fullmatch(node.value)
        ):
            yield from (node.value, f"{node.value}.__main__")


def _base(node: ast.ImportFrom, package: str) -> str:
    """What a `from` statement imports from."""
    parents = package.split(".")
    base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
    return ".".join(filter(None, [base, node.module]))


def _dump(node: object, write: Callable[[str], None]) -> None:
    """No generator: one in another at every depth of the tree takes five times as long."""
    if isinstance(node, ast.AST):
        write(f"{type(node).__name__}(")
        for name in node._fields:
            value = getattr(node, name, None)
            if value is not None and value != [] and name not in ("kind", "type_comment"):
                write(f"{name}=")
                _dump(value, write)
        write(")")
    elif isinstance(node, list):
        for item in node:
            _dump(item, write)
            write(",")
    else:
        write(repr(node))


def _without_bare_strings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                setattr(node, field, [item for item in statements if not _is_bare_string(item)])
    return tree


def _is_bare_string(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _parse(path: Path, text: bytes) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise UserError(f"{path} line {error.lineno} does not parse: {error.msg}") from error


def _file_of(root: Path, module: str) -> Path | None:
    place = root.joinpath(*module.split("."))
    for file in (place.with_suffix(".py"), place / "__init__.py"):
        if file.is_file():
            return file
    return None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
