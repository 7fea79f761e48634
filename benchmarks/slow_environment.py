"""The slow environment of benchmarks/slow_tools.py: its workers import this module, and no torch with it."""

from __future__ import annotations

import math
import random
import statistics
import time
from typing import Any

from stages.engines.environments import worker
from stages.engines.environments.protocol import Done, Observation
from stages.foundations.seeds import derive_seed

MEDIAN, P99 = 0.05, 1.0
"""Seconds of a tool."""
Z99 = statistics.NormalDist().inv_cdf(0.99)


def seconds_of_tool(seed: int, turn: int) -> float:
    """Returns the seconds of the tool that answers a turn, counted from 1."""
    return MEDIAN * math.exp(math.log(P99 / MEDIAN) / Z99 * random.Random(f"{seed} {turn}").gauss(0, 1))


class Tool:
    """The environment of one episode: answers two turns of three, and ends the episode after the others."""

    def __init__(self, seed: int, is_slow: bool) -> None:
        self.seed, self.is_slow, self.turns = seed, is_slow, 0

    def reset(self) -> None:
        return None

    def step(self, turn: str) -> Observation | Done:
        self.turns += 1
        if self.is_slow:
            time.sleep(seconds_of_tool(self.seed, self.turns))
        number = derive_seed(self.seed, self.turns)
        return Done() if number % 3 == 0 else Observation(str(number % 1000), calls=1)


def answer(**request: Any) -> dict[str, Any]:
    """Runs in the workers in place of `answer_turns`: no kind of environment in a recipe sleeps."""
    worker.make_environment = lambda _, problem, seed: Tool(seed, problem["is_slow"])
    return worker.answer_turns(**request)
