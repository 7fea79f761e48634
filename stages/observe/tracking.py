"""Each stage run as an MLflow run: live curves, parameters, dataset inputs with DVC's hashes, tags.

    with track(attempt_at("sft", params.model_dump(), {"train": path}, seed=seed)) as run:
        for step in range(steps):
            with run.phase("update"):
                ...
            run.log({"loss/train": loss}, step)
        run.summary(metrics)

The stage only appends JSON lines to a log in the attempt's scratch folder (about 30 microseconds per call):

    {"kind": "start", "ms": 1795597252116, "name": "sft", "params": {}, "inputs": {}, "tags": {}}  one of each attempt
    {"kind": "tags", "tags": {"git.commit": "..."}}                                                 from the uploader
    {"kind": "values", "ms": 1795597253000, "step": 1, "values": {"loss/train": 0.5}}
    {"kind": "end", "ms": 1795597254000, "status": "FINISHED"}                                      none after a kill

A second process, stages/observe/mlflow_uploader.py, follows the log and sends it to MLflow. So importing MLflow (4 s of
CPU time), its database and a slow or dead server cost the stage nothing. The log of a finished run moves to
`state/runs/<start in ms>-<first 16 digits of the stage hash>.jsonl.gz`, about 2 KB for each 100 points. That of another
one stays for the next attempt. `retrace mirror` sends what MLflow lacks of either.

The address is `$MLFLOW_TRACKING_URI`, else the SQLite database `state/mlflow.db`. It is not in the log, because it may
contain a password. `RETRACE_TRACKING=off` writes nothing at all (tests); ranks other than 0 of a distributed stage
write nothing.

A finished run is also a line of `state/ledger.jsonl` with its times. Times differ between equal runs, so they are
not a DVC output; the report, which is one, loads the latest of each stage from `reports/timings.js`.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from stages.foundations.errors import without_password
from stages.foundations.files import sha256_of, write_bytes_atomically, write_text_atomically
from stages.foundations.job import Attempt
from stages.foundations.machine import PROJECT, state_folder
from stages.observe.progress import say

# Importing MLflow and a new database take seconds, and many more on a machine with too much to do.
DELIVERY_ENDS_SECONDS = 180.0
LOG_NAME = "tracking.jsonl"
LOCK_NAME = "tracking.lock"
"""In the log's folder: held by the process that sends the log."""
TOTAL_SECONDS = "time/total_seconds"
"""Final numbers that `track` logs of an attempt that was not killed, from a clock that cannot be set."""
MOST_METRICS = 30
NOT_ABOUT_LEARNING = ("time", "tokens", "groups", "rollouts", "sync", "progress")
"""Metrics by the first part of their names: speed and amounts. MLflow shows them on a separate tab."""
# `loss/train_last` sums up the curve `loss/train`.
_OF_CURVE = re.compile(r"(_(first|last|best|mean|max|min))+$")
DELIVERY_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # the delivery process has its own retries
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class Run:
    """Records what a stage does. No method returns a value, so nothing from here can reach an output."""

    def __init__(self, log: Any | None) -> None:
        self._log = log
        self._seconds: dict[str, float] = {}
        self._nan_steps = 0
        self._curves: set[str] = set()

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Points of curves. NaN and infinite values are left out and counted in `nan_steps`."""
        finite = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        if len(finite) < len(values):
            self._nan_steps += 1
            finite["nan_steps"] = self._nan_steps
        self._curves |= finite.keys()
        self._append({"kind": "values", "ms": _now_ms(), "step": step, "values": finite})

    def summary(self, values: Mapping[str, float]) -> None:
        """The final numbers for comparison; `final_numbers` selects them. The metrics file has all."""
        self.log(final_numbers(values, self._curves), 0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the block's wall time to phase `name`; the sums go to MLflow and to the ledger at the end."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started

    def _append(self, message: Mapping[str, Any]) -> None:
        if self._log is not None:
            self._log.write(json.dumps(message).encode() + b"\n")


def final_numbers(values: Mapping[str, float], curves: Collection[str]) -> dict[str, float]:
    """Returns the final numbers of a stage that MLflow shows beside `curves`, so that a run has about 30 metrics at
    most.

    A number that a curve ends with, or that summarises a curve (`loss/train_last`), is left out. If more remain, those
    with the longest names are dropped, which are variants of others: `avg_at_8_high`.
    """
    single = [name for name in values if name not in curves and _OF_CURVE.sub("", name) not in curves]
    single.sort(key=lambda name: (len(name.rpartition("/")[2]), name))
    # Curves under `system/` do not count: MLflow shows them on another tab.
    room = MOST_METRICS - sum(shown_name(name) == name for name in curves)
    return {name: values[name] for name in single[: max(0, room)]}


def shown_name(name: str) -> str:
    """A metric's name in MLflow: `system/time/step_seconds` for metrics outside learning, which MLflow folds."""
    return f"system/{name}" if name.partition("/")[0] in NOT_ABOUT_LEARNING else name


