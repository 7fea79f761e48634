"""What observes touches no value that reaches an output, which is why no fingerprint covers `stages.observe`.

What stages call there gives nothing back, and they use it in no other way. tests/observe/test_unobserved.py shows it:
real stages give the same bytes with it and without.
"""

import ast
import inspect
import io
import sys
from pathlib import Path

import pytest

from stages.foundations.fingerprints import OBSERVERS
from stages.observe import command, lifetime, progress, quick_imports, tracking

PROJECT = Path(__file__).resolve().parents[2]
GIVE_NOTHING = (command.run_stage, lifetime.die_with_parent, progress.say)
BLOCKS = (quick_imports.quick_imports, tracking.track)
METHODS = ("log", "phase", "summary")
CONTEXT_MANAGERS = {function.__name__ for function in BLOCKS}


def misuses(source: str) -> list[str]:
    """The uses of `stages.observe` in a module that could bring a value out of it."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    for node in nodes:
        for child in ast.iter_child_nodes(node):
            child.parent = node
    imported, found = {}, []
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{OBSERVERS}."):
            imported |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            whole = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            named = any(f"{whole}{alias.name}.".startswith(f"{OBSERVERS}.") for alias in node.names)
            found += [ast.unparse(node)] if named else []
    runs = run_names(nodes, {name for name, original in imported.items() if original == "Run"})
    for node in nodes:
        match node:
            case ast.Name(name, ast.Load()) if name in imported:
                is_fine = is_annotation(node) or is_allowed_call(node, imported[name])
            case ast.Name(name, ast.Load()) if name in runs:
                is_fine = is_allowed_run(node)
            case ast.Attribute(attr="run"):  # of a `Learner`; `subprocess.run(...)` is called
                is_fine = is_called(node) or is_allowed_run(node)
            case _:
                continue
        if not is_fine:
            found.append(ast.unparse(node.parent))
    return found


def run_names(nodes, classes) -> set[str]:
    """Names of a `Run`: annotated as one, or bound by `with track(...) as` or `enter_context(track(...))`."""
    names = set()
    for node in nodes:
        match node:
            case ast.arg(name, ast.Name(annotation)) if annotation in classes:
                names.add(name)
            case ast.withitem(ast.Call(ast.Name("track")), ast.Name(name)):
                names.add(name)
            case ast.Assign([ast.Name(name)], ast.Call(ast.Attribute(attr="enter_context"), [entered])):
                names |= {name} if ast.unparse(entered).startswith("track(") else set()
    return names


def is_annotation(node) -> bool:
    above = node.parent
    while isinstance(above, ast.BinOp | ast.Subscript):
        node, above = above, above.parent
    return isinstance(above, ast.arg | ast.AnnAssign) and above.annotation is node


def is_called(node) -> bool:
    return isinstance(node.parent, ast.Call) and node.parent.func is node


def is_entered(call, is_bare: bool) -> bool:
    """Whether a context manager is entered by `with` (if `is_bare`, without `as`) or by an `ExitStack`."""
    match call.parent:
        case ast.withitem(optional_vars=bound):
            return not (is_bare and bound)
        case ast.Call(ast.Attribute(attr="enter_context")):
            return True
    return False


def is_allowed_call(name, original: str) -> bool:
    """`progress(...)` anywhere, a context manager where it is entered, any other call as a statement of its own."""
    if not is_called(name):
        return False
    if original in CONTEXT_MANAGERS:
        return is_entered(name.parent, is_bare=original != "track")
    return original == "progress" or isinstance(name.parent.parent, ast.Expr)


def is_allowed_run(node) -> bool:
    """Handed on under its name, or one of its methods as a statement or a block without `as`."""
    match node.parent:
        case ast.Call() | ast.keyword():
            return True
        case ast.Tuple(parent=ast.Assign([ast.Tuple(targets)])) as values:
            return isinstance(target := targets[values.elts.index(node)], ast.Name) and target.id == "run"
        case ast.Attribute(attr=method) as attribute if method in METHODS and is_called(attribute):
            return isinstance(attribute.parent.parent, ast.Expr) or is_entered(attribute.parent, is_bare=True)
    return False


def test_stages_take_no_value_out_of_what_observes():
    own = PROJECT / OBSERVERS.replace(".", "/")
    paths = [path for path in PROJECT.glob("stages/**/*.py") if not path.is_relative_to(own)]
    found = {path.relative_to(PROJECT).as_posix(): misuses(path.read_text()) for path in paths}
    assert len(found) > 250 and {path: uses for path, uses in found.items() if uses} == {}


@pytest.mark.parametrize(
    "use",
    [
        "from stages.observe.tracking import tracking_uri\naddress = tracking_uri()",
        "from stages.observe.progress import say\nprint(say('x'))",
        "from stages.observe.progress import say\nspoken = say",
        "from stages.observe.tracking import latest_runs\nfor run in latest_runs(ledger): pass",
        "from stages.observe.tracking import LOG_NAME\npath = folder / LOG_NAME",
        "import stages.observe.tracking",
        "from stages import observe",
        "from stages.observe.tracking import track\nwith track(a) as run:\n    x = run.summary({})",
        "from stages.observe.tracking import track\nwith track(a) as run:\n    x = run.seconds",
        "from stages.observe.tracking import track\nwith track(a) as run:\n    with run.phase('x') as y: pass",
        "from stages.observe.tracking import track\nkept = track(a)",
        "from stages.observe.tracking import track\nrun = stack.enter_context(track(a))\nfolder = run.scratch",
        "from stages.observe.tracking import Run\ndef f(run: Run): return run",
        "def f(learner): return learner.run._seconds",
        "from stages.observe.quick_imports import quick_imports\nwith quick_imports() as x: pass",
    ],
)
def test_a_use_that_could_is_found(use):
    assert misuses(use)


def test_what_stages_call_there_returns_nothing():
    methods = {name for name in vars(tracking.Run) if not name.startswith("_")}
    assert methods == set(METHODS)
    for function in (*GIVE_NOTHING, *(getattr(tracking.Run, name) for name in METHODS), *BLOCKS):
        tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(inspect.unwrap(function))))
        given = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return | ast.Yield) and node.value]
        allowed = ("run", "Run(None)") if function is tracking.track else ()
        assert [ast.unparse(value) for value in given if ast.unparse(value) not in allowed] == [], function


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_yields_the_very_items_in_order(is_terminal, monkeypatch):
    stderr = io.StringIO()
    stderr.isatty = lambda: is_terminal
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    items = [object() for _ in range(3)]
    for iterable in (items, iter(items), (item for item in items)):
        assert all(one is other for one, other in zip(progress.progress(iterable), items, strict=True))
    assert list(progress.progress([])) == []
