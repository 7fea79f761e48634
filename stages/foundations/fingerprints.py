"""The fingerprint of a stage's code: a hash of each definition that the stage can reach, with its parameters.

A definition is a name that a module binds at its top level: a function, a class or a value. A stage starts from `main`
in stages/<stage>/run.py and `STAGE` in stage.py. Each definition reaches those whose names it uses. Their place does
not matter: a definition may move to another file, and another definition beside it may change. `references` is
the hash of which definition uses which others.

Followed are: names, attributes of modules (`tables.PROBLEM`), imports inside functions, and a string that is the
dotted name of a module of the project (workers are started as `python -m stages.engines.x`). A module that cannot be
followed counts completely: one that is passed on (`getattr(module, name)`), or whose top level does more than define.
Not counted are: code that only observes (`OBSERVERS`), and cases of `match chosen("trainer", ...)` whose `kind` differs
from the parameter file's. Without such a section none of them counts: either the stage refuses to run, or the absent
feature is off (tests/architecture/test_fingerprints.py ensures that no default has code of its own).
Other files in the folder of a definition count too (page templates, word lists). So does the version of each
library in requirements.lock that these modules import. Dependencies of a library do not count, nor the interpreter.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from stages.foundations.definitions import ALL, GUARD, Case, Definition, Source, read_source
from stages.foundations.errors import UserError
from stages.foundations.params import CUSTOM, custom_file, custom_files
from stages.foundations.stage import WINGS, stage_folder, stage_package
from stages.foundations.stage_graph import GraphStage, read_definitions, stages_of

PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.MULTILINE)
LOCK, LIBRARY = "requirements.lock", "library "
PACKAGES = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml", "ruamel": "ruamel-yaml"}
"""Packages whose names differ from the names of their modules."""
# Files beside the sources that no stage reads. Every other file in such a folder counts.
NO_CODE = {".py", ".pyc", ".md"}
ASKS_OTHERS = {("stages.foundations.stage", "about"), ("stages.foundations.stage_graph", "stages_of")}
"""A stage that reaches one of these reads the graph, or declarations of its stages, while it runs."""
JOB = ("stages.foundations.job", "read_job")
"""Called by `python -m stages` on a stage's declaration."""
OBSERVERS = "stages.observe"
"""Package of code that touches no value that reaches an output: tests/architecture/test_observers.py checks that."""
PLACES = {"__file__", "__name__", "__package__", "__spec__"}
"""Names by which code learns its own place: moving it changes its behaviour."""

Address = tuple[str, str]
"""Dotted name of a module, and the name of a definition in it."""
Memory = dict[Path, Source]
"""Sources read so far, shared by the fingerprints of all stages: each file is parsed once."""


def stage_names(root: Path) -> list[str]:
    """Returns names of the packages under stages/ that can run, without `code` itself: it depends on every source."""
    runs = [*root.glob("stages/*/run.py"), *(run for wing in WINGS for run in root.glob(f"stages/{wing}/*/run.py"))]
    return sorted(run.parent.name for run in runs if run.parent.name != "code")


def stage_roots(root: Path, stage: str) -> tuple[Address, ...]:
    """Returns the definitions that a run of a stage starts from: its `main` and its declaration."""
    package = stage_package(root, stage)
    return (f"{package}.run", "main"), (f"{package}.stage", "STAGE"), JOB


def what_stages_say(root: Path, params: Mapping[str, Any], memory: Memory) -> dict[str, str]:
    """Returns hashes of what such a stage reads: the stages that dvc.yaml makes of the parameters, and their stage.py.

    It does not read stages that the parameters leave out.
    """
    stages = stages_of(read_definitions(root / "dvc.yaml"), params)
    hashes = {"dvc.yaml": _sha256(repr(stages).encode())}
    # A whole file counts here: the pages read fields of ABOUT that no name in their code shows.
    for name in {stage.name for stage in stages}:
        file = stage_folder(root, name) / "stage.py"
        if file.is_file():
            memory[file] = memory.get(file) or read_source(file, stage_package(root, name))
            hashes[file.relative_to(root).as_posix()] = memory[file].sha256
    return hashes


