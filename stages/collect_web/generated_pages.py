"""Generated exercises as web pages: sums of the laptop task family, and puzzles of the family "digits".

Solutions only state the answer, ramble, stop early, jump to the answer or contain wrong steps; every share is a
parameter. The pages add the web's noise. Around the exercises: navigation, advertisements, scripts, comments, footers
and prose. Inside: six ways to label an exercise and its solution, missing or wrong answers, and exercises on two pages.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stages.algorithms.arithmetic_tasks import ArithmeticProblem, SolutionStyle, generate_problems, worked_solution
from stages.algorithms.digit_tasks import DigitProblem, write_solution
from stages.algorithms.digit_tasks import SolutionStyle as DigitSolutionStyle
from stages.algorithms.digit_tasks import generate_problems as generate_digit_problems
from stages.collect_web.sources import ReadPage
from stages.collect_web.stage import ArithmeticPages, DigitPages, GeneratedPages
from stages.foundations.errors import UserError
from stages.foundations.seeds import derive_seed


@dataclass(frozen=True)
class Site:
    """The site of the pages and the texts around the exercises."""

    name: str
    """Part of each address."""
    topics: tuple[str, ...]
    prose: tuple[str, ...]


ARITHMETIC_SITE = Site(
    name="arithmetic",
    topics=("Sums for beginners", "Adding and subtracting", "Mental arithmetic", "Homework corner", "Practice set"),
    prose=(
        "Work from left to right and write down every step.",
        "Subtraction undoes addition, which is a good way to check your work.",
        "The next exercises mix both operations.",
        "If you get stuck, draw a number line.",
    ),
)


def arithmetic_pages(source: ArithmeticPages, seed: int) -> Iterator[ReadPage]:
    """Returns the pages in order; equal parameters and seeds give equal pages."""
    rng = random.Random(derive_seed(seed, "arithmetic_pages"))
    # A separate seed: other shares of noise leave the problems unchanged.
    problems = generate_problems(derive_seed(seed, "arithmetic_pages", "problems"), source.exercises)

    def solve(problem: ArithmeticProblem) -> tuple[str, str]:
        draw = rng.random()
        if draw < source.answer_only:
            style = SolutionStyle.answer_only
        elif draw < source.answer_only + source.rambling:
            style = SolutionStyle.rambling
        elif draw < source.answer_only + source.rambling + source.unfinished:
            style = SolutionStyle.unfinished
        else:
            style = SolutionStyle.step_by_step
        return style, worked_solution(problem, rng, style, source.step_error)[0]

    yield from _pages(source, problems, solve, ARITHMETIC_SITE, rng)


DIGIT_SITE = Site(
    name="digits",
    topics=("Digit puzzles", "Try and see", "Two digits wanted", "Puzzle corner", "Practice set"),
    prose=(
        "Try a pair, work out both products and compare the sum.",
        "A sum that is too low asks for a larger digit at the larger factor.",
        "Each puzzle has one solution.",
        "If you get stuck, write down what you have tried.",
    ),
)


def digit_pages(source: DigitPages, seed: int) -> Iterator[ReadPage]:
    """Returns the pages in order; equal parameters and seeds give equal pages. None has a held-out problem.

    UserError when there are not enough problems.
    """
    rng = random.Random(derive_seed(seed, "digit_pages"))
    own = derive_seed(seed, "digit_pages", "problems")
    try:
        # The other side of the split is the benchmark of this family.
        problems = generate_digit_problems(own, source.exercises, source.sizes, source.coefficients, is_held_out=False)
    except ValueError as error:
        raise UserError(
            f"collect_web: {error}; lower `exercises`, or give other `sizes` or more `coefficients`"
        ) from None
    shares = {
        DigitSolutionStyle.answer_only: source.answer_only,
        DigitSolutionStyle.jump: source.jump,
        DigitSolutionStyle.rambling: source.rambling,
        DigitSolutionStyle.unfinished: source.unfinished,
    }
    # The last of the shares, so that they sum to 1 for any parameters.
    shares[DigitSolutionStyle.search] = 1 - sum(shares.values())

    def solve(problem: DigitProblem) -> tuple[str, str]:
        style = rng.choices(list(shares), list(shares.values()))[0]
        return style, write_solution(problem, rng, style, source.slip, source.retry, source.near_misses)[0]

    yield from _pages(source, problems, solve, DIGIT_SITE, rng)


USERS = ("mathfan", "lena_k", "prof_oak", "count42", "j.doe")


@dataclass(frozen=True)
class RenderedExercise:
    """A page's content for one exercise."""

    problem: str
    solution: str | None
    answer: str | None


