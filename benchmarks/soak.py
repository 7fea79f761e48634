"""Many laptop runs in a row through one `make ui`: does anything grow that should not?

    python -m benchmarks.soak --work FOLDER [--runs 20] [--recipe laptop]

The servers are started once; then the deployment `reproduce` is started `--runs` times in a clone of HEAD. DVC skips
stages that have not changed. So `dvc.lock` and DVC's record of earlier runs are removed before each run: every stage
runs again, and must end with the same hashes. Measured after each run, when its processes have ended:
- memory (RSS, including helpers), open files and threads of the Prefect server, the MLflow server and the worker;
- the clone's processes;
- sizes of the databases and of the rest of state/;
- log lines with "database is locked", warnings or errors.

Growth is the slope of a line through the last two thirds of the runs, with its 95% interval (t). Memory, files,
threads, processes and locks FAIL when the interval is above zero and the slope would double the quantity within 200
runs. Databases, and state/ with its kept logs, grow by their history: this is reported as bytes per run and is not a
failure. Seconds and warnings are reported. FOLDER gets the clone and soak.json, rewritten after each run. Exit code 1
when a check fails, a run does not complete or its outputs differ; 2 for a wrong flag; Ctrl-C ends all started
processes.
"""

from __future__ import annotations

import argparse
import math
import re
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scipy.special import stdtrit

from benchmarks.laptop_clone import (
    ENDED,
    PROJECT,
    CloneUi,
    GaveUp,
    different_outputs,
    exit_code_of,
    git,
    make_clone,
    make_work_folder,
    processes_of,
    recorded_outputs,
    say,
    working_processes,
)
from stages.foundations.errors import UserError
from stages.foundations.files import write_json

SERVERS = ("prefect", "mlflow", "worker")
RUNS_TO_DOUBLE = 200
FEWEST_RUNS = 5
"""Below, the last two thirds have too few points for an interval."""
SECONDS_TO_SETTLE = 8.0
HOURS_A_RUN = 6.0
TOLD = ("seconds", "prefect RSS KiB", "mlflow RSS KiB", "worker RSS KiB", "processes", "locked")
LINES = {"locked": r"database is locked", "warnings": r"\bWARNING\b", "errors": r"\bERROR\b|^Traceback"}