def metric_name(text: str) -> str:
    """Replaces each character that MLflow rejects in a metric's name by `_`, and cuts the name to 250 characters."""
    return re.sub(r"[^\w\-. /]", "_", text)[:250]


@contextmanager
def track(attempt: Attempt) -> Iterator[Run]:
    """Opens the run of an attempt and closes it as FINISHED, FAILED (an exception) or KILLED (an interrupt).

    An attempt at the same work as an unfinished one continues that attempt's MLflow run; one that runs beside
    an equal one gets a separate run. Without MLflow the stage does its work, and a warning says how to send the log.
    """
    if os.environ.get("RETRACE_TRACKING") == "off" or os.environ.get("RANK", "0") != "0":
        yield Run(None)
        return
    names = {"stage": attempt.stage, "policy": attempt.policy, "round": attempt.round}
    address = os.environ.get("DVC_STAGE", "")
    name = address or "@".join(filter(None, [attempt.stage, attempt.policy or attempt.round]))
    key = _key_on_record(address)
    start = {
        "kind": "start",
        "ms": _now_ms(),
        "name": name,
        "params": dict(attempt.params),
        "inputs": {key: {"path": str(path), "digest": attempt.digests[key]} for key, path in attempt.inputs.items()},
        "tags": {**_tags({**names, "seed": attempt.seed, "lock_hash": key}), "stage_hash": attempt.stage_hash},
    }
    folder, log = _open_log(attempt.scratch)
    with log:
        log.write(b"\n")  # the previous attempt may have been killed in the middle of a line
        run = Run(log)
        # Once through JSON, because parameters may contain paths and enumerations, which become text.
        run._append(json.loads(json.dumps(start, default=str)))
        uploader = _start_uploader(folder)
        # Two clocks: setting one during the run changes no duration.
        started, since, status = time.time(), time.perf_counter(), "FAILED"
        try:
            yield run
            status = "FINISHED"
        except (KeyboardInterrupt, SystemExit):
            status = "KILLED"
            raise
        finally:
            seconds = time.perf_counter() - since
            times = {f"time/{phase}_seconds": spent for phase, spent in run._seconds.items()}
            run.log({**times, TOTAL_SECONDS: seconds}, 0)
            # The measured seconds, and not the clock: one that was set during the run changes no duration.
            run._append({"kind": "end", "ms": start["ms"] + round(1000 * seconds), "status": status})
            mlflow_ids = _end_delivery(uploader)
            with suppress(OSError):  # a full disk: the next attempt or `retrace mirror` puts it away
                keep_if_finished(folder / LOG_NAME)
    # No later attempt would look into a folder with the number of this process.
    if folder != attempt.scratch and not (folder / LOG_NAME).exists():
        shutil.rmtree(folder)
    if status == "FINISHED":
        times = {"started": started, "seconds": seconds, "phases": run._seconds}
        recipe = start["tags"].get("recipe", "")
        hashes = {"stage_hash": attempt.stage_hash, "lock_hash": key or ""}
        add_to_ledger({"name": name, **names, "recipe": recipe, **hashes, **mlflow_ids, **times})


