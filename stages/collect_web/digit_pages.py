"""Exercises of the task family "digits" as web pages: solutions that search, jump, ramble, break off or only answer."""

from __future__ import annotations

import random
from collections.abc import Iterator

from stages.algorithms.digit_tasks import DigitProblem, SolutionStyle, generate_problems, write_solution
from stages.collect_web.page_layouts import RenderedExercise, Site, lay_out, publish, reworded
from stages.collect_web.params import DigitPages
from stages.collect_web.sources import Found
from stages.foundations.errors import UserError
from stages.foundations.seeds import derive_seed

SITE = Site(
    name="digits",
    topics=("Digit puzzles", "Try and see", "Two digits wanted", "Puzzle corner", "Practice set"),
    prose=(
        "Try a pair, work out both products and compare the sum.",
        "A sum that is too low asks for a larger digit at the larger factor.",
        "Each puzzle has one solution.",
        "If you get stuck, write down what you have tried.",
    ),
)


def render_pages(source: DigitPages, seed: int) -> Iterator[Found]:
    """The pages in order; equal parameters and seeds give equal pages. None has a held-out problem.

    UserError when there are not as many problems.
    """
    rng = random.Random(derive_seed(seed, "digit_pages"))
    own = derive_seed(seed, "digit_pages", "problems")
    try:
        problems = generate_problems(
            own, source.exercises, source.sizes, source.coefficients, is_held_out=False
        )
    except ValueError as error:
        raise UserError(
            f"collect_web: {error}; lower `exercises`, or give other `sizes` or more `coefficients`"
        ) from None
    exercises = [_exercise(source, problem, problem.problem, rng) for problem in problems]
    repeated = rng.sample(problems, round(source.repeated * len(problems)))
    exercises += [_exercise(source, problem, reworded(problem.problem, rng), rng) for problem in repeated]
    rng.shuffle(exercises)
    yield from lay_out(exercises, source.exercises_per_page, SITE, rng)


def _exercise(source: DigitPages, problem: DigitProblem, text: str, rng: random.Random) -> RenderedExercise:
    shares = {
        SolutionStyle.answer_only: source.answer_only,
        SolutionStyle.jump: source.jump,
        SolutionStyle.rambling: source.rambling,
        SolutionStyle.unfinished: source.unfinished,
    }
    shares[SolutionStyle.search] = 1 - sum(shares.values())
    style = rng.choices(list(shares), list(shares.values()))[0]
    solution, _ = write_solution(problem, rng, style, source.slip, source.retry, source.near_misses)
    if style is SolutionStyle.rambling and rng.random() < source.rambling_without_end:
        solution = solution.rpartition("\n")[0]
    return publish(source, text, solution, problem.answer, rng)