def _pages(
    source: GeneratedPages,
    problems: Sequence[ArithmeticProblem | DigitProblem],
    solve: Callable[[Any], tuple[str, str]],
    site: Site,
    rng: random.Random,
) -> Iterator[ReadPage]:
    """Yields the problems, some twice in other words, with solutions in the style that `solve` names, by page."""

    def published(problem: ArithmeticProblem | DigitProblem, text: str) -> RenderedExercise:
        """The solution or short answer may be missing, the short answer may be wrong."""
        style, solution = solve(problem)
        shown: str | None = solution
        # The last line is the one that states the answer.
        if style == "rambling" and rng.random() < source.rambling_without_end:
            shown = solution.rpartition("\n")[0]
        answer: str | None = problem.answer
        if rng.random() < source.wrong_answer:
            # Similar answers: a reader of pages cannot see from them that they are wrong.
            answer = str(int(problem.answer) + rng.choice((1, 2, 10)))
        if rng.random() < source.missing_answer:
            answer = None
        if rng.random() < source.missing_solution:
            shown = None
        return RenderedExercise(text, shown, answer)

    exercises = [published(problem, problem.problem) for problem in problems]
    repeated = rng.sample(problems, round(source.repeated * len(problems)))
    exercises += [published(problem, reworded(problem.problem, rng)) for problem in repeated]
    # Otherwise the last pages would contain only repeated exercises.
    rng.shuffle(exercises)
    for start in range(0, len(exercises), source.exercises_per_page):
        number = start // source.exercises_per_page
        page = _page(exercises[start : start + source.exercises_per_page], start, site, rng)
        yield ReadPage(f"{number:05d}", f"https://example.org/{site.name}/{number:05d}.html", "html", page)


def reworded(problem: str, rng: random.Random) -> str:
    """Returns the same exercise as another author would copy it."""
    match rng.randrange(3):
        case 0:
            return problem.replace("+", " + ").replace("-", " - ")
        case 1:
            return problem.replace("Compute", "compute").replace("?", " ?")
        case _:
            return f"Please {problem[0].lower()}{problem[1:]}" if problem.startswith("Compute") else problem


def _lines(text: str, mark: str = "<br>") -> str:
    return text.replace("\n", f"{mark}\n")


def _headings(number: int, exercise: RenderedExercise, rng: random.Random) -> str:
    parts = [f"<h3>Exercise {number}</h3>\n<p>{exercise.problem}</p>"]
    if exercise.solution:
        parts.append(f"<h4>Solution</h4>\n<p>{_lines(exercise.solution, '</p><p>')}</p>")
    if exercise.answer:
        parts.append(f"<h4>Answer</h4>\n<p>{exercise.answer}</p>")
    return "\n".join(parts)


def _toggles(number: int, exercise: RenderedExercise, rng: random.Random) -> str:
    parts = [f"<div class='box'><p><strong>Problem {number}.</strong> {exercise.problem}</p>"]
    if exercise.solution:
        parts.append(f"<details><summary>Show solution</summary><p>{_lines(exercise.solution)}</p></details>")
    if exercise.answer:
        parts.append(f"<details><summary>Show answer</summary><p>{exercise.answer}</p></details>")
    return "\n".join(parts) + "</div>"