@dataclass(frozen=True)
class Reach:
    """All definitions that a module may compute with."""

    definitions: Mapping[Address, str]
    """Hash of each definition itself, without the definitions that it uses."""
    uses: Mapping[Address, frozenset[tuple[str, Address]]]
    """Definition -> the definitions that it uses, by the name it uses."""
    files: Mapping[str, Path]
    others: tuple[Path, ...]
    """Files other than Python, in the folders of the definitions."""

    def hashes(self) -> dict[str, str]:
        """Returns `{name: sha256}` of the definitions and other files, and `references`. It contains no places."""
        digests = defaultdict(list)
        for address, digest in self.definitions.items():
            digests[self.name(address)].append(digest)
        for path in self.others:
            digests[path.name].append(_sha256(path.read_bytes()))
        # Definitions with one name share an entry. Hashes are sorted, or the order of their modules would count.
        merged = {
            name: one[0] if len(one) == 1 else _sha256(repr(sorted(one)).encode()) for name, one in digests.items()
        }
        return dict(sorted(merged.items())) | {"references": self._references()}

    def name(self, address: Address) -> str:
        """Returns the name of a definition in the fingerprint: for a whole module its last name."""
        module, name = address
        return module.rpartition(".")[2] if name in (ALL, GUARD) else name

    def where(self, name: str) -> str:
        """`stages/sft/run.py: run` for a name in the fingerprint; only the name where it is not a definition."""
        files = {self.files[one[0]].as_posix() for one in self.definitions if self.name(one) == name}
        return f"{', '.join(sorted(files))}: {name}" if files else name

    def _references(self) -> str:
        """Twins, with one name and one text, are distinguished by their modules. No other module is included."""
        twins = Counter((self.name(address), digest) for address, digest in self.definitions.items())

        def key(address: Address) -> tuple[str, ...]:
            twin = (self.name(address), self.definitions[address])
            return (*twin, address[0]) if twins[twin] > 1 else twin

        lines = {(key(user), name, key(used)) for user, uses in self.uses.items() for name, used in uses}
        return _sha256(repr(sorted(lines)).encode())


