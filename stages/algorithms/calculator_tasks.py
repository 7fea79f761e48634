"""The task family "calculator": a + b*c, too hard for the head of a small policy. A calculator does one operation.

    473+28*36           the problem
    ?28*36              a turn of the policy: it calls the calculator
    1008                the calculator's observation
    ?473+1008
    1481
    !1481               the last turn: the answer

So a response with the right calls has three turns. The calculator is busy now and then, its observation is `b`, and the
policy must call again. Pure functions of their arguments and a `random.Random`; equal seeds give equal problems.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

HELD_OUT_SHARE = 10
"""One in this many problems is held out; the order of the two factors does not matter."""
MOST_ROWS = 100_000
"""A seventh of the held-out problems, so that new ones are found quickly."""
CALL, ANSWER = "?", "!"
"""First characters of a turn, as `prompt.environment.calls` of the recipe has them."""
BUSY, REFUSED = "b", "e"
"""Observations of a busy calculator, and of a turn that is not one operation of two whole numbers."""
MOST_RETRIES = 3
"""More busy calls in a row would exceed the turns of an episode."""


@dataclass(frozen=True)
class CalculatorProblem:
    """`term` plus `left` times `right`."""

    term: int
    left: int
    right: int

    @property
    def problem(self) -> str:
        """`473+28*36`"""
        return f"{self.term}+{self.left}*{self.right}"

    @property
    def answer(self) -> str:
        """The value, as text."""
        return str(self.term + self.left * self.right)

    @property
    def is_held_out(self) -> bool:
        """Decided by a hash that ignores the order of the factors: no problem is on both sides of the split."""
        key = f"{self.term}+{min(self.left, self.right)}*{max(self.left, self.right)}"
        return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % HELD_OUT_SHARE == 0


def generate_problems(seed: int, rows: int, is_held_out: bool) -> list[CalculatorProblem]:
    """Draws `rows` different problems of one side of the split: a sum of three digits, two factors of two digits."""
    rng, problems = random.Random(seed), {}
    while len(problems) < rows:
        drawn = CalculatorProblem(rng.randint(100, 999), rng.randint(12, 99), rng.randint(12, 99))
        if drawn.is_held_out == is_held_out:
            problems.setdefault(drawn.problem, drawn)
    return list(problems.values())


def write_demonstration(
    problem: CalculatorProblem, rng: random.Random, called: float, miscalled: float, busy: float
) -> list[dict[str, str]]:
    """Returns turns {role, content} of a conversation that ends with the right answer.

    A share `called` makes both calls, and a share `miscalled` begins with a turn that the calculator rejects. All
    others write the answer at once. A share `busy` of the calls meets a busy calculator and is repeated.
    """
    turns = [{"role": "user", "content": problem.problem}]
    product = problem.left * problem.right

    def take(turn: str, observation: str) -> None:
        turns.append({"role": "assistant", "content": turn})
        turns.append({"role": "tool", "content": observation})

    def call(operation: str, result: int) -> None:
        for _ in range(MOST_RETRIES):
            if rng.random() >= busy:
                break
            take(CALL + operation, BUSY)
        take(CALL + operation, str(result))

    kind = rng.random()
    if kind < called:
        call(f"{problem.left}*{problem.right}", product)
        call(f"{problem.term}+{product}", problem.term + product)
    elif kind < called + miscalled:
        take(rng.choice(_refused_calls(problem)), REFUSED)
        # Half of the authors call well then, and add in their heads; the others give up.
        if rng.random() < 0.5:
            call(f"{problem.left}*{problem.right}", product)
    turns.append({"role": "assistant", "content": ANSWER + problem.answer})
    return turns


def _refused_calls(problem: CalculatorProblem) -> list[str]:
    product = f"{problem.left}*{problem.right}"
    return [CALL + problem.problem, f"{CALL}{problem.left}{problem.right}*", product, f"{CALL}{product}=", CALL]
