"""The definitions of a Python file, with all that they use by name: what fingerprints.py follows from file to file."""

from __future__ import annotations

import ast
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stages.foundations.errors import UserError

DOTTED_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
ALL = "*"
"""In place of a name: every definition of the module."""
GUARD = "__main__"
"""The definition for a module's action as a program, after `if __name__ == "__main__":`."""


@dataclass(frozen=True)
class Definition:
    """The content of one statement at a module's top level; of a module that counts completely, of all statements."""

    syntax: str
    """Hash of the syntax tree without positions, comments, bare strings and names of the project's modules."""
    names: frozenset[tuple[str, ...]]
    """Names that it uses, with their attributes: `("tables", "PROBLEM")` for `tables.PROBLEM`."""
    imports: Mapping[str, tuple[str, ...]]
    """Names bound by imports inside it -> the dotted names that they may mean."""
    strings: frozenset[str]
    """Its strings that could be dotted names."""
    cases: tuple[Case, ...]
    decorators: frozenset[tuple[str, ...]] = frozenset()
    """Names of its decorators. A decorator of the project may store the definition somewhere, as in a registry."""


@dataclass(frozen=True)
class Case:
    section: str
    """Dotted place in the parameter file."""
    params_class: str
    """Name of the class of the case; the section's `kind` must equal that of the class."""
    body: str
    """Name of the definition under which the case counts."""


@dataclass(frozen=True)
class Source:
    sha256: str
    """Hash of the whole syntax tree; "" when the file has no statement."""
    definitions: Mapping[str, Definition]
    imports: Mapping[str, tuple[str, ...]]
    """Names that the module imports -> the dotted names that they may mean."""
    is_whole: bool
    """True if all definitions count as one: the top level does more than define names, each once."""
    kinds: Mapping[str, str]


def read_source(path: Path, package: str) -> Source:
    """Returns the definitions of a file whose relative imports are resolved against `package`.

    Fields of the syntax tree that are empty are not hashed, so that Python 3.11 and 3.12 (which adds `type_params`)
    agree.
    """
    # Docstrings are for readers, like comments, which are not in the syntax tree.
    tree = _without_bare_strings(_parse(path))
    imports, parts, rest = _Reader(package, ""), defaultdict[str, list[ast.stmt]](list), list[ast.stmt]()
    is_whole = False
    for statement in tree.body:
        match statement:
            case ast.Import() | ast.ImportFrom():
                imports.read(statement)
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                pass  # it is never run
            case ast.If(test=ast.Compare(left=ast.Name("__name__"))):
                parts[GUARD] += statement.body
                # Also in `rest`: where the module counts completely, its program does so too.
                rest += statement.body
            case _:
                names = _bound(statement)
                # A statement that binds nothing, or binds a name again, depends on the order of the file.
                is_whole |= not names or not parts.keys().isdisjoint(names)
                rest.append(statement)
                for name in names:
                    parts[name].append(statement)
    if is_whole:
        whole = _definitions(ALL, rest, package)
        definitions = {**whole, **dict.fromkeys(parts, whole[ALL])}
    else:
        definitions = {
            name: one
            for part, statements in parts.items()
            for name, one in _definitions(part, statements, package).items()
        }
    content = [(name, one.syntax, sorted(one.imports.items())) for name, one in definitions.items()]
    return Source(
        _sha256(repr([content, sorted(imports.imports.items())]).encode()) if tree.body else "",
        definitions,
        imports.imports,
        is_whole,
        dict(_kinds(tree)),
    )


def _bound(statement: ast.stmt) -> list[str]:
    """Returns the names that a statement defines; none where it does anything else or more."""
    match statement:
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            return [name]
        case ast.Assign(targets=targets):
            flat = [one for target in targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])]
        case ast.AnnAssign(target=target):
            flat = [target]
        case ast.AST(name=ast.Name() as target):  # `type X = ...`
            flat = [target]
        case _:
            return []
    return [one.id for one in flat] if all(isinstance(one, ast.Name) for one in flat) else []


def _definitions(name: str, statements: Iterable[ast.stmt], package: str) -> dict[str, Definition]:
    reader, decorating = _Reader(package, name), _Reader(package, name)
    for statement in statements:
        reader.read(statement)
        decorating.read(getattr(statement, "decorator_list", []))
    return reader.definitions(decorating.names)