@dataclass(frozen=True)
class Growth:
    """A quantity over the runs. `slope`, `low` and `high` are per run; `level` is the line's value at its first run."""

    name: str
    kind: str
    first: float
    last: float
    level: float
    slope: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Returns `FAILED` by the rule above, else `steady`; `history` and `told` for quantities without a rule."""
        if self.kind != "judged":
            return self.kind
        doubles = self.low > 0 and self.slope * RUNS_TO_DOUBLE >= self.level
        return "FAILED" if doubles else "steady"


def growth(name: str, values: Sequence[float]) -> Growth:
    """Fits a least-squares line through the last two thirds of `values`, one per run; the interval is Student's t."""
    tail = list(values[len(values) // 3 :])
    count, middle = len(tail), (len(tail) - 1) / 2
    mean = sum(tail) / count
    spread = sum((x - middle) ** 2 for x in range(count))
    slope = sum((x - middle) * y for x, y in enumerate(tail)) / spread
    level = mean - slope * middle
    squares = sum((y - level - slope * x) ** 2 for x, y in enumerate(tail))
    margin = stdtrit(count - 2, 0.975) * math.sqrt(squares / (count - 2) / spread)
    return Growth(name, kind_of_growth(name), values[0], values[-1], level, slope, slope - margin, slope + margin)


def kind_of_growth(name: str) -> str:
    if name.endswith((".db bytes", "state bytes")):
        return "history"
    return "told" if name in ("seconds", "warnings", "errors") else "judged"


def measure(ui: CloneUi) -> dict[str, float]:
    """Measures the servers' resources and the disk usage, while no flow runs."""
    found: dict[str, float] = {}
    alive = working_processes(ui.process.pid)
    for name in SERVERS:
        family = [alive[name], *alive[name].children(recursive=True)]
        found[f"{name} RSS KiB"] = sum(one.memory_info().rss for one in family) / 1024
        found[f"{name} open files"] = sum(one.num_fds() for one in family)
        found[f"{name} threads"] = sum(one.num_threads() for one in family)
    found["processes"] = len(processes_of(ui.project))
    databases = {"mlflow.db": ui.state / "mlflow.db", "prefect.db": ui.state / "prefect" / "prefect.db"}
    for name, path in databases.items():
        found[f"{name} bytes"] = sum(file.stat().st_size for file in path.parent.glob(f"{name}*"))
    found["rest of state bytes"] = _size(ui.state) - sum(found[f"{name} bytes"] for name in databases)
    return found


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # it has just gone
            total += path.lstat().st_size if path.is_file() else 0
    return total


def log_lines(ui: CloneUi) -> dict[str, int]:
    """Counts the lines so far in the servers' and the worker's logs, by content."""
    text = "\n".join(path.read_text(errors="replace") for path in sorted((ui.state / "logs").glob("*.log")))
    return {name: len(re.findall(pattern, text, re.MULTILINE)) for name, pattern in LINES.items()}


def forget_results(project: Path) -> None:
    """Makes DVC execute every stage again by removing dvc.lock and its record of earlier runs."""
    (project / "dvc.lock").unlink(missing_ok=True)
    shutil.rmtree(project / ".dvc" / "cache" / "runs", ignore_errors=True)


def run_once(ui: CloneUi) -> float:
    """Starts the deployment and waits; returns the seconds. GaveUp when the flow run does not complete."""
    started = time.monotonic()
    flow_run = ui.run("reproduce")
    while (state := ui.state_type(flow_run)) not in ENDED:
        if not ui.is_alive:
            raise GaveUp(f"make ui has ended:\n{ui.printed_last()}")
        if time.monotonic() - started > 3600 * HOURS_A_RUN:
            raise GaveUp(f"a flow run takes more than {HOURS_A_RUN:g} h")
        time.sleep(1)
    seconds = time.monotonic() - started
    if state != "COMPLETED":
        raise GaveUp(f"a flow run ended as {state}: {ui.log(flow_run)[-2000:]}")
    until = time.monotonic() + SECONDS_TO_SETTLE
    while time.monotonic() < until or "flow" in working_processes(ui.process.pid):
        time.sleep(0.5)
    return seconds


def soak(flags: argparse.Namespace, work: Path, content: dict[str, Any]) -> list[str]:
    """Runs and measures; returns faults of the outputs. `content` is filled and written after each run."""
    project = make_clone(work / "project", flags.recipe)
    ui, problems, wanted, before = CloneUi(project), [], {}, {}
    try:
        ui.start()
        for number in range(1, flags.runs + 1):
            forget_results(project)
            seconds = run_once(ui)
            wanted = wanted or recorded_outputs(project / "dvc.lock")
            different = different_outputs(project, wanted)
            problems += [f"run {number}: {line}" for line in different]
            lines = log_lines(ui)
            counted = {name: count - before.get(name, 0) for name, count in lines.items()}
            before = lines
            content["runs"].append(
                {
                    "seconds": round(seconds, 1),
                    **counted,
                    **measure(ui),
                    "outputs": len(wanted),
                    "different outputs": len(different),
                }
            )
            write_json(work / "soak.json", content)
            told = ", ".join(f"{name} {content['runs'][-1][name]:.0f}" for name in TOLD)
            say(f"run {number} of {flags.runs}: {told}; {len(wanted) - len(different)} of {len(wanted)} outputs equal")
    finally:
        code = ui.end()
    time.sleep(2)
    left = processes_of(project)
    problems += [f"process {pid} is left: {command}" for pid, command in left.items()]
    return problems + ([f"make ui ended with exit code {code}"] if code else [])


def findings(runs: Sequence[dict[str, float]]) -> list[Growth]:
    """Returns the growth of each quantity; empty for too few runs."""
    names = [name for name in runs[0] if "outputs" not in name] if len(runs) >= FEWEST_RUNS else []
    return [growth(name, [run[name] for run in runs]) for name in names]


def tell(found: Sequence[Growth], problems: Sequence[str], runs: int) -> None:
    print(f"| {'quantity':22} | {'run 1':>11} | {'last run':>11} | {'a run more, with 95% interval':>38} | verdict |")
    print("|---|---|---|---|---|")
    for one in found:
        slope = f"{one.slope:+.3f} ({one.low:+.3f} to {one.high:+.3f})"
        print(f"| {one.name:22} | {one.first:11.0f} | {one.last:11.0f} | {slope:>38} | {one.verdict:7} |")
    for line in problems:
        print(f"FAILED: {line}")
    if not found:
        print(f"{runs} runs are too few for a slope, growth is not judged: {FEWEST_RUNS} are needed")
        return
    failed = [one.name for one in found if one.verdict == "FAILED"]
    print(f"{runs} runs: " + (f"FAILED: growth of {', '.join(failed)}" if failed else "nothing judged grows"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a new folder: clone, records, logs")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--recipe", default="laptop", help="or miniature: the graph of laptop with small numbers")
    return exit_code_of(partial(_run, parser.parse_args()))


def _run(flags: argparse.Namespace) -> int:
    if flags.runs < 1:
        raise UserError("--runs is at least 1")
    work = make_work_folder(flags.work)
    about = {name: str(value) for name, value in vars(flags).items()}
    content: dict[str, Any] = {"about": {**about, "commit": git(PROJECT, "rev-parse", "HEAD")}, "runs": []}
    problems = soak(flags, work, content)
    found = findings(content["runs"])
    content |= {"growth": [{**asdict(one), "verdict": one.verdict} for one in found], "problems": problems}
    write_json(work / "soak.json", content)
    tell(found, problems, len(content["runs"]))
    return int(bool(problems) or any(one.verdict == "FAILED" for one in found))


if __name__ == "__main__":
    sys.exit(main())
