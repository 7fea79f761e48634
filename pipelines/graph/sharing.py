"""DVC remotes: results that another clone has computed are pulled, and results computed here are pushed.

Nothing happens without a default remote (`dvc remote add --default NAME URL`). An unreachable remote is only a
warning: everything can be computed again, and results that could not be pushed stay in DVC's cache for the next time.

    python -m pipelines.graph.sharing pull | push | check [PROJECT]

Plain `dvc repro --pull --allow-missing` is not enough, and neither is plain `dvc push --run-cache`:
1. The first skips unchanged stages without their data. A stage that depends on a folder then finds it half empty and
   takes it for the whole. So all files in such folders are pulled first, and the outputs of the last stages. Weights
   and rollouts are not pulled until a changed stage needs them.
2. The run cache restores a stage in a clone without `dvc.lock`, including metric files. Those are no cached outputs of
   the workspace, so `dvc push` skips them, and every stage with metrics would run again. They are pushed here.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.graph.recipes import stages_left_out
from pipelines.runtime.process_group import FellSilent, run_in_group
from stages.foundations.errors import UserError, without_password
from stages.observe.progress import say

SECONDS_TO_ANSWER = 30.0
"""A remote without an answer for this long is unreachable."""
SECONDS_OF_SILENCE = 600.0
"""A transfer without progress for this long has lost its remote. The retries of the storage libraries themselves end
earlier (HTTP: five of a minute each); SSH waits for ever for a machine that has gone away."""
SECONDS_BETWEEN_PULSES = 1.0
PULSE = "(at work)"
"""Printed while a transfer makes progress: DVC itself prints nothing without a terminal."""
BYTES_THAT_MOVED, CPU_SECONDS_THAT_WORKED = 2**16, 0.1
"""More bytes than mere waiting takes in `SECONDS_OF_SILENCE`."""
UNREACHABLE, SILENT = 3, 4
LINES_IN_A_WARNING = 4
PULLING = ("--pull", "--allow-missing")


@dataclass(frozen=True)
class RemoteName:
    """A remote of DVC's configuration."""

    name: str
    url: str

    def __str__(self) -> str:
        return f"remote {self.name} ({self.url})"


def default_remote(root: Path) -> RemoteName | None:
    """Returns DVC's default remote; None when there is none. Passwords in its address are left out.

    UserError when DVC's configuration cannot be read.
    """
    if not (root / ".dvc").is_dir():
        return None
    from dvc.config import Config, ConfigError

    try:
        config = Config(str(root / ".dvc"))
    except ConfigError as error:
        raise UserError(f"DVC's configuration is not usable ({error}): correct .dvc/config") from None
    # Only the default remote: DVC uses no other unless a user names one.
    name = config["core"].get("remote")
    if not name:
        return None
    return RemoteName(name, without_password(str(config["remote"].get(name, {}).get("url", ""))))


def pull_before_run(root: Path, tell: Callable[[str], None] = say) -> tuple[str, ...]:
    """Pulls the files that folders need; returns flags that make `dvc repro` pull the rest, none without a remote."""
    remote = default_remote(root)
    if remote is None:
        return ()
    tell(f"{remote}: pulling what is missing here")
    code, last = _run(root, "pull")
    if code in (UNREACHABLE, SILENT):
        what = "cannot be reached" if code == UNREACHABLE else "has fallen silent"
        tell(f"warning: the {remote} {what}, so nothing more is pulled in this run: {last}")
        return ()
    if code:
        # Without --allow-missing: a stage whose data exist nowhere must run, or folders would stay half empty.
        tell(f"what is missing on the remote {remote.name} is computed: {last}")
        return PULLING[:1]
    return PULLING


def push_after_run(root: Path, tell: Callable[[str], None] = say) -> bool:
    """Pushes the present results to the default remote. Returns False, with a warning, when that failed."""
    try:
        remote = default_remote(root)
    except UserError as error:
        # The results exist here and are complete, so this is not a failure of the run.
        tell(f"warning: the results were not pushed: {error}")
        return False
    if remote is None:
        return True
    tell(f"{remote}: pushing what is new")
    code, last = _run(root, "push")
    safe = "They are safe here; `dvc push` or the next run tries again."
    tell(f"warning: the results could not be pushed to the {remote}: {last}\n{safe}" if code else f"{remote}: {last}")
    return not code


def remote_fault(root: Path) -> str:
    """Returns why the default remote cannot be reached; empty when it can."""
    code, last = _run(root, "check")
    return last if code else ""


def _run(root: Path, action: str) -> tuple[int, str]:
    """Returns exit code and last lines of this module in a new process: storage libraries print, hang and crash."""
    last: deque[str] = deque(maxlen=LINES_IN_A_WARNING)
    command = [sys.executable, "-m", "pipelines.graph.sharing", action, str(root)]

    def hear(line: str) -> None:
        if line.strip() not in ("", PULSE):
            last.append(line)

    try:
        code = run_in_group(command, root, hear, silent_seconds=SECONDS_OF_SILENCE)
    except FellSilent:
        return SILENT, " ".join([f"no data moved for {SECONDS_OF_SILENCE / 60:.0f} minutes", *last])
    return code, " ".join(last)