@dataclass
class Project:
    """The sources at `root`, as a parameter file uses them. Results for one stage are reused for the others."""

    root: Path
    params: Mapping[str, Any]
    memory: Memory
    _files: dict[str, Path | None] = field(default_factory=dict)
    _uses: dict[Address, tuple[str, frozenset[tuple[str, Address]], frozenset[str]]] = field(default_factory=dict)

    def fingerprint(self, stage: str) -> dict[str, str]:
        """Returns the content of data/code/<stage>.json: `Reach.hashes`, facts that a page reads about other stages,
        and `library NAME` with the locked version of each library.

        UserError when a source does not parse.
        """
        reach = self.reach(*stage_roots(self.root, stage))
        asks = not ASKS_OTHERS.isdisjoint(reach.definitions)
        of_others = what_stages_say(self.root, self.params, self.memory) if asks else {}
        return reach.hashes() | of_others | self._custom_files(stage) | self._library_versions(reach)

    def _custom_files(self, stage: str) -> dict[str, str]:
        """Returns hashes of the user's files that the stage's parameters name. UserError if one is missing or not
        Python.

        Comments and layout of Python do not count, as in the project's sources.
        """
        names = {name for one in self._graph if one.name == stage for name in one.params}
        hashes = {}
        for path in sorted(custom_files([_value_at(self.params, name) for name in names])):
            file = custom_file(path, self.root)
            # Read again each time: these files are not modules, so no import guard sees an edit.
            hashes[path] = read_source(file, CUSTOM).sha256 if file.suffix == ".py" else _sha256(file.read_bytes())
        return hashes

    @cached_property
    def _graph(self) -> list[GraphStage]:
        return stages_of(read_definitions(self.root / "dvc.yaml"), self.params)

    def _library_versions(self, reach: Reach) -> dict[str, str]:
        """Returns versions in requirements.lock; both where a package has one for each machine."""
        # For a library only the version counts: its code is not read.
        lock, pinned = self.root / LOCK, defaultdict[str, set[str]](set)
        for name, version in PINNED.findall(lock.read_text(encoding="utf-8")) if lock.is_file() else ():
            pinned[_package(name)].add(version)
        bound = [self._source(module).imports for module in reach.files]
        bound += [definition.imports for address in reach.definitions if (definition := self.definition(address))]
        names = {one.partition(".")[0] for imports in bound for targets in imports.values() for one in targets}
        packages = {PACKAGES.get(name, _package(name)) for name in names}
        return {f"{LIBRARY}{name}": ", ".join(sorted(pinned[name])) for name in sorted(packages & pinned.keys())}

    def reach(self, *roots: Address) -> Reach:
        """Returns all definitions that those at `roots` may compute with. UserError where one does not exist."""
        definitions, uses = {}, {}
        imported, pending = set(), list(roots)
        for module, name in roots:
            if not self._file(module) or name not in self._source(module).definitions:
                raise UserError(f"{self.root} has no `{name}` in {module.replace('.', '/')}.py: write it")
        while pending:
            address = pending.pop()
            if address in definitions:
                continue
            definitions[address], uses[address], modules = self._look_up(address)
            pending += (used for _, used in uses[address])
            pending += self._import({address[0], *modules}, imported)
        files = {one: self._file(one) for one in imported if self._file(one)}
        folders = {files[one].parent for one, _ in definitions}
        # Templates and word lists are opened by path, which no name in the code shows.
        others = (path for one in folders for path in one.iterdir() if path.suffix not in NO_CODE and path.is_file())
        inside = {one: path.relative_to(self.root) for one, path in files.items()}
        return Reach(definitions, uses, inside, tuple(sorted(others)))

    def _import(self, modules: Iterable[str], imported: set[str]) -> Iterator[Address]:
        """Adds the modules and all modules that they import; yields those that count completely."""
        pending = list(modules)
        while pending:
            module = pending.pop()
            if module in imported or not self._file(module):
                continue
            imported.add(module)
            source = self._source(module)
            # Importing `a.b` runs `a/__init__.py` first.
            pending += [module.rpartition(".")[0]] if "." in module else []
            pending += (
                one for targets in source.imports.values() for target in targets for one in self._modules(target)
            )
            # Importing runs a module's top level. Definitions that are not reached have no effect then, but these do.
            if source.is_whole:
                yield (module, ALL)
            for name, definition in source.definitions.items():
                targets = (one for names in definition.decorators for one in source.imports.get(names[0], names[:1]))
                if any(one in source.definitions or self._find(one) for one in targets):
                    yield (module, name)

    def definition(self, address: Address) -> Definition | None:
        """Returns the definition at an address; None for an address that only groups others."""
        return self._source(address[0]).definitions.get(address[1])

    def _look_up(self, address: Address) -> tuple[str, frozenset[tuple[str, Address]], frozenset[str]]:
        """Returns a definition's hash, the definitions it uses with their names, and the modules that it imports."""
        if address not in self._uses:
            module, name = address
            source = self._source(module)
            if name in source.definitions:
                self._uses[address] = self._of(source.definitions[name], module)
            else:  # ALL of a module whose definitions count separately, or a module that does nothing as a program
                parts = frozenset((one, (module, one)) for one in source.definitions if name == ALL)
                self._uses[address] = "", parts, frozenset()
        return self._uses[address]

    def _of(self, definition: Definition, module: str) -> tuple[str, frozenset[tuple[str, Address]], frozenset[str]]:
        # Parts of `lines` other than the syntax are sorted: the order of a set must not reach the hash.
        source, lines = self._source(module), [definition.syntax]
        uses: set[tuple[str, Address]] = set()
        modules = {
            one for targets in definition.imports.values() for target in targets for one in self._modules(target)
        }
        for names in definition.names:
            head, text = names[0], ".".join(names)
            # A name inside the definition may hide that of the module. Both count: an extra dependency only causes a
            # re-run.
            targets = [*definition.imports.get(head, ()), *source.imports.get(head, ())]
            if head in source.definitions and head != GUARD:
                uses.add((head, (module, ALL if source.is_whole else head)))
            for target in targets or source.imports.get(ALL, ()):
                targets_of = self._find(".".join([target, *names[1:]])) if targets else {(target, ALL)}
                uses |= {(text, one) for one in targets_of}
                # The syntax has only `sqrt`, so `from cmath import sqrt` for `from math import sqrt` shows only here.
                if not self._is_ours(target):
                    lines.append(f"{head} is {target}")
            if head in PLACES:
                lines.append(f"in {module}")
            if head == "globals":  # which reaches any name of its module
                uses.add((head, (module, ALL)))
        # Workers start as `python -m NAME`: the string is the only trace of what they run.
        for text in (one for one in definition.strings if self._file(one) and not _observes(one)):
            uses.add((GUARD, (text, ALL)))
            if self._file(f"{text}.__main__"):
                uses.add((GUARD, (f"{text}.__main__", GUARD)))
        uses |= {(case.section, (module, case.body)) for case in definition.cases if self._is_chosen(case, module)}
        return _sha256("\n".join([lines[0], *sorted(lines[1:])]).encode()), frozenset(uses), frozenset(modules)

    def _is_chosen(self, case: Case, module: str) -> bool:
        """True if the parameter file has the case's kind, or the class has none."""
        value: Any = self.params
        for part in [*case.section.split("."), "kind"]:
            value = value.get(part) if isinstance(value, Mapping) else None
        for target in self._source(module).imports.get(case.params_class, (f"{module}.{case.params_class}",)):
            for place, name in self._find(target):
                kind = self._source(place).kinds.get(case.params_class if name == ALL else name)
                if kind is not None:
                    return kind == value
        return True

    def _find(self, dotted: str, seen: frozenset[Address] = frozenset()) -> set[Address]:
        """Returns the definitions that a dotted name may mean; none outside the project, and none for observers.

        `seen`: names that modules import from each other on the way here. A name in a circle is unknown.
        """
        if not self._is_ours(dotted) or _observes(dotted):
            return set()
        parts = dotted.split(".")
        # The longest part that is a module. The rest names something inside of it.
        cut = next((cut for cut in range(len(parts), 0, -1) if self._file(".".join(parts[:cut]))), 0)
        module, rest = ".".join(parts[:cut]), parts[cut:]
        if not cut:
            return set()
        source = self._source(module)
        if rest and rest[0] in source.definitions:
            return {(module, ALL if source.is_whole else rest[0])}
        if rest and rest[0] in source.imports and (module, rest[0]) not in seen:
            seen |= {(module, rest[0])}
            return {
                one for target in source.imports[rest[0]] for one in self._find(".".join([target, *rest[1:]]), seen)
            }
        return {(module, ALL)}

    def _is_ours(self, dotted: str) -> bool:
        return self._file(dotted.partition(".")[0]) is not None

    def _modules(self, dotted: str) -> Iterator[str]:
        """Returns the modules that importing a dotted name imports, without those above them."""
        parts = dotted.split(".")
        if not _observes(dotted):
            yield from (".".join(parts[:cut]) for cut in range(len(parts), 0, -1) if self._file(".".join(parts[:cut])))

    def _source(self, module: str) -> Source:
        file = self._file(module)
        assert file
        if file not in self.memory:
            self.memory[file] = read_source(file, module if file.name == "__init__.py" else module.rpartition(".")[0])
        return self.memory[file]

    def _file(self, module: str) -> Path | None:
        """A package without an `__init__.py` is its folder: it imports nothing."""
        if module not in self._files:
            place = self.root.joinpath(*module.split("."))
            files = (place.with_suffix(".py"), place / "__init__.py")
            self._files[module] = next((file for file in files if file.is_file()), None)
        return self._files[module]


def _package(name: str) -> str:
    # Package indexes treat these spellings as one name (PEP 503).
    return name.lower().replace("_", "-")


def _observes(dotted: str) -> bool:
    return f"{dotted}.".startswith(f"{OBSERVERS}.")


def _value_at(params: Any, name: str) -> Any:
    for part in name.split("."):
        params = params.get(part) if isinstance(params, Mapping) else None
    return params


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