def _definitions(number: int, exercise: RenderedExercise, rng: random.Random) -> str:
    parts = [f"<dl><dt>Question {number}</dt><dd>{exercise.problem}</dd>"]
    if exercise.solution:
        parts.append(f"<dt>Worked solution</dt><dd>{_lines(exercise.solution)}</dd>")
    if exercise.answer:
        parts.append(f"<dt>Answer</dt><dd>{exercise.answer}</dd>")
    return "\n".join(parts) + "</dl>"


def _inline(number: int, exercise: RenderedExercise, rng: random.Random) -> str:
    parts = [f"<p>Q{number}: {exercise.problem}</p>"]
    if exercise.solution:
        parts.append(f"<p><b>Solution:</b> {_lines(exercise.solution)}</p>")
    if exercise.answer:
        parts.append(f"<p>Answer: {exercise.answer}</p>")
    return "\n".join(parts)


def _forum(number: int, exercise: RenderedExercise, rng: random.Random) -> str:
    asker, helper = rng.sample(USERS, 2)
    parts = [
        f"<article><div class='post'><h3>Question #{number}</h3><p>{exercise.problem}</p>"
        f"<p class='social'>asked by {asker} · {rng.randint(3, 90)} views</p></div>"
    ]
    if exercise.solution:
        parts.append(
            f"<div class='post'><h4>Solution by {helper}</h4><p>{_lines(exercise.solution)}</p>"
            f"<p>{rng.randint(0, 40)} votes</p></div>"
        )
    if exercise.answer:
        parts.append(f"<div class='post'><h4>Accepted answer</h4><p>{exercise.answer}</p></div>")
    return "\n".join(parts) + f"<div class='comments'><p>{rng.choice(USERS)}: thanks!</p></div></article>"


def _table(number: int, exercise: RenderedExercise, rng: random.Random) -> str:
    cells = (exercise.problem, _lines(exercise.solution or ""), exercise.answer or "")
    return f"<tr><td>{number}</td>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


STYLES: tuple[Callable[[int, RenderedExercise, random.Random], str], ...] = (
    _headings,
    _toggles,
    _definitions,
    _inline,
    _forum,
    _table,
)


def _page(exercises: Sequence[RenderedExercise], start: int, site: Site, rng: random.Random) -> str:
    """Renders one page in one style, with the usual content of a site around it."""
    style, topic = rng.choice(STYLES), rng.choice(site.topics)
    pieces = [style(start + index + 1, exercise, rng) for index, exercise in enumerate(exercises)]
    # Rows of a table have nothing between them, since text there would be invalid HTML.
    if style is _table:
        pieces = ["<table><tr><th>No.</th><th>Problem</th><th>Solution</th><th>Answer</th></tr>", *pieces, "</table>"]
    else:
        # Backwards, so that an insertion moves no later place.
        for place in sorted(rng.sample(range(len(pieces) + 1), min(2, len(pieces))), reverse=True):
            advertisement = f"<div class='ad-slot'>Buy {rng.randint(2, 9)} pencils, get 1 free!</div>"
            pieces.insert(place, rng.choice((advertisement, f"<hr><p>{rng.choice(site.prose)}</p><hr>")))
    return (
        f"<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><title>{topic}</title>"
        # Words of labels also occur in scripts, navigation and banners: a reader that uses those is wrong.
        "<script>var tracker = {answer: 42};</script><style>.box {margin: 1em}</style></head>\n<body>"
        "<nav><ul><li><a href='/'>Home</a></li><li><a href='/sums'>Sums</a></li>"
        "<li><a href='/quiz'>Question 1 of the day</a></li></ul></nav>"
        f"<div class='cookie-banner'>We use cookies. Answer: yes</div>\n"
        f"<main><h1>{topic}</h1>\n<p>{rng.choice(site.prose)}</p>\n"
        + "\n".join(pieces)
        + "\n</main><aside><h4>Related</h4><a href='/more'>More exercises</a></aside>"
        "<footer><p>This work is licensed under a Creative Commons licence.</p></footer>"
        "<script>track('page');</script></body></html>"
    )
