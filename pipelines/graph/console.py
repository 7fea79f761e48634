"""What `make repro` prints: a forecast, one line for each stage that ran, and the output of a stage that failed.

The console gets reports of what DVC does (`run_told_repro` in graph.py). Between a stage's reports stand its own lines.
The file state/repro.log keeps both.

The forecast is made from `dvc.lock` and small files in a few milliseconds, while DVC decides by itself. A stage that is
expected to run may be skipped: its input can come out unchanged, or DVC's run cache can have its outputs. A stage that
never ran here gets the time and size of a measured run, if the recipe's authors kept one:

    python -m pipelines.graph.console MACHINE     # keeps the run of this project as the figures of its recipe
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, TextIO

from pipelines.graph.graph import StageReport
from pipelines.graph.recipes import value_at
from pipelines.graph.result import changes_from_recipe, seconds_in_words
from stages.foundations.dvc_lock import CODE, LockedStage, lock_of
from stages.foundations.errors import UserError
from stages.foundations.files import dvc_md5, load_yaml, write_text_atomically
from stages.foundations.machine import PROJECT
from stages.foundations.stage import about
from stages.foundations.stage_graph import GraphStage, read_definitions, stages_of
from stages.observe.command import run_stage
from stages.observe.progress import say
from stages.observe.tracking import latest_runs, recipe_name

LOG = "state/repro.log"
NUMBERS = ("data/metrics/", "data/headline/")
SECONDS_BETWEEN_LINES, SECONDS_BETWEEN_REWRITES = 10.0, 0.2
"""Seconds between two status lines of a running stage: new lines in a log, one rewritten line on a terminal."""
LINES_IN_A_FAILURE = 200
MOST_WARNINGS = 5
"""Maximum number of different warnings shown for a stage; the log has all of them."""
_WARNING = re.compile(r"\b(\w*Warning|WARN(ING)?|\w*Error|ERROR|CRITICAL)\b|^(warning|error): ")
_PROGRESS = re.compile(r"[^:]*: \d+( of \d+)? [\w -]+ in \d+ s\b")
_SPENT = re.compile(r" in \d+ s(?=, [\d.]+ (s|min|h) left)")
"""Removed from a progress line with the time left, so that the line fits into 80 columns."""
_RESUMED = re.compile(r".*: resuming from step \d")
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b.|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Escape sequences and control characters, which a model's output may contain; not the tab."""


@dataclass
class _Running:
    """The stage that is running."""

    name: str
    started: float
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_IN_A_FAILURE))
    warnings: dict[str, int] = field(default_factory=dict)
    """Text -> number of its occurrences."""
    warning: str = ""
    """The last line, or lines, if it is a warning: indented lines after it belong to it."""
    is_resumed: bool = False
    """True if the stage resumed, so its time is not its whole time."""