class _Reader:
    """Writes syntax trees as text, and collects their names. Not a generator: that would take five times as long."""

    def __init__(self, package: str, name: str) -> None:
        self._package, self._name = package, name
        self._text: list[str] = []
        self.names: set[tuple[str, ...]] = set()
        self.imports: dict[str, tuple[str, ...]] = {}
        self._strings: set[str] = set()
        self._cases: list[tuple[Case, _Reader]] = []

    def definitions(
        self, decorators: Iterable[tuple[str, ...]] = (), outer: Mapping[str, tuple[str, ...]] | None = None
    ) -> dict[str, Definition]:
        """Returns the definition read so far, with its cases. `outer`: names that imports around it bind."""
        imports = {**(outer or {}), **self.imports}
        definitions = {}
        for _, body in self._cases:
            definitions |= body.definitions(outer=imports)
        cases = tuple(case for case, _ in self._cases)
        syntax = _sha256("".join(self._text).encode())
        sets = frozenset(self.names), imports, frozenset(self._strings)
        return {self._name: Definition(syntax, *sets, cases, frozenset(decorators)), **definitions}

    def read(self, node: object) -> None:
        if isinstance(node, list):
            for item in node:
                self.read(item)
                self._text.append(",")
        elif not isinstance(node, ast.AST):
            self._text.append(repr(node))
        elif not node._fields:  # `Load()`, `Add()`: a third of all nodes
            self._text.append(f"{type(node).__name__}()")
        else:
            self._read_node(node)

    def _read_node(self, node: ast.AST) -> None:
        match node:
            case ast.Import(names):
                for alias in names:
                    # `import a.b` binds `a`; the import of `a.b` has no name.
                    self._bind(
                        alias.asname or alias.name.partition(".")[0],
                        alias.name if alias.asname else alias.name.partition(".")[0],
                    )
                    self._bind("", alias.name)
            case ast.ImportFrom():
                base = _base(node, self._package)
                for alias in node.names:
                    self._bind(alias.asname or alias.name, base if alias.name == ALL else f"{base}.{alias.name}")
            case ast.Attribute() if names := _dotted(node):
                self.names.add(names)
                self._text.append(f"{'.'.join(names)} {type(node.ctx).__name__}")
            case ast.Match(subject=ast.Call(func=ast.Name("chosen"), args=[ast.Constant(str(section)), subject])):
                self.names.add(("chosen",))
                self._text.append(f"chosen {section}(")
                self.read(subject)
                for case in node.cases:
                    self._read_case(section, case)
                self._text.append(")")
            case _:
                self._read_fields(node)

    def _read_fields(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            self.names.add((node.id,))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED_NAME.fullmatch(node.value):
            self._strings.add(node.value)
        self._text.append(f"{type(node).__name__}(")
        for name in node._fields:
            value = getattr(node, name, None)
            # `kind` is the prefix of u"text", and `type_comment` a comment: neither changes behaviour.
            if value is not None and value != [] and name not in ("kind", "type_comment"):
                self._text.append(f"{name}=")
                self.read(value)
        self._text.append(")")

    def _read_case(self, section: str, case: ast.match_case) -> None:
        """A case that does not name a class counts whatever is chosen."""
        pattern = case.pattern.pattern if isinstance(case.pattern, ast.MatchAs) else case.pattern
        match pattern:
            case ast.MatchClass(cls=ast.Name(name)):
                # A separate definition, so that a change in a case that is not chosen re-runs nothing.
                body = _Reader(self._package, f"{self._name} {section} {name}")
                body._read_fields(case)
                self._cases.append((Case(section, name, body._name), body))
            case _:
                self._read_fields(case)

    def _bind(self, name: str, dotted: str) -> None:
        self.imports[name] = tuple(dict.fromkeys([*self.imports.get(name, ()), dotted]))


def _dotted(node: ast.Attribute) -> tuple[str, ...] | None:
    """Returns the names of `a.b.c`; None where the first is not a name."""
    names, value = [node.attr], node.value
    while isinstance(value, ast.Attribute):
        names.append(value.attr)
        value = value.value
    return (value.id, *reversed(names)) if isinstance(value, ast.Name) else None


def _kinds(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Returns name and kind of each class that has `kind: Literal["..."]`."""
    for node in tree.body:
        for part in node.body if isinstance(node, ast.ClassDef) else ():
            match part:
                case ast.AnnAssign(
                    target=ast.Name("kind"),
                    annotation=ast.Subscript(value=ast.Name("Literal"), slice=ast.Constant(kind)),
                ):
                    yield node.name, kind


def _base(node: ast.ImportFrom, package: str) -> str:
    parents = package.split(".")
    base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
    return ".".join(filter(None, [base, node.module]))


def _without_bare_strings(tree: ast.Module) -> ast.Module:
    pending: list[ast.AST] = [tree]
    while pending:  # not `ast.walk`, which also visits all expressions
        node = pending.pop()
        for part in ("body", "orelse", "finalbody"):
            statements = getattr(node, part, None)
            if isinstance(statements, list):
                setattr(node, part, [item for item in statements if not _is_bare_string(item)])
                pending += getattr(node, part)
        pending += [*getattr(node, "handlers", ()), *getattr(node, "cases", ())]
    return tree


def _is_bare_string(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise UserError(f"{path} line {error.lineno} does not parse: {error.msg}") from error


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