def _tell_pulses() -> None:
    """Prints `PULSE` regularly while bytes are read or written, or the processor works."""

    def moved() -> int:
        try:
            lines = Path("/proc/self/io").read_text().split()
        except OSError:
            # Not Linux: only processor time counts.
            return 0
        # rchar and wchar: on one side of a transfer there is a local file.
        return int(lines[1]) + int(lines[3])

    bytes_then, cpu_then = moved(), time.process_time()
    while True:
        time.sleep(SECONDS_BETWEEN_PULSES)
        bytes_now, cpu_now = moved(), time.process_time()
        if bytes_now - bytes_then > BYTES_THAT_MOVED or cpu_now - cpu_then > CPU_SECONDS_THAT_WORKED:
            bytes_then, cpu_then = bytes_now, cpu_now
            print(PULSE, flush=True)


def pull(repo: Any) -> str:
    """Pulls missing files of folders that stages depend on, and the outputs of the last stages. Raises DVC's errors."""
    wanted = [os.path.relpath(out.fs_path, repo.root_dir) for out in _wanted(repo)]
    if wanted:
        repo.pull(targets=wanted)
    return f"{len(wanted)} outputs pulled"


def _wanted(repo: Any) -> Iterator[Any]:
    gone = stages_left_out(Path(repo.root_dir))
    stages = [stage for stage in repo.index.stages if getattr(stage, "name", None) not in gone]
    outs = {out.fs_path for stage in stages for out in stage.outs}
    deps = [dep for stage in stages for dep in stage.deps if dep.protocol == "local"]
    folders = {dep.fs_path for dep in deps if dep.fs_path not in outs}
    # Edges point from a stage to its dependencies.
    # No stage depends on these: a user may want to see their outputs.
    last = {stage for stage, dependents in repo.index.graph.subgraph(stages).in_degree() if dependents == 0}
    for stage in stages:
        for out in stage.outs:
            is_needed = stage in last or any(out.fs_path.startswith(folder + os.sep) for folder in folders)
            if is_needed and out.use_cache and out.hash_info and not out.exists:
                yield out


def push(repo: Any) -> str:
    """Pushes the outputs of `dvc.lock`, the new entries of the run cache, and the metric files that it restores."""
    pushed = repo.push() + _push_run_cache(repo)
    metrics = {
        out.hash_info
        for out in repo.index.outs
        if not out.use_cache and out.hash_info and repo.cache.local.exists(out.hash_info.value)
    }
    result = repo.cloud.push(metrics)
    if result.failed:
        raise OSError(f"{len(result.failed)} metric files could not be pushed")
    return f"{pushed + len(result.transferred)} files pushed"


def _push_run_cache(repo: Any) -> int:
    """As `dvc push --run-cache`, which copies all entries every time."""
    from dvc.stage.cache import RunCacheNotSupported

    place = repo.cloud.get_remote_odb(None, "push --run-cache", hash_name="md5-dos2unix")
    try:
        return len(repo.stage_cache.transfer(repo.cache.legacy, place, force=False))
    except RunCacheNotSupported:
        # DVC supports no run cache over HTTP.
        return 0


def check(repo: Any) -> str:
    """Raises the error of the remote's file system when it cannot be read. An empty place is fine."""
    remote = repo.cloud.get_remote()
    if remote.fs.protocol not in ("http", "https"):
        remote.fs.exists(remote.path)
        return "reachable"
    # fsspec 2026.6: `exists` is False also for a server that is gone. `info` keeps the cause.
    try:
        remote.fs.fs.info(remote.path)
    except FileNotFoundError as error:
        cause = error.__cause__
        status = getattr(cause, "status", None)
        # A server that answers 404 or 403 exists: an empty place is fine, and listing a folder may be forbidden.
        if cause is not None and (status is None or status == 401 or status >= 500):
            raise cause from None
    return "reachable"


def _fault(repo: Any) -> str:
    """Returns why the remote does not answer; empty when it does. Uses a thread, since some libraries wait for ever."""
    answers: list[str] = []

    def ask() -> None:
        try:
            check(repo)
            answers.append("")
        except Exception as error:
            # Storage libraries raise errors of any class, and this thread has to answer.
            answers.append(_reason(error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS_TO_ANSWER)
    return answers[0] if answers else f"no answer in {SECONDS_TO_ANSWER:.0f} s"


def _reason(error: Exception) -> str:
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {cause}"


def main(argv: list[str]) -> int:
    """Returns 0 done, 1 failed, 2 an unknown action, 3 an unreachable remote; the reason is the last line."""
    threading.Thread(target=_tell_pulses, name="pulses", daemon=True).start()
    from dvc.repo import Repo

    logging.getLogger("dvc").setLevel(logging.ERROR)
    action, *rest = argv or [""]
    if action not in ("pull", "push", "check"):
        print(f"unknown action {action!r}: pull, push or check", flush=True)
        return 2
    code, said = 0, ""
    try:
        with Repo(rest[0] if rest else ".") as repo:
            said = _fault(repo)
            code = UNREACHABLE if said else 0
            if not code and action != "check":
                said = {"pull": pull, "push": push}[action](repo)
    except Exception as error:
        # As above.
        code, said = 1, _reason(error)
    print(said, flush=True)
    return code


if __name__ == "__main__":
    result = main(sys.argv[1:])
    # A thread that waits for a silent remote must not hold the process.
    os._exit(result)
