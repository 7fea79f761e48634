"""The static import closure of a module and the hash of each file in it.

What counts as an import: every `import` statement, inside functions too; the `__init__` of each package on the way;
a string that is the dotted name of a module of the project (workers are started as `python -m stages.engines.x`).
What counts as a file: Python sources, and whatever else lies in their folders (page templates, word lists).
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stages.foundations.errors import UserError
from stages.foundations.params import read_yaml
from stages.foundations.stage_graph import read_definitions, stages_of

DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
NO_CODE = {".py", ".pyc", ".md"}
ABOUT = "stages/foundations/about.py"
"""A stage with this file in its closure asks the stages of the graph about themselves while it runs."""


def stage_names(root: Path) -> list[str]:
    """Names of the packages under stages/ that can be run; `code` itself is left out, it always runs."""
    return sorted(
        main.parent.name for main in root.glob("stages/*/__main__.py") if main.parent.name != "code"
    )


@dataclass(frozen=True)
class Source:
    """What a Python file says: its hash ("" when it holds no statement) and the names it may import."""

    sha256: str
    imports: frozenset[str]


Memory = dict[Path, Source]
"""Sources read so far, shared by the fingerprints of all stages: each file is parsed once."""


def fingerprint(root: Path, module: str, memory: Memory) -> dict[str, str]:
    """`{path under root: sha256}` of all that `module` imports; files without a statement are left out.

    UserError when a source does not parse.
    """
    files = import_closure(root, module, memory)
    hashes = {file: memory[file].sha256 for file in files}
    for folder in {file.parent for file in files}:
        others = (path for path in folder.iterdir() if path.is_file() and path.suffix not in NO_CODE)
        hashes |= {path: _sha256(path.read_bytes()) for path in others}
    return {path.relative_to(root).as_posix(): hashes[path] for path in sorted(hashes) if hashes[path]}


def what_stages_say(root: Path, memory: Memory) -> dict[str, str]:
    """Hashes of what such a stage sees: the stages that dvc.yaml makes of params.yaml, and each one's about.py.

    dvc.yaml itself can be no dependency of a stage. Stages that the parameters leave out are not seen.
    """
    params = root / "params.yaml"
    stages = stages_of(read_definitions(root / "dvc.yaml"), read_yaml(params) if params.exists() else {})
    hashes = {"dvc.yaml": _sha256(repr(stages).encode())}
    for name in {stage.name for stage in stages}:
        file = root / "stages" / name / "about.py"
        if file.is_file():
            memory[file] = memory.get(file) or read_source(file, f"stages.{name}")
            hashes[file.relative_to(root).as_posix()] = memory[file].sha256
    return hashes


def import_closure(root: Path, module: str, memory: Memory) -> set[Path]:
    """Files under `root` that importing `module` may execute, now or later."""
    pending, seen, files = [module], set(), set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        pending += [name.rpartition(".")[0]] if "." in name else []
        file = _file_of(root, name)
        if file and file not in files:
            files.add(file)
            package = name if file.name == "__init__.py" else name.rpartition(".")[0]
            memory[file] = memory.get(file) or read_source(file, package)
            pending += memory[file].imports
    return files


def read_source(path: Path, package: str) -> Source:
    """Hashes the syntax tree without positions, comments and bare strings, and collects the imports.

    Fields that are empty are not hashed, so that Python 3.11 and 3.12 (which adds `type_params`) agree.
    """
    tree = _without_bare_strings(_parse(path))
    dump = "".join(_dump(tree)) if tree.body else ""
    return Source(_sha256(dump.encode()) if dump else "", frozenset(imported_names(tree, package)))


def imported_names(tree: ast.Module, package: str) -> Iterator[str]:
    """Dotted names that `tree` may import, relative ones resolved against `package`.

    `from a import b` gives `a` and `a.b`, which may be a module or not.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, [base, node.module]))
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and DOTTED_NAME.fullmatch(node.value)
        ):
            yield from (node.value, f"{node.value}.__main__")


def _dump(node: object) -> Iterator[str]:
    if isinstance(node, ast.AST):
        yield f"{type(node).__name__}("
        for name, value in ast.iter_fields(node):
            if value is not None and value != [] and name not in ("kind", "type_comment"):
                yield f"{name}="
                yield from _dump(value)
        yield ")"
    elif isinstance(node, list):
        for item in node:
            yield from _dump(item)
            yield ","
    else:
        yield repr(node)


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


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
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