def _key_on_record(address: str) -> str | None:
    """Returns the key by which `dvc.lock` will know this run; None where no DVC runs the stage."""
    if not address:
        return None
    from stages.observe.unchanged import key_on_record  # only a stage needs it, and has it loaded

    return key_on_record(address) or None


def tracking_uri() -> str:
    """Returns `$MLFLOW_TRACKING_URI`, else the project's SQLite database (absolute, for any working folder)."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{state_folder() / 'mlflow.db'}"


def recipe_name(root: Path) -> str:
    """The recipe last taken into use, with `+changes` when `params.yaml` has been edited since; "" if unknown."""
    chosen, params = root / "state" / "recipe", root / "params.yaml"
    if chosen.exists():
        name, _, resolved = chosen.read_text().strip().partition("\n")
    else:  # a fresh clone
        name, recipe = "laptop", root / "pipelines" / "recipes" / "laptop.yaml"
        resolved = sha256_of(recipe) if recipe.exists() else ""
    if not params.exists() or not (chosen.exists() or resolved):
        return ""
    return name if resolved == sha256_of(params) else f"{name}+changes"


def _tags(identity: Mapping[str, Any]) -> dict[str, str]:
    tags = {name: str(value) for name, value in identity.items() if value is not None}
    tags["ablation"] = os.environ.get("RETRACE_ABLATION", "none")
    tags["variant"] = os.environ.get("RETRACE_VARIANT", "")
    tags["recipe"] = recipe_name(state_folder().parent)
    tags["dvc.stage"] = os.environ.get("DVC_STAGE", "")
    tags["dvc.exp"] = os.environ.get("DVC_EXP_NAME", "")
    return {name: value for name, value in tags.items() if value}


def _open_log(folder: Path) -> tuple[Path, BinaryIO]:
    """Returns the log in `folder`, or, while an equal attempt writes that one, in a new folder beside it; and which.

    Two attempts that wrote one log would end each other's run.
    """
    folder.mkdir(exist_ok=True)
    # Unbuffered: logged lines are in the file when the stage is killed.
    log = open(folder / LOG_NAME, "ab", buffering=0)  # noqa: SIM115 - `track` closes it
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.close()
        return _open_log(folder.with_name(f"{folder.name}-{os.getpid()}"))
    # The stage may have been killed after its `end`: this attempt is another run.
    keep_if_finished(folder / LOG_NAME)
    if not os.fstat(log.fileno()).st_nlink:  # put away, just now or by an attempt that held the lock
        log.close()
        return _open_log(folder)
    return folder, log


def _start_uploader(scratch: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "stages.observe.mlflow_uploader", str(scratch)]
    paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    # The user's variables take precedence.
    environment = {**DELIVERY_SETTINGS, **os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)


def _end_delivery(uploader: subprocess.Popen[str]) -> dict[str, str]:
    """Waits until the log is delivered or delivery fails; returns MLflow's run_id and experiment_id ("" if unknown)."""
    try:
        printed, _ = uploader.communicate(timeout=DELIVERY_ENDS_SECONDS)
        # The report is the last line: libraries may print others before it.
        report = json.loads((printed.splitlines() or ['{"error": "the uploader died"}'])[-1])
    except subprocess.TimeoutExpired:  # it goes on without the stage: killed, it could leave half a database
        report = {"error": f"it has taken longer than {DELIVERY_ENDS_SECONDS:.0f} s"}
    if report.get("error"):
        say(
            f"WARNING: not everything reached MLflow at {without_password(tracking_uri())}: {report['error']}\n"
            "         The stage's outputs and its log are complete. Send the rest later with: retrace mirror"
        )
    return {name: report.get(name, "") for name in ("run_id", "experiment_id")}


