"""The laptop task family: chains of small sums as expressions, word problems and comparisons, with worked steps.

Source: the measured laptop recipe (2-4 operations, operands 1-9, every intermediate value 0-20). It is hard enough that
a 0.67M-parameter policy trained on noisy solutions starts at a third, and easy enough that RL can improve it.
Pure functions of their arguments and a `random.Random`; equal seeds give equal problems.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

NAMES = ("Tom", "Ann", "Ben", "Eva", "Sam", "Lily", "Max", "Zoe")
ITEMS = ("apples", "books", "coins", "cards", "pens", "shells")
GAINS = ("buys {} more", "finds {} more")
LOSSES = ("loses {}", "gives away {}")
STEP = re.compile(r"(\d+)([+-])(\d+)=(\d+)")
# How often a rambling solution works the steps again.
REPEATS_OF_RAMBLING = (1, 2, 4)
# The default of `value_max`: a slip looks like any other value of a problem.
LARGEST_SLIP = 20
# After this many draws in a row without a new problem, almost no new problems are left.
LONGEST_RUN_OF_DUPLICATES = 20_000
LAPTOP_WEIGHTS = {"chain": 2.0, "word": 1.0, "comparison": 1.0}


class Kind(StrEnum):
    """How a chain of sums is put into words."""

    chain = "chain"
    """`Compute 3+4-2.`"""
    word = "word"
    """Someone has, buys, finds, loses, gives away."""
    comparison = "comparison"
    """`Which is larger, 3+4 or 9-1?`; if both are equal, their value is the answer."""


class SolutionStyle(StrEnum):
    """How a worked solution is written down."""

    answer_only = "answer_only"
    step_by_step = "step_by_step"
    rambling = "rambling"
    """Works the steps again once, twice or four times, with new mistakes, and keeps its first answer."""
    unfinished = "unfinished"
    """Stops before the last step and states no answer."""


@dataclass(frozen=True)
class ArithmeticProblem:
    """One problem; `steps` are the correct sums in order, each `a+b=c` or `a-b=c`."""

    problem: str
    answer: str
    steps: tuple[str, ...]
    kind: str


def generate_problems(
    seed: int,
    rows: int,
    weights: Mapping[str, float] = LAPTOP_WEIGHTS,
    operand_max: int = 9,
    value_max: int = 20,
    steps: Sequence[int] = (2, 3, 4),
) -> list[ArithmeticProblem]:
    """Draws `rows` different problems.

    The defaults are the laptop recipe's. `weights` are the relative frequencies of the kinds; `steps` the numbers
    of operations of chains and word problems, all equally likely. A chain starts at 1 to value_max/2, operands are 1
    to `operand_max`, and every intermediate value is 0 to `value_max`. A duplicate is drawn again. ValueError when
    almost no new problems are left, or a kind is unknown.
    """
    kinds = [Kind(kind) for kind in weights]
    rng, problems, duplicates = random.Random(seed), {}, 0
    while len(problems) < rows:
        kind = rng.choices(kinds, list(weights.values()))[0]
        drawn = _draw(kind, rng, operand_max, value_max, steps)
        duplicates = duplicates + 1 if drawn.problem in problems else 0
        problems.setdefault(drawn.problem, drawn)
        if duplicates > LONGEST_RUN_OF_DUPLICATES:
            raise ValueError(f"only about {len(problems)} different problems exist, but {rows} were requested")
    return list(problems.values())


def worked_steps(
    problem: ArithmeticProblem, rng: random.Random, step_error_fraction: float
) -> tuple[tuple[str, ...], str]:
    """Works the problem; each step's result is wrong with the given probability, and later steps build on it.

    Returns the written steps and the answer they lead to. A wrong result is off by one, two or ten, or any number
    from 0 to 20, which is sometimes right by chance. Values below 0 can follow from a wrong result.
    """
    lines, results = [], []
    for text in problem.steps:
        first, sign, second = _parts(text)
        # The sums of a comparison are independent; in a chain a mistake carries over to later steps.
        if results and problem.kind != Kind.comparison:
            first = results[-1]
        result = first + second if sign == "+" else first - second
        if rng.random() < step_error_fraction:
            result = _slip(rng, result)
        results.append(result)
        lines.append(f"{first}{sign}{second}={result}")
    answer = max(results) if problem.kind == Kind.comparison else results[-1]
    return tuple(lines), str(answer)


def worked_solution(
    problem: ArithmeticProblem, rng: random.Random, style: str, step_error_fraction: float
) -> tuple[str, str | None]:
    """Writes a solution as a web author might; returns the text and the answer that it states, right or wrong.

    `answer_only` states the right answer. `unfinished` states none (None). The two others end in the answer that
    their steps lead to, `The answer is \\boxed{5}.`
    """
    if style == SolutionStyle.answer_only:
        return answer_line(problem.answer), problem.answer
    lines, answer = worked_steps(problem, rng, step_error_fraction)
    if style == SolutionStyle.unfinished:
        return "\n".join(lines[:-1]), None
    if SolutionStyle(style) is SolutionStyle.rambling:
        for _ in range(rng.choice(REPEATS_OF_RAMBLING)):
            lines = (*lines, "Let me check.", *worked_steps(problem, rng, step_error_fraction)[0])
    return "\n".join((*lines, answer_line(answer))), answer


def answer_line(answer: str) -> str:
    """Returns the last line of a solution."""
    return f"The answer is \\boxed{{{answer}}}."


def _draw(kind: Kind, rng: random.Random, operand_max: int, value_max: int, steps: Sequence[int]) -> ArithmeticProblem:
    if kind is Kind.comparison:
        left, right = (_chain(rng, 1, operand_max, value_max) for _ in range(2))
        answer = max(int(chain[0].split("=")[1]) for chain in (left, right))
        problem = f"Which is larger, {_expression(left)} or {_expression(right)}?"
        return ArithmeticProblem(problem, str(answer), (*left, *right), kind.value)
    chain = _chain(rng, rng.choice(list(steps)), operand_max, value_max)
    problem = f"Compute {_expression(chain)}." if kind is Kind.chain else _story(rng, chain)
    return ArithmeticProblem(problem, chain[-1].split("=")[1], chain, kind.value)


def _chain(rng: random.Random, length: int, operand_max: int, value_max: int) -> tuple[str, ...]:
    """Draws a chain whose values are all in range. A chain that leaves the range is dropped whole, without bias."""
    while True:
        value = rng.randint(1, max(1, value_max // 2))
        chain: list[str] = []
        for _ in range(length):
            sign, operand = rng.choice("+-"), rng.randint(1, operand_max)
            result = value + operand if sign == "+" else value - operand
            if not 0 <= result <= value_max:
                break
            chain.append(f"{value}{sign}{operand}={result}")
            value = result
        if len(chain) == length:
            return tuple(chain)


def _parts(step: str) -> tuple[int, str, int]:
    first, sign, second, _ = STEP.fullmatch(step).groups()
    return int(first), sign, int(second)


def _expression(chain: Sequence[str]) -> str:
    start = str(_parts(chain[0])[0])
    return start + "".join(f"{sign}{operand}" for _, sign, operand in map(_parts, chain))


def _story(rng: random.Random, chain: Sequence[str]) -> str:
    name, items = rng.choice(NAMES), rng.choice(ITEMS)
    text = f"{name} has {_parts(chain[0])[0]} {items}."
    for _, sign, operand in map(_parts, chain):
        text += f" {name} {rng.choice(GAINS if sign == '+' else LOSSES).format(operand)}."
    return f"{text} How many {items} does {name} have?"


def _slip(rng: random.Random, result: int) -> int:
    near = (result + 1, result - 1, result + 2, result - 2, result + 10)
    return max(0, rng.choice((*near, rng.randint(0, LARGEST_SLIP))))