class Console:
    """Gets the reports and the lines of `run_told_repro`. `close` must be called when the run has ended in any way."""

    def __init__(self, root: Path, out: TextIO, log: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._out, self._log, self._clock = root, out, log, clock
        self.rewrites = out.isatty() and os.environ.get("TERM") != "dumb"
        """True if the last line can be rewritten, as on a terminal."""
        self._stages = {stage.address: stage for stage in graph_stages(root)}
        self._quiet = {stage.address for stage in self._stages.values() if writes_code(stage)}
        """Stages without a line, because they take only a second."""
        # All names are known before the first line, so the column width needs no second pass.
        self._width = max(map(len, self._stages), default=0)
        self._outcomes, self._seconds = dict[str, str](), dict[str, float]()
        self._stage: _Running | None = None
        self._has_forecast = self._has_failed = False
        self._printed, self._rewritten, self._status = clock(), clock(), ""
        for line in recipe_lines(root):
            self._print(line)

    def hear(self, line: str) -> None:
        """Takes a line of the stage that runs, or DVC's warning before it."""
        self._log.write(line + "\n")
        line = _CONTROLS.sub("", line)
        if self._stage:
            self._take(self._stage, line)
        # DVC repeats a failure that its report has shown.
        elif line.strip() and not self._has_failed:
            self._print(line)

    def tell(self, report: StageReport) -> None:
        """Takes a report. Those of stages outside of dvc.yaml (`dvc add`) are only kept in the log."""
        self._log.write(f"{report.stage}: {report.what} {report.reason}".rstrip() + "\n")
        name = report.stage
        if name not in self._stages:
            return
        if report.what == "begins" and name not in self._quiet:
            self._show_forecast()
        if report.what == "begins" or self._stage is None:
            self._outcomes[name], self._stage = "", _Running(name, self._clock())
        match report.what:
            case "pulls":
                self._print(f"{self._place()} {name}  pulls its files from the remote")
            case "runs":
                self._stage.started = self._clock()
                self._show_status("runs")
            case "failed":
                self._fail(self._stage, report)
            case "unchanged" | "restored" | "ran":
                self._outcomes[name] = report.what
                self._end_stage(self._stage)

    def end(self) -> None:
        """Shows the totals of a run that ended well."""
        count = Counter(self._outcomes.values())
        ran, restored = count["ran"], count["restored"]
        parts = [f"{ran} {'stage' if ran == 1 else 'stages'} ran"] if ran else []
        parts += [f"{restored} restored from DVC's run cache"] if restored else []
        rest = len(self._stages) - ran - restored
        parts += [f"{rest} up to date"] if parts and rest else []
        self._print(", ".join(parts) if parts else f"everything is up to date: {len(self._stages)} stages")

    def close(self) -> None:
        """Clears the rewritten line, and stores the times of the stages that ran."""
        self._clear_status()
        if self._seconds:
            remember_seconds(self._root, self._seconds)

    def _take(self, stage: _Running, line: str) -> None:
        stage.lines.append(line)
        stage.is_resumed |= _RESUMED.match(line) is not None
        if _WARNING.search(line):
            stage.warning = line
            stage.warnings[line] = stage.warnings.get(line, 0) + 1
        # Python's warnings and Retrace's continue in indented lines, which may contain the remedy.
        elif line.startswith(" ") and stage.warning:
            count, stage.warning = stage.warnings.pop(stage.warning), f"{stage.warning}\n{line}"
            stage.warnings[stage.warning] = stage.warnings.get(stage.warning, 0) + count
        else:
            stage.warning = ""
            if line.strip():
                self._show_status(line)

    def _end_stage(self, stage: _Running) -> None:
        self._stage = None
        if self._outcomes[stage.name] == "ran" and stage.name not in self._quiet:
            seconds = self._clock() - stage.started
            # Otherwise the next forecast would take the rest of a stage for the whole stage.
            if not stage.is_resumed:
                self._seconds[stage.name] = seconds
            name = f"{self._place()} {stage.name:<{self._width}}"
            headline = ", ".join(_headline(self._root, self._stages[stage.name]))
            self._print(f"{name}  {seconds_in_words(seconds):>11}  {headline}".rstrip())
        for text, count in list(stage.warnings.items())[:MOST_WARNINGS]:
            self._print(text + (f" ({count} times)" if count > 1 else ""))
        if len(stage.warnings) > MOST_WARNINGS:
            self._print(f"{len(stage.warnings) - MOST_WARNINGS} more warnings: {LOG}")

    def _fail(self, stage: _Running, report: StageReport) -> None:
        self._clear_status()
        self._stage, self._has_failed, code = None, True, report.code
        seconds = seconds_in_words(self._clock() - stage.started)
        how = report.reason if code is None else f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
        say(f"{self._place()} {stage.name}  failed after {seconds}, {how}")
        for line in stage.lines:
            # Progress lines would move the error away from the end, which people read.
            if not _PROGRESS.match(line):
                say(line)
        say(f"The whole output is in {LOG}.")

    def _place(self) -> str:
        """Returns the position of the running stage in the graph, such as `[ 7/24]`."""
        total = len(self._stages)
        return f"[{len(self._outcomes):>{len(str(total))}}/{total}]"

    def _show_forecast(self) -> None:
        if not self._has_forecast:
            # Only after the stage `code` has ended: the forecast compares the fingerprints that it writes.
            self._has_forecast = True
            for line in forecast_lines(make_forecast(self._root), self._root):
                self._print(line)

    def _show_status(self, line: str) -> None:
        """Shows the newest line of the running stage, if the last status is old enough."""
        stage, now = self._stage, self._clock()
        if stage is None or stage.name in self._quiet:
            return
        # A stage's lines begin with its name, which the status already contains.
        names = {stage.name, *stage.name.split("@")}
        label, _, rest = line.partition(": ")
        text = f"{self._place()} {stage.name}  {_SPENT.sub('', rest if label in names else line)}"
        if self.rewrites and (now - self._rewritten >= SECONDS_BETWEEN_REWRITES or not self._status):
            self._rewritten = now
            # One column less: on some terminals a full line begins a new one.
            self._status = text.expandtabs()[: shutil.get_terminal_size().columns - 1]
            self._out.write(f"\r{self._status}\x1b[K")
            self._out.flush()
        elif not self.rewrites and now - self._printed >= SECONDS_BETWEEN_LINES:
            self._print(text)

    def _clear_status(self) -> None:
        if self._status:
            self._status = ""
            self._out.write("\r\x1b[K")
            self._out.flush()

    def _print(self, line: str) -> None:
        self._clear_status()
        print(line, file=self._out, flush=True)
        self._printed = self._clock()


def _headline(root: Path, stage: GraphStage) -> Iterator[str]:
    """Yields the number that sums up the stage, for several benchmarks one each; nothing if it is absent."""
    key, form = about(stage.name).headline or ("", "")
    for path in (root / out for out in stage.outs if key and out.startswith(NUMBERS)):
        for file in sorted(path.glob("*.json")) if path.is_dir() else [path] if path.exists() else []:
            value = json.loads(file.read_bytes()).get(key)
            if value is not None:
                yield form.format(value) + (f" on {file.stem}" if path.is_dir() else "")


MOST_CHANGES = 4
"""Maximum number of changes to the recipe that are shown, each with both values."""
TIMES = "state/stage_seconds.json"
"""Recipe -> stage -> seconds of its last run, including DVC's work on its files."""
MEASURED = "pipelines/recipes/measured.json"
"""Recipe -> `machine` in words, and `stages`: name -> `seconds` and `bytes` of outputs, of one whole run."""


@dataclass(frozen=True)
class Forecast:
    """The stages of the graph that are expected to run, in the order of dvc.yaml."""

    stages: int
    """Number of all stages of the graph."""
    running: tuple[str, ...]
    seconds: float
    """Sum over the running stages whose time is known."""
    without_time: tuple[str, ...]
    bytes: int
    """Bytes of the outputs that the running stages wrote the last time."""
    without_size: tuple[str, ...]
    measured_on: str = ""
    """The machine of the recipe's measured run, if `seconds` uses its times."""


def recipe_lines(root: Path) -> list[str]:
    """Returns lines with the recipe in use, its purpose, and the changes in params.yaml."""
    recipe = _recipe(root)
    purpose = f": {text}" if (text := _purpose(root / "pipelines" / "recipes" / f"{recipe}.yaml")) else ""
    changes = [f"{key} {change}" for key, change in changes_from_recipe(root).items()]
    more = [f"{len(changes) - MOST_CHANGES} more"] if len(changes) > MOST_CHANGES else []
    changed = [f"changed {', '.join([*changes[:MOST_CHANGES], *more])}"] if changes else []
    return [f"recipe  {recipe or 'params.yaml, made from no recipe'}{purpose}", *changed]


def _purpose(recipe: Path) -> str:
    """Returns the first sentence, after the name, of the comment at the start of a recipe."""
    lines = recipe.read_text(encoding="utf-8").split("\n") if recipe.is_file() else []
    comment = " ".join(line[1:].strip() for line in takewhile(lambda line: line.startswith("#"), lines))
    found = re.match(r'Recipe "[^"]+": (.+?)[.:](?= |$)', comment)
    return found[1] if found else ""


def forecast_lines(forecast: Forecast, root: Path) -> list[str]:
    """Returns lines with stages, time and disk; none if no stage is expected to run."""
    if not forecast.running:
        return []
    kinds = Counter(name.partition("@")[0] for name in forecast.running)
    named = ", ".join(f"{kind} ({count})" if count > 1 else kind for kind, count in kinds.items())
    free = f"{_size(shutil.disk_usage(root).free)} free"
    seconds = f"about {seconds_in_words(forecast.seconds)}"
    seconds += f", measured on {forecast.measured_on}" if forecast.measured_on else ""
    return [
        f"stages  up to {len(forecast.running)} of {forecast.stages}: {named}",
        f"time    {_known(forecast, forecast.without_time, seconds)}",
        f"disk    {_known(forecast, forecast.without_size, f'about {_size(forecast.bytes)} of results')}, {free}",
    ]


def make_forecast(root: Path) -> Forecast:
    """Returns a project's forecast. A stage runs if its parameters, code, paths or inputs differ from dvc.lock."""
    stages = graph_stages(root)
    lock = lock_of(root)
    params, waiting = _read(root / "params.yaml"), [stage for stage in stages if not writes_code(stage)]
    running: dict[str, GraphStage] = {}
    # A stage that runs may change the inputs of others, so this repeats until no stage is added.
    while True:
        written = [out for stage in running.values() for out in stage.outs]
        more = {
            stage.address: stage
            for stage in waiting
            if stage.address not in running
            and (_reads(stage, written) or _has_changed(root, stage, lock.get(stage.address), params))
        }
        if not more:
            break
        running |= more
    recipe = _recipe(root)
    measured = _read(root / MEASURED).get(recipe, {})
    of_run = measured.get("stages", {})
    names = tuple(stage.address for stage in waiting if stage.address in running)
    known_here, times = _known_here(root, recipe), known_seconds(root, recipe)
    sizes = {name: _written_bytes(lock[name]) if name in lock else of_run.get(name, {}).get("bytes") for name in names}
    return Forecast(
        len(stages),
        names,
        sum(times.get(name, 0.0) for name in names),
        tuple(name for name in names if name not in times),
        sum(size or 0 for size in sizes.values()),
        tuple(name for name, size in sizes.items() if size is None),
        measured["machine"] if any(name in of_run and name not in known_here for name in names) else "",
    )


def writes_code(stage: GraphStage) -> bool:
    """Returns True for the stage that writes the fingerprints. It ends before a forecast is made from them."""
    return any(f"{out}/" == CODE for out in stage.outs)


def graph_stages(root: Path) -> list[GraphStage]:
    """Returns the stages of the parameters in use; none if there is no dvc.yaml."""
    return stages_of(read_definitions(root / "dvc.yaml"), _read(root / "params.yaml"))


def remember_seconds(root: Path, seconds: Mapping[str, float]) -> None:
    """Stores the times of stages of the recipe in use, for the next forecast."""
    known = _read(root / TIMES)
    known[_recipe(root)] = known.get(_recipe(root), {}) | {name: round(one, 1) for name, one in seconds.items()}
    write_text_atomically(root / TIMES, json.dumps(known, indent=1) + "\n")


def known_seconds(root: Path, recipe: str) -> dict[str, float]:
    """Returns seconds by stage of the recipe: of its runs on this machine, otherwise of its measured run."""
    of_run = _read(root / MEASURED).get(recipe, {}).get("stages", {})
    return {name: one["seconds"] for name, one in of_run.items()} | _known_here(root, recipe)


def _known_here(root: Path, recipe: str) -> dict[str, float]:
    """Returns seconds by stage of the recipe: from earlier runs of the graph here, otherwise from the ledger."""
    # The ledger has only the time of a stage. `TIMES` includes DVC's hashing, so it takes precedence.
    ledger = {
        line["name"]: float(line["seconds"])
        for line in latest_runs(root / "state" / "ledger.jsonl")
        if line.get("recipe", recipe).removesuffix("+changes") == recipe
    }
    return ledger | _read(root / TIMES).get(recipe, {})


def _recipe(root: Path) -> str:
    return recipe_name(root).removesuffix("+changes")


def _read(path: Path) -> dict[str, Any]:
    """Returns a YAML or JSON file's content; empty if it is missing."""
    return (load_yaml(path.read_bytes()) or {}) if path.exists() else {}


def _reads(stage: GraphStage, written: Iterable[str]) -> bool:
    """Returns True if the stage depends on one of these outputs, or on a folder that contains one."""
    return any(out == dep or out.startswith(f"{dep}/") for out in written for dep in stage.deps)


def _has_changed(root: Path, stage: GraphStage, entry: LockedStage | None, params: Mapping[str, Any]) -> bool:
    # A path that was added or removed in dvc.yaml makes DVC run the stage.
    if entry is None or entry.deps.keys() | entry.outs.keys() != {*stage.deps, *stage.outs}:
        return True
    if any(value_at(params, key.split(".")) != value for key, value in entry.params.items()):
        return True
    return any(_differs(root / path, path, entry) for path in (*entry.deps, *entry.outs))


def _differs(file: Path, path: str, entry: LockedStage) -> bool:
    if not file.exists():
        return True
    if path.startswith(CODE):
        return dvc_md5(file) != entry.deps.get(path, entry.outs.get(path))
    # Sizes of data and weights, not hashes: DVC hashes them next, and a forecast must not take as long again.
    return file.is_file() and file.stat().st_size != entry.sizes[path]


def _written_bytes(entry: LockedStage) -> int:
    return sum(entry.sizes[path] for path in entry.outs)


def _known(forecast: Forecast, unknown: tuple[str, ...], known: str) -> str:
    """Returns `known`, and for how many of the running stages the value is unknown."""
    if not unknown:
        return known
    if len(unknown) == len(forecast.running):
        return "not known before the first run"
    return f"{known}, not known yet for {', '.join(unknown) if len(unknown) < 4 else f'{len(unknown)} stages'}"


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB" if count < 10 else f"{count:.0f} GB"


def keep_as_measured(root: Path, machine: str) -> Path:
    """Makes the finished run of a project the measured one of its recipe, and returns the file with its figures.

    Raises UserError if params.yaml changes the recipe, or if the time of a stage of dvc.lock is unknown.
    """
    recipe, lock = _recipe(root), lock_of(root)
    if not recipe or (changes := changes_from_recipe(root)):
        raise UserError(
            f"params.yaml differs from its recipe ({', '.join(changes) or 'no name'}): run `make repro` with a recipe"
        )
    seconds = _known_here(root, recipe)
    names = [stage.address for stage in graph_stages(root) if not writes_code(stage)]
    # Users would see a partly known run as the time of the whole recipe.
    if missing := [name for name in names if name not in lock or name not in seconds]:
        raise UserError(f"no time is known for {', '.join(missing)}: let `make repro` run them here")
    measured = _read(root / MEASURED)
    measured[recipe] = {
        "machine": machine,
        "stages": {name: {"seconds": seconds[name], "bytes": _written_bytes(lock[name])} for name in names},
    }
    write_text_atomically(root / MEASURED, json.dumps(measured, indent=1, sort_keys=True) + "\n")
    return root / MEASURED


if __name__ == "__main__":
    run_stage(lambda: say(str(keep_as_measured(PROJECT, " ".join(sys.argv[1:]) or "an unnamed machine"))))
