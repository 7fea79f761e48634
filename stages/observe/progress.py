"""Progress of anything that takes more than a few seconds: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from tqdm import tqdm

from stages.foundations.about import about

Item = TypeVar("Item")

SECONDS_BETWEEN_LINES = 10.0


def progress(
    iterable: Iterable[Item], total: int | None = None, label: str = "", unit: str = "rows"
) -> Iterator[Item]:
    """Yields the items; `total` is taken from `len(iterable)` when it has one."""
    if total is None and hasattr(iterable, "__len__"):
        total = len(iterable)  # type: ignore[arg-type]
    if sys.stderr.isatty():
        yield from tqdm(iterable, total=total, desc=label, unit=f" {unit}", dynamic_ncols=True)
        return
    started = said = time.monotonic()
    for count, item in enumerate(iterable):
        now = time.monotonic()
        if now - said >= SECONDS_BETWEEN_LINES:
            said = now
            say(f"{label}: {count}{f' of {total}' if total else ''} {unit} in {now - started:.0f} s")
        yield item


def say_warnings(stage: str, item: str, metrics: Mapping[str, float]) -> None:
    """What went wrong in a stage without an error, as its package says of its metrics (`About.warnings`)."""
    for line in about(stage).warnings(item, metrics):
        say(f"WARNING: {line}")


def say(line: str) -> None:
    """One line for the person who watches the log; standard output stays free for data."""
    print(line, file=sys.stderr, flush=True)
