"""A clone of HEAD with its own `make ui`, and its processes: for random_kills.py and soak.py.

The clone uses the interpreter of the tool, so set-up is not repeated. Its state is in the clone, its ports are free
ones, and it inherits no variables of Retrace, Prefect, MLflow or DVC.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from pipelines.graph.graph import TOLD_REPRO
from pipelines.graph.recipes import recipe_text
from pipelines.runtime.process_group import end_groups, terminated_as_interrupt
from stages.foundations.dvc_lock import read_lock, recorded_outs
from stages.foundations.errors import UserError
from tests.fakes.miniature import LAPTOP, output_hashes, use_miniature
from tests.fakes.running_ui import RunningUi

PROJECT = Path(__file__).resolve().parents[1]
NOT_TAKEN_OVER = ("RETRACE_", "PREFECT_", "MLFLOW_", "DVC_", "PYTHONPATH", "VIRTUAL_ENV")
SECONDS_TO_START = 240.0
STARTS = 3
"""Times that `make ui` is tried before the tool gives up."""
IS_UP = "Ctrl-C ends both"
KINDS = {
    "pipelines.ui.prefect_server": "prefect",
    "pipelines.ui.deployments": "worker",
    "prefect.engine": "flow",
    "prefect.flow_engine": "flow",
    "stages": "stage",
}
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
UNREACHABLE = (urllib.error.URLError, ConnectionError, TimeoutError)


class GaveUp(Exception):
    """The clone's servers or flows could not be started; the message says what was observed last."""


def exit_code_of(tool: Callable[[], int]) -> int:
    """Returns the exit code of `tool`; 1 when it gives up, 2 for a mistake of the caller, 130 after Ctrl-C."""
    try:
        with terminated_as_interrupt():
            return tool()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (GaveUp, psutil.Error, KeyError) as error:
        print(f"FAILED: {error if isinstance(error, GaveUp) else repr(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: what was started is ended, what was seen is on record", file=sys.stderr)
        return 130


def say(line: str) -> None:
    """Prints a line of progress with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def make_work_folder(folder: Path) -> Path:
    """Makes the folder and returns its absolute path. UserError when it is not empty."""
    folder = folder.absolute()
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: name a new folder with --work, or delete this one")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def make_clone(folder: Path, recipe: str, commit: str = "HEAD") -> Path:
    """Clones this project to `folder`; returns it. The recipe's parameters are one more commit on top of `commit`.

    `miniature` is the graph of the recipe laptop with small numbers. UserError for an unknown recipe.
    """
    git(PROJECT, "-c", "advice.detachedHead=false", "clone", "--quiet", str(PROJECT), str(folder))
    git(folder, "checkout", "--quiet", "--detach", git(PROJECT, "rev-parse", commit))
    if recipe == "miniature":
        use_miniature(folder, "laptop", LAPTOP)
    else:
        (folder / "params.yaml").write_text(recipe_text(folder, recipe), encoding="utf-8")
    if git(folder, "status", "--porcelain"):
        who = ("-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost")
        git(folder, *who, "commit", "--quiet", "--all", "--message", f"Parameters: {recipe}")
    return folder


def git(folder: Path, *arguments: str) -> str:
    """Returns git's output. UserError with its message when it fails."""
    done = subprocess.run(["git", *arguments], cwd=folder, text=True, capture_output=True)
    if done.returncode:
        raise UserError(f"git {' '.join(arguments)} in {folder}: {done.stderr.strip()}")
    return done.stdout.strip()


def clone_environment() -> dict[str, str]:
    """Returns the environment of a command in the clone: this interpreter first, without this project's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_TAKEN_OVER)}
    return {**kept, "PATH": os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]])}


def reproduce_undisturbed(project: Path) -> None:
    """`make repro` in the clone, without servers. GaveUp with its last lines when it fails."""
    log = project / "state" / "undisturbed.log"
    log.parent.mkdir(exist_ok=True)
    with open(log, "w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipelines.commands.repro"],
            cwd=project,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=clone_environment(),
            start_new_session=True,
        )
        try:
            code = process.wait()
        finally:
            end_groups([process])
    if code:
        raise GaveUp(f"the undisturbed run failed (exit code {code}):\n{last_lines(log)}")


def recorded_outputs(lock: Path) -> dict[str, str]:
    """Returns every output's hash by path. UserError when the file is no dvc.lock."""
    try:
        return recorded_outs(read_lock(lock.read_bytes(), str(lock.parent)))
    except OSError as error:
        raise UserError(f"{lock} is no dvc.lock that can be read ({error!r})") from None


def different_outputs(project: Path, wanted: Mapping[str, str]) -> list[str]:
    """Returns a line for each output whose hash is not the wanted one, or that one side lacks."""
    if not (project / "dvc.lock").exists():
        return ["there is no dvc.lock"]
    found = output_hashes(project)
    return [
        f"{path}: {found.get(path, 'absent')}, wanted {wanted.get(path, 'absent')}"
        for path in sorted({*found, *wanted})
        if found.get(path) != wanted.get(path)
    ]


