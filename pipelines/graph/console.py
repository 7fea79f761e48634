"""What `make repro` prints: a forecast, one line for each stage that ran, and the output of a stage that failed.

The console reads the output of `dvc repro` line by line. A stage begins with DVC's "Running stage" and ends with DVC's
next message; the lines between are the stage's. All lines are kept in state/repro.log.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from pipelines.graph.forecast import (
    forecast_lines,
    graph_stages,
    make_forecast,
    recipe_lines,
    remember_seconds,
    writes_code,
)
from pipelines.graph.result import seconds_in_words
from stages.foundations.stage import about
from stages.foundations.stage_graph import GraphStage
from stages.observe.progress import say

LOG = "state/repro.log"
NUMBERS = ("data/metrics/", "data/headline/")
SECONDS_BETWEEN_LINES, SECONDS_BETWEEN_REWRITES = 10.0, 0.2
"""Between two signs of life of a running stage: new lines in a log, one line that is rewritten on a terminal."""
LINES_IN_A_FAILURE = 200
MOST_WARNINGS = 5
"""Different ones shown for a stage; the log has all."""

_RUNNING = re.compile(r"Running stage '([^']+)':$")
_RESTORED = re.compile(r"Stage '([^']+)' is cached - skipping run")
_SKIPPED = re.compile(r"(?:Stage )?'([^']+)' didn't change, skipping$")
_FAILED = re.compile(r"ERROR: failed to reproduce '([^']+)': failed to run: .*exited with (-?\d+)$")
_AFTER_A_STAGE = re.compile(
    r"Updating lock file '|Generating lock file '|To track the changes with git, run:|Use `dvc push` to send"
)
_OF_NO_INTEREST = re.compile(
    r"\s*$|Data and pipelines are up to date|\tgit add |To enable auto staging, run:|\tdvc config core.autostage "
)
_WARNING = re.compile(r"\b(\w*Warning|WARN(ING)?|\w*Error|ERROR|CRITICAL)\b|^(warning|error): ")
_PROGRESS = re.compile(r"[^:]*: \d+( of \d+)? [\w -]+ in \d+ s\b")
_SPENT = re.compile(r" in \d+ s(?=, [\d.]+ (s|min|h) left)")
"""Left out of a progress line that says the time left: it fits into 80 columns then."""
_RESUMED = re.compile(r".*: going on from step \d")
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b.|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Escape sequences and control characters, which a model's output may have; not the tab."""


@dataclass
class _Running:
    """The stage that runs now."""

    name: str
    started: float
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_IN_A_FAILURE))
    warnings: dict[str, int] = field(default_factory=dict)
    """Text -> how many times it came."""
    warning: str = ""
    """The last line, or lines, where that is a warning: indented lines after it belong to it."""
    is_resumed: bool = False
    """Then it does not take its whole time."""