def end_of(messages: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the `end` of a log's last attempt; where it wrote none, KILLED at the time of its last message."""
    last = max((place for place, message in enumerate(messages) if message["kind"] == "start"), default=0)
    times = [message.get("ms", 0) for message in messages[last:]]
    killed = {"kind": "end", "ms": max(times, default=0), "status": "KILLED"}
    return next((message for message in messages[last:] if message["kind"] == "end"), killed)


def keep_if_finished(log: Path) -> bool:
    """Moves the log of a finished run to `state/runs/`; False for another one, which the next attempt continues."""
    content = log.read_bytes()
    messages = list(json_lines(content.splitlines()))
    if end_of(messages)["status"] != "FINISHED":
        return False
    start = next(message for message in messages if message["kind"] == "start")
    # The log is in state/scratch/<attempt>/.
    place = log.parents[2] / "runs" / f"{start['ms']}-{start['tags']['stage_hash'][:16]}.jsonl.gz"
    # `mtime`: gzip would write the time, and a log that is kept twice must have equal bytes.
    write_bytes_atomically(place, gzip.compress(content, mtime=0))
    log.unlink()
    return True


def kept_logs(state: Path) -> list[Path]:
    """Returns the kept logs, oldest first; files with other names come last."""

    def place_in_time(path: Path) -> tuple[bool, int, str]:
        start = path.name.partition("-")[0]
        return not start.isdecimal(), int(start) if start.isdecimal() else 0, path.name

    return sorted((state / "runs").glob("*.jsonl.gz"), key=place_in_time)


def read_log(log: Path) -> list[dict[str, Any]]:
    """Returns the messages of a log, kept or not, without truncated lines. OSError, EOFError or zlib.error for a
    broken gzip file."""
    content = log.read_bytes()
    return list(json_lines((gzip.decompress(content) if log.suffix == ".gz" else content).splitlines()))


def _now_ms() -> int:
    return int(time.time() * 1000)


def add_to_ledger(entry: Mapping[str, Any]) -> None:
    """Appends a finished run (`started` in seconds since 1970) and rewrites `reports/timings.js`.

    Safe beside other processes that do the same.
    """
    state = state_folder()
    state.mkdir(parents=True, exist_ok=True)
    line = {**entry, "started": datetime.fromtimestamp(entry["started"], UTC).isoformat(timespec="seconds")}
    line["seconds"] = round(entry["seconds"], 3)
    line["phases"] = {name: round(seconds, 3) for name, seconds in entry["phases"].items()}
    with open(state / "ledger.jsonl", "a+", encoding="utf-8") as ledger:
        fcntl.flock(ledger, fcntl.LOCK_EX)
        ledger.write(json.dumps(line) + "\n")
        ledger.flush()
        write_timings(state.parent / "reports" / "timings.js", latest_runs(state / "ledger.jsonl"))


def read_ledger(ledger: Path) -> list[dict[str, Any]]:
    """All finished runs on record, oldest first."""
    lines = json_lines(ledger.read_bytes().splitlines()) if ledger.exists() else ()
    return [line for line in lines if {"name", "started", "seconds"} <= line.keys()]


def latest_runs(ledger: Path) -> list[dict[str, Any]]:
    """The last finished run of each stage name, in the order of their starts."""
    latest = {line["name"]: line for line in read_ledger(ledger)}
    return sorted(latest.values(), key=lambda line: line["started"])


def json_lines(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yields the objects of a log with one in each line. A line that a kill or a full disk truncated is left out."""
    for line in lines:
        try:
            content = json.loads(line)
        except ValueError:
            continue
        if isinstance(content, dict):
            yield content


def write_timings(path: Path, runs: list[dict[str, Any]]) -> None:
    """Writes `window.RETRACE_TIMINGS = [...]`, which a page opened from the disk may load as a script."""
    write_text_atomically(path, f"window.RETRACE_TIMINGS = {json.dumps(runs, indent=1)};\n")
