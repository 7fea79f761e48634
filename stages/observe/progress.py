"""Progress of work that takes more than a few seconds: a bar on a terminal, regular lines in a log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from tqdm import tqdm

from stages.foundations.stage import about

Item = TypeVar("Item")

LINE_SECONDS = "RETRACE_PROGRESS_SECONDS"
"""Variable with the seconds between two lines. `make repro` sets it to 1 where it rewrites the line on a terminal."""
SECONDS_BETWEEN_LINES = float(os.environ.get(LINE_SECONDS) or 10.0)
SHOWN = {
    "reward/mean": "reward",
    "validation/reward": "reward",
    "accuracy/mean": "accuracy",
    "accuracy/validation": "accuracy",
    "loss/train": "loss",
    "loss/policy": "loss",
    "loss/validation": "validation loss",
}
"""Columns of curves that a progress line shows, and their names there."""


def progress(
    iterable: Iterable[Item],
    total: int | None = None,
    label: str = "",
    unit: str = "rows",
    done: int = 0,
    curve: Sequence[Mapping[str, float]] = (),
) -> Iterator[Item]:
    """Yields the items and shows how many are done, the time left, and the newest numbers of `curve`.

    total: including the `done` items of an earlier run, whose times do not count; `len(iterable)` if it is not given.
    curve: grows while the items are used, one row per step.
    """
    if total is None and hasattr(iterable, "__len__"):
        total = done + len(iterable)  # type: ignore[arg-type]
    if sys.stderr.isatty():
        bar = tqdm(iterable, total=total, initial=done, desc=label, unit=f" {unit}", dynamic_ncols=True)
        for item in bar:
            # Without `refresh` the bar is redrawn at its normal rate, and not at every item.
            bar.set_postfix_str(", ".join(_newest(curve)), refresh=False)
            yield item
        return
    # The first line comes after a whole interval: faster work needs none.
    started = shown = time.monotonic()
    for count, item in enumerate(iterable):
        now = time.monotonic()
        if now - shown >= SECONDS_BETWEEN_LINES:
            shown = now
            parts = [f"{label}: {done + count}{f' of {total}' if total else ''} {unit} in {now - started:.0f} s"]
            # The time left is unknown before one item is done.
            if total and count:
                parts.append(f"{_rounded((now - started) / count * max(0, total - done - count))} left")
            say(", ".join([*parts, *_newest(curve)]))
        yield item


def _rounded(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _newest(curve: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Returns `reward 0.74` for each shown column, from the newest row that has it: few rows are validated."""
    for column, name in SHOWN.items():
        value = next((row[column] for row in reversed(curve) if column in row), None)
        if value is not None:
            yield f"{name} {value:.3g}"


def say_warnings(stage: str, item: str, metrics: Mapping[str, float]) -> None:
    """Logs problems of a stage without an error, as its package derives them from its metrics (`About.warnings`)."""
    for line in about(stage).warnings(item, metrics):
        say(f"WARNING: {line}")


def say(line: str) -> None:
    """Prints one line for the user who watches the log; standard output stays free for data."""
    print(line, file=sys.stderr, flush=True)