def last_lines(log: Path, count: int = 12) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:])


class CloneUi(RunningUi):
    """`make ui` of a clone. Its output goes to state/ui.log of the clone."""

    def __init__(self, project: Path) -> None:
        super().__init__(project / "state")
        self.project = project
        self.failures: list[str] = []
        """The output of starts that failed."""
        self.log_file = self.state / "ui.log"
        self.state.mkdir(exist_ok=True)

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Returns when the deployments can be started; GaveUp when that fails `STARTS` times."""
        for number in range(STARTS):
            if self._start_once():
                return
            self.failures.append(last_lines(self.log_file))
            say(f"make ui did not start (try {number + 1} of {STARTS}):\n{self.failures[-1]}")
            self.end_hard()
            time.sleep(3)
        raise GaveUp(f"make ui does not start:\n{last_lines(self.log_file)}")

    def _start_once(self) -> bool:
        ports = {"PREFECT_PORT": str(self.prefect), "MLFLOW_PORT": str(self.mlflow)}
        with open(self.log_file, "a") as log:
            before = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pipelines.ui.servers"],
                cwd=self.project,
                stdin=subprocess.DEVNULL,
                env={**clone_environment(), **ports, "PYTHONUNBUFFERED": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until = time.monotonic() + SECONDS_TO_START
        while self.is_alive and time.monotonic() < until:
            if IS_UP in self.log_file.read_bytes()[before:].decode(errors="replace"):
                return True
            time.sleep(0.5)
        return False

    def end(self) -> int:
        """Sends Ctrl-C, as a user would; returns the exit code. Kills it after a minute (-9)."""
        if self.is_alive:
            self.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(60)
        self.end_hard()
        return self.process.returncode if self.process else 0

    def end_hard(self) -> None:
        if self.process:
            end_groups([self.process])

    def printed_last(self) -> str:
        return last_lines(self.log_file)

    def state_type(self, flow_run: str) -> str:
        """Prefect's type of the run's state; "" while the server does not answer."""
        with suppress(*UNREACHABLE):
            return self.state_of(flow_run)["type"]
        return ""

    def all_runs(self, kind: str) -> list[dict[str, Any]]:
        """Returns every `flow_runs` or `task_runs` of the server's history."""
        found: list[dict[str, Any]] = []
        while page := self.ask(f"{kind}/filter", {"offset": len(found), "limit": 200, "sort": "ID_DESC"}):
            found += page
        return found


def working_processes(ui_pid: int) -> dict[str, psutil.Process]:
    """Returns the processes below `make ui` that do the work, by kind; supervisors and helpers are left out.

    Kinds: prefect, mlflow, worker, flow, dvc, stage. Of several of a kind the one nearest to `make ui`.
    """
    found: dict[str, psutil.Process] = {}
    pending = [ui_pid]
    below: dict[int, list[psutil.Process]] = {}
    with suppress(psutil.Error):
        for process in psutil.Process(ui_pid).children(recursive=True):
            with suppress(psutil.Error):
                below.setdefault(process.ppid(), []).append(process)
    while pending:
        for process in below.get(pending.pop(0), []):
            pending.append(process.pid)
            with suppress(psutil.Error):
                kind = kind_of(process.cmdline())
                if kind and process.status() != psutil.STATUS_ZOMBIE:
                    found.setdefault(kind, process)
    return found


def kind_of(command: list[str]) -> str:
    """Returns the kind of a command line, by its module; "" for other programs and supervisors."""
    # `dvc repro` of flows and of `make repro`.
    if command[1:2] == ["-P"] and Path(command[2]).name == TOLD_REPRO.name:
        return "dvc"
    if command[1:2] != ["-m"]:
        return ""
    module, rest = command[2], command[3:]
    if module == "mlflow":
        return module if "server" in rest else ""
    if module == "dvc":
        return "dvc" if "repro" in rest else ""
    return KINDS.get(module, "")


def stage_name(process: psutil.Process) -> str:
    """DVC's name of the stage that the process runs; "" when it has just ended."""
    with suppress(psutil.Error):
        return process.environ().get("DVC_STAGE", "")
    return ""


def processes_of(folder: Path) -> dict[int, str]:
    """Returns command lines, by id, of processes that work in `folder` or name it, without this one and its parents."""
    own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return {
        int(entry.name): told
        for entry in Path("/proc").iterdir()
        if entry.name.isdecimal() and int(entry.name) not in own and (told := _told(entry, os.fsencode(folder)))
    }


def _told(entry: Path, folder: bytes) -> str:
    """Returns the command line of a process that uses the folder; "" for another process, or one that has ended."""
    try:
        command, place = (entry / "cmdline").read_bytes(), os.fsencode(os.readlink(entry / "cwd"))
        is_there = place == folder or place.startswith(folder + b"/")
        if is_there or folder in command or folder in (entry / "environ").read_bytes():
            return command.replace(b"\0", b" ").decode(errors="replace").strip()[:200]
    except OSError:
        pass
    return ""