class Console:
    """Called with each line of `dvc repro`. `close` when the run has ended in whatever way."""

    def __init__(
        self, root: Path, out: TextIO, log: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._root, self._out, self._log, self._clock = root, out, log, clock
        self.rewrites = out.isatty() and os.environ.get("TERM") != "dumb"
        """Whether the last line may be written anew, as on a terminal."""
        self._stages = {stage.address: stage for stage in graph_stages(root)}
        self._quiet = {stage.address for stage in self._stages.values() if writes_code(stage)}
        """Its second is not worth a line."""
        self._width = max(map(len, self._stages), default=0)
        self._seen, self._restored, self._ran, self._seconds = 0, 0, 0, dict[str, float]()
        self._stage: _Running | None = None
        self._exit_code: int | None = None
        self._has_forecast = False
        self._printed, self._rewritten, self._status = clock(), clock(), ""
        for line in recipe_lines(root):
            self._print(line)

    def __call__(self, line: str) -> None:
        self._log.write(line + "\n")
        line = _CONTROLS.sub("", line)
        found = _RUNNING.match(line) or _RESTORED.match(line) or _SKIPPED.match(line)
        if found and found[1] in self._stages:
            self._end_stage()
            self._seen += 1
            if found[1] not in self._quiet:
                self._show_forecast()
            if found.re is _RUNNING:
                self._stage = _Running(found[1], self._clock())
                self._show_status("runs")
            self._restored += found.re is _RESTORED
        elif failed := _FAILED.match(line):
            self._exit_code = int(failed[2])
        elif _AFTER_A_STAGE.match(line):
            self._end_stage()
        elif self._stage:
            self._take(self._stage, line)
        elif not _OF_NO_INTEREST.match(line) and not _SKIPPED.match(line):
            self._print(line)

    def end(self, code: int) -> int:
        """Shows the sums of a run that ended with DVC's exit code, or the end of what the failed stage said.

        Returns the code of the failed stage where DVC names one, else DVC's.
        """
        if code:
            return self._fail(code)
        self._end_stage()
        ran, restored = self._ran, self._restored
        parts = [f"{ran} {'stage' if ran == 1 else 'stages'} ran"] if ran else []
        parts += [f"{restored} restored from DVC's run cache"] if restored else []
        rest = len(self._stages) - ran - restored
        parts += [f"{rest} up to date"] if parts and rest else []
        self._print(", ".join(parts) if parts else f"everything is up to date: {len(self._stages)} stages")
        return 0

    def close(self) -> None:
        """Leaves nothing on the line that was rewritten, and remembers the times of the stages that ran."""
        self._clear_status()
        if self._seconds:
            remember_seconds(self._root, self._seconds)

    def _take(self, stage: _Running, line: str) -> None:
        if line.startswith("> ") and not stage.lines:  # DVC's line with the command
            return
        stage.lines.append(line)
        stage.is_resumed |= _RESUMED.match(line) is not None
        if _WARNING.search(line):
            stage.warning = line
            stage.warnings[line] = stage.warnings.get(line, 0) + 1
        # Python's warnings and ours go on in indented lines: without them the remedy would be lost.
        elif line.startswith(" ") and stage.warning:
            count, stage.warning = stage.warnings.pop(stage.warning), f"{stage.warning}\n{line}"
            stage.warnings[stage.warning] = stage.warnings.get(stage.warning, 0) + count
        else:
            stage.warning = ""
            if line.strip():
                self._show_status(line)

    def _end_stage(self) -> None:
        stage, self._stage = self._stage, None
        if stage is None:
            return
        seconds = self._clock() - stage.started
        self._ran += 1
        if stage.name not in self._quiet:
            if not stage.is_resumed:  # else the next forecast would promise the rest of a stage as its whole
                self._seconds[stage.name] = seconds
            name = f"{self._place()} {stage.name:<{self._width}}"
            headline = ", ".join(_headline(self._root, self._stages[stage.name]))
            self._print(f"{name}  {seconds_in_words(seconds):>11}  {headline}".rstrip())
        for text, count in list(stage.warnings.items())[:MOST_WARNINGS]:
            self._print(text + (f" ({count} times)" if count > 1 else ""))
        if len(stage.warnings) > MOST_WARNINGS:
            self._print(f"{len(stage.warnings) - MOST_WARNINGS} more warnings: {LOG}")

    def _fail(self, code: int) -> int:
        self._clear_status()
        if self._stage is None:
            return code
        name, lines = self._stage.name, self._stage.lines
        ended = self._exit_code if self._exit_code is not None else code
        seconds = seconds_in_words(self._clock() - self._stage.started)
        how = f"exit code {ended}" if ended >= 0 else f"killed by signal {-ended}"
        say(f"{self._place()} {name}  failed after {seconds}, {how}")
        for line in lines:
            if not _PROGRESS.match(line):
                say(line)
        say(f"The whole output is in {LOG}.")
        return ended if ended > 0 else code

    def _place(self) -> str:
        """Of the running stage in the graph, `[ 7/24]`."""
        total = len(self._stages)
        return f"[{self._seen:>{len(str(total))}}/{total}]"

    def _show_forecast(self) -> None:
        if not self._has_forecast:
            self._has_forecast = True
            for line in forecast_lines(make_forecast(self._root), self._root):
                self._print(line)

    def _show_status(self, line: str) -> None:
        """The newest line of the running stage, where it is time for one."""
        stage, now = self._stage, self._clock()
        if stage is None or stage.name in self._quiet:
            return
        own = {stage.name, *stage.name.split("@")}
        label, _, rest = line.partition(": ")
        text = f"{self._place()} {stage.name}  {_SPENT.sub('', rest if label in own else line)}"
        if self.rewrites and (now - self._rewritten >= SECONDS_BETWEEN_REWRITES or not self._status):
            self._rewritten = now
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
    """The number that sums up the stage, for each benchmark where it has several; nothing where it is absent."""
    key, form = about(stage.name).headline or ("", "")
    for path in (root / out for out in stage.outs if key and out.startswith(NUMBERS)):
        for file in sorted(path.glob("*.json")) if path.is_dir() else [path] if path.exists() else []:
            value = json.loads(file.read_bytes()).get(key)
            if value is not None:
                yield form.format(value) + (f" on {file.stem}" if path.is_dir() else "")
