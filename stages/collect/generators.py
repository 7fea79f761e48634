"""Problems that are made, not fetched: the laptop task family, digits and reasoning-gym's tasks."""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterator

from stages.algorithms import arithmetic_tasks, digit_tasks
from stages.collect.params import ArithmeticSource, DigitSource, ReasoningGymSource
from stages.foundations.errors import UserError
from stages.observe.progress import progress


def arithmetic_rows(name: str, origin: ArithmeticSource) -> Iterator[dict[str, str | None]]:
    """Rows with problem, answer and solution, all steps of which are right."""
    weights = {kind.value: weight for kind, weight in origin.weights.items()}
    try:
        problems = arithmetic_tasks.generate_problems(
            origin.seed, origin.rows, weights, origin.operand_max, origin.value_max, origin.steps
        )
    except ValueError as error:
        raise UserError(
            f"sources.{name}.from: {error}; lower `rows` or raise operand_max, value_max or steps"
        ) from None
    for problem in problems:
        solution = "\n".join((*problem.steps, arithmetic_tasks.answer_line(problem.answer)))
        yield {"problem": problem.problem, "answer": problem.answer, "solution": solution}


def digit_rows(name: str, origin: DigitSource) -> Iterator[dict[str, str | None]]:
    """Rows with problem, answer and a search without mistakes as solution."""
    try:
        problems = digit_tasks.generate_problems(
            origin.seed, origin.rows, origin.sizes, origin.coefficients, origin.is_held_out
        )
    except ValueError as error:
        raise UserError(
            f"sources.{name}.from: {error}; lower `rows`, or give other sizes or more coefficients"
        ) from None
    rng = random.Random(origin.seed)
    for problem in problems:
        solution, _ = digit_tasks.write_solution(problem, rng, "search", slip=0.0, retry=0.0, near_misses=0.0)
        yield {"problem": problem.problem, "answer": problem.answer, "solution": solution}


def reasoning_gym_rows(name: str, origin: ReasoningGymSource) -> Iterator[dict[str, str | None]]:
    """Rows as the task gives them; the answer is None where the task has no single one."""
    try:
        import reasoning_gym
    except ImportError:
        raise UserError(
            f"sources.{name}.from needs the package reasoning-gym: run `make repro` (set-up installs it)"
        ) from None

    known = reasoning_gym.factory.DATASETS
    if origin.task not in known:
        close = difflib.get_close_matches(origin.task, known) or sorted(known)
        raise UserError(
            f"reasoning-gym has no task {origin.task!r} (sources.{name}.from.task); try: {', '.join(close)}"
        )
    try:
        entries = reasoning_gym.create_dataset(
            origin.task, size=origin.rows, seed=origin.seed, **origin.config
        )
    except (AssertionError, TypeError, ValueError) as error:
        raise UserError(
            f"reasoning-gym's {origin.task} refuses sources.{name}.from.config {origin.config}: {error}"
        ) from error
    for entry in progress(entries, total=origin.rows, label=origin.task):
        yield {"problem": entry["question"], "answer": entry["answer"], "solution": None}
