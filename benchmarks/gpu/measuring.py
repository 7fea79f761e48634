"""Common parts of measurements: a row of a table, timing on a device, and the process of one measurement.

Command (started by `benchmarks.gpu`): python -m benchmarks.gpu.measuring NAME cpu|cuda full|miniature FILE
"""

from __future__ import annotations

import importlib
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from stages.foundations.machine import PROJECT


@dataclass(frozen=True)
class Row:
    """One figure. `values` are those of the repeats; the figure is their median."""

    what: str
    values: Sequence[float]
    unit: str
    least: float | None = None
    """The figure must reach this,"""
    most: float | None = None
    """or stay below this; None when nothing is asked."""
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def is_met(self) -> bool | None:
        """Returns whether the figure meets its target; None without a target."""
        if self.least is None and self.most is None:
            return None
        return (self.least is None or self.median >= self.least) and (self.most is None or self.median <= self.most)


@dataclass(frozen=True)
class Bench:
    """The device of a measurement, and whether it uses small sizes for a CPU."""

    device: torch.device
    is_miniature: bool

    @property
    def repeats(self) -> int:
        return 2 if self.is_miniature else 5

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.device.type == "cpu" else torch.bfloat16

    def seconds(self, work: Callable[[], object], warm_ups: int = 2) -> list[float]:
        """Returns the seconds of each repeat, by CUDA's events on a GPU."""
        for _ in range(1 if self.is_miniature else warm_ups):
            work()
        return [self._once(work) for _ in range(self.repeats)]

    def _once(self, work: Callable[[], object]) -> float:
        if self.device.type == "cpu":
            started = time.perf_counter()
            work()
            return time.perf_counter() - started
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        work()
        last.record()
        torch.cuda.synchronize()
        return first.elapsed_time(last) / 1000

    def wall_seconds(self, work: Callable[[], object]) -> float:
        """Returns the wall-clock seconds of work in which the host takes part."""
        self.wait()
        started = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - started

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def peak_gib(self) -> float:
        """Returns torch's peak memory on the device since the last `forget_peak`; 0 on a CPU."""
        return torch.cuda.max_memory_allocated() / 2**30 if self.device.type == "cuda" else 0.0

    def forget_peak(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()


def passing_tests(bench: Bench, files: Sequence[str], least: int) -> list[Row]:
    """Runs the tests marked `gpu` of some files: none may fail, and at least `least` must run."""
    if bench.is_miniature:
        command = ["--collect-only", "-q"]
    else:
        command = ["-q", "--timeout", "120", "-p", "no:cacheprovider"]
    run = [sys.executable, "-m", "pytest", "-m", "gpu", "-n0", *command, *files]
    done = subprocess.run(run, cwd=PROJECT, capture_output=True, text=True)
    print(done.stdout[-20_000:])
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)}
    if bench.is_miniature:
        counts["passed"] = int((re.search(r"(\d+)/\d+ tests collected", done.stdout) or [0, 0])[1])
    note = ", ".join(f"{number} {word}" for word, number in counts.items())
    passed = 0 if counts.get("failed") or counts.get("error") else counts.get("passed", 0)
    return [Row("tests marked gpu that pass", [passed], "", least=least, note=note)]


def main() -> None:
    name, device, size, file = sys.argv[1:]
    module, function = name.split(":")
    bench = Bench(torch.device(device), size == "miniature")
    rows = getattr(importlib.import_module(f"benchmarks.gpu.{module}"), function)(bench)
    Path(file).write_text(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
