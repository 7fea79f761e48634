"""Exercises of the laptop task family as web pages.

Solutions only state the answer, ramble, break off or contain wrong steps; every share is a parameter. What pages add
is in page_layouts.py.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from stages.algorithms.arithmetic_tasks import (
    ArithmeticProblem,
    SolutionStyle,
    generate_problems,
    worked_solution,
)
from stages.collect_web.page_layouts import RenderedExercise, Site, lay_out, publish, reworded
from stages.collect_web.params import ArithmeticPages
from stages.collect_web.sources import Found
from stages.foundations.seeds import derive_seed

SITE = Site(
    name="arithmetic",
    topics=(
        "Sums for beginners",
        "Adding and subtracting",
        "Mental arithmetic",
        "Homework corner",
        "Practice set",
    ),
    prose=(
        "Work from left to right and write down every step.",
        "Subtraction undoes addition, which is a good way to check your work.",
        "The next exercises mix both operations.",
        "If you get stuck, draw a number line.",
    ),
)


def render_pages(source: ArithmeticPages, seed: int) -> Iterator[Found]:
    """The pages in order; equal parameters and seeds give equal pages."""
    rng = random.Random(derive_seed(seed, "arithmetic_pages"))
    problems = generate_problems(derive_seed(seed, "arithmetic_pages", "problems"), source.exercises)
    exercises = [_exercise(source, problem, problem.problem, rng) for problem in problems]
    repeated = rng.sample(problems, round(source.repeated * len(problems)))
    exercises += [_exercise(source, problem, reworded(problem.problem, rng), rng) for problem in repeated]
    rng.shuffle(exercises)
    yield from lay_out(exercises, source.exercises_per_page, SITE, rng)


def _exercise(
    source: ArithmeticPages, problem: ArithmeticProblem, text: str, rng: random.Random
) -> RenderedExercise:
    draw = rng.random()
    if draw < source.answer_only:
        style = SolutionStyle.answer_only
    elif draw < source.answer_only + source.rambling:
        style = SolutionStyle.rambling
    elif draw < source.answer_only + source.rambling + source.unfinished:
        style = SolutionStyle.unfinished
    else:
        style = SolutionStyle.step_by_step
    solution = worked_solution(problem, rng, style, source.step_error)[0]
    if style is SolutionStyle.rambling and rng.random() < source.rambling_without_end:
        solution = solution.rpartition("\n")[0]
    return publish(source, text, solution, problem.answer, rng)
