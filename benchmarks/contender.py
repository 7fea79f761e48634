"""One contender of a benchmark in a separate process: it does a turn on request and reports its cost.

Contenders run one at a time; between its turns a process sleeps on a pipe, so thread pools and memory are separate.
Parent and contender exchange lines of JSON: the number of a turn, and the measurements. The contender's standard output
is redirected to its log, because libraries print there.

Command (started by `benchmarks.rl_step`): python -m benchmarks.contender NAME SETTINGS_AS_JSON
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stages.foundations.tables import PROBLEM
from stages.observe.command import run_stage

CONTENDERS = {
    "ours": "benchmarks.our_step:play",
    "ours_recompute": "benchmarks.our_step:play_recompute",
    "trl": "benchmarks.trl_step:play",
    "torch_sampler": "benchmarks.samplers:play_torch",
    "generate": "benchmarks.samplers:play_generate",
    "vllm": "benchmarks.samplers:play_vllm",
}


def installed(names: Sequence[str]) -> dict[str, str]:
    """Returns the versions of those packages that this machine has."""
    found = {}
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


@dataclass(frozen=True)
class Settings:
    params: str
    """Parameter file; the contenders read the sections prompt, rl, sampler, trainer and verifier."""
    policy: str
    problems: str
    prompts: int
    """Prompts of one turn; each gets `rl.group_size` responses."""
    turns: int
    """Turns in all, the warm-up first; each turn has different prompts, the same for every contender."""
    threads: int
    seed: int
    trl_rows: int
    """Sequences in one forward and backward pass of TRL."""
    device: str = "cpu"

    def as_json(self) -> str:
        return json.dumps(asdict(self))


class Channel:
    """The contender's end of the pipe to the parent."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._started = (0.0, 0.0)

    def wait(self) -> int | None:
        """Starts the clock and returns the number of the next turn; None when there is none."""
        line = sys.stdin.readline()
        self._started = (time.perf_counter(), time.process_time())
        return json.loads(line) if line.strip() else None

    def answer(self, **measured: Any) -> None:
        """Stops the clock and reports `measured` with seconds, CPU seconds and peak memory."""
        seconds, cpu_seconds = time.perf_counter() - self._started[0], time.process_time() - self._started[1]
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        self.say(seconds=seconds, cpu_seconds=cpu_seconds, peak_gib=memory, **measured)

    def say(self, **values: Any) -> None:
        """Sends one line to the parent; the first one, before any turn, says that the contender is ready."""
        print(json.dumps(values), file=self._answers, flush=True)

    def play(self, turn: Callable[[int], dict[str, Any]], restore: Callable[[], None]) -> None:
        """Does turns until there are no more; `restore` undoes what a turn changed, off the clock."""
        self.say(ready=True)
        while (number := self.wait()) is not None:
            self.answer(**turn(number))
            restore()


def main() -> None:
    name, settings = sys.argv[1], Settings(**json.loads(sys.argv[2]))
    channel = Channel()
    import torch

    torch.set_num_threads(settings.threads)
    module, function = CONTENDERS[name].split(":")
    getattr(importlib.import_module(module), function)(settings, channel)


def read_problems(settings: Settings) -> list[dict[str, Any]]:
    """Returns rows of the problem table for all turns, in turn order; a short table is repeated."""
    from stages.foundations.seeds import endless_order
    from stages.foundations.tables import read_table, require_rows

    path = Path(settings.problems)
    rows = require_rows(read_table(path, PROBLEM), path, "run `make repro`").to_dict("records")
    order = endless_order(0, settings.turns * settings.prompts, len(rows), settings.seed, "benchmark")
    return [rows[index] for index in order]


def of_turn(rows: list[Any], turn: int, settings: Settings) -> list[Any]:
    return rows[turn * settings.prompts : (turn + 1) * settings.prompts]


if __name__ == "__main__":
    run_stage(main)
