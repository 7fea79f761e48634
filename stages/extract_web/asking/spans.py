"""A model's answer to exercises: only what it has copied from the page counts, and what is kept is the page's text.

An answer is hostile: it is the output of a model that has read a hostile page. All that it can do is to point at parts
of that page; what it points at that is not there refuses the whole exercise, with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stages.extract_web.pairing.exercises import Exercise

RULE = "model"
"""`Exercise.rule` of what a model found."""
MAX_EXERCISES = 100
"""Of one answer; what follows is not read."""
_FIELD = re.compile(r"[\s>*_#\d.)-]{0,12}(PROBLEM|SOLUTION|ANSWER)\s?\d{0,3}[*_]{0,2}\s?:[*_]{0,2}(.*)")
_ELLIPSIS = re.compile(r"\s*(?:\[?\.\.\.\]?|…)\s*")
_LETTER = re.compile(r"\w")
MIN_PROBLEM_CHARACTERS = 8
"""A shorter problem ("Solve.") asks nothing by itself, or is a label."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An exercise that a model named and that is not taken."""

    reason: str
    said: str
    """What the model wrote of it, cut at 500 characters."""


@dataclass(frozen=True, slots=True)
class _Span:
    begin: int
    end: int

    def overlaps(self, other: _Span) -> bool:
        return self.begin < other.end and other.begin < self.end


@dataclass(frozen=True, slots=True)
class _Found:
    said: str
    problem: _Span
    solution: _Span | None
    answer: str | None


def read_answer(answer: str, window: str) -> tuple[list[Exercise], list[Refusal]]:
    """The exercises that a model's answer points at in the window it was shown, and those that it may not have.

    Reasons: `span_not_in_page`, `spans_overlap`, `problem_too_short`, `model_misspoke` (a solution without a problem).
    """
    refused: list[Refusal] = []
    found: list[_Found] = []
    for said in _exercises_said(answer)[:MAX_EXERCISES]:
        one = _located(said, window, found[-1].problem.end if found else 0)
        if isinstance(one, str):
            refused.append(Refusal(one, "\n".join(f"{name}: {text}" for name, text in said.items())[:500]))
        elif not any((one.problem, one.solution) == (other.problem, other.solution) for other in found):
            found.append(one)  # a model that repeats itself says nothing new
    clear = [one for one in found if not _is_crossed(one, found)]
    refused += [Refusal("spans_overlap", one.said[:500]) for one in found if one not in clear]
    return [_exercise(one, window) for one in clear], refused


def _exercises_said(answer: str) -> list[dict[str, str]]:
    """The fields of each exercise as the model wrote them: a problem opens one, lines without a field go on, but for an
    answer, which is one line."""
    exercises: list[dict[str, str]] = []
    last = ""
    for line in answer.splitlines():
        field = _FIELD.match(line)
        if field:
            last = field[1]
            if last == "PROBLEM" or not exercises or last in exercises[-1]:
                exercises.append({})
            exercises[-1][last] = field[2].strip()
        elif last in ("PROBLEM", "SOLUTION") and line.strip():
            exercises[-1][last] += f"\n{line.strip()}"
    return exercises


def _located(said: dict[str, str], window: str, after: int) -> _Found | str:
    """Where the exercise stands, or why it is refused. Exercises come in reading order, a solution after its problem;
    where there is nothing after, the place before counts (a key that stands in front)."""
    if "PROBLEM" not in said:
        return "model_misspoke"
    problem = _span(said["PROBLEM"], window, after)
    if problem is None:
        return "span_not_in_page"
    if len(window[problem.begin : problem.end].strip()) < MIN_PROBLEM_CHARACTERS:
        return "problem_too_short"
    solution = _span(said["SOLUTION"], window, problem.end) if "SOLUTION" in said else None
    if "SOLUTION" in said and solution is None:
        return "span_not_in_page"
    answer = None
    if "ANSWER" in said:
        place = _within(said["ANSWER"], window, solution or _Span(problem.end, len(window)))
        if place is None:
            return "span_not_in_page"
        answer = window[place.begin : place.end]
    return _Found("\n".join(said.values()), problem, solution, answer)


def _span(quote: str, window: str, after: int) -> _Span | None:
    """The place of a quotation, whole or as its beginning and end; None where the page does not have it."""
    for begin in (after, 0):
        place = _within(quote, window, _Span(begin, len(window)))
        if place is None:
            ends = _ELLIPSIS.split(quote)
            first = _within(ends[0], window, _Span(begin, len(window)))
            last = first and len(ends) > 1 and _within(ends[-1], window, _Span(first.end, len(window)))
            place = _Span(first.begin, last.end) if first and last else None
        if place:
            return place
    return None


def _within(quote: str, window: str, part: _Span) -> _Span | None:
    """The first place of the words in a part of the window, however they are broken into lines."""
    if not _LETTER.search(quote):
        return None  # nothing that could be told from other places
    words = re.compile(r"\s+".join(map(re.escape, quote.split())))
    place = words.search(window, part.begin, part.end)
    return _Span(*place.span()) if place else None


def _is_crossed(one: _Found, found: Sequence[_Found]) -> bool:
    """True for an exercise whose problem or solution reaches into its own other part or another one's problem."""
    if one.solution and one.solution.overlaps(one.problem):
        return True
    parts = [part for part in (one.problem, one.solution) if part]
    others = [other.problem for other in found if other is not one]
    return any(part.overlaps(other) for part in parts for other in others)


def _exercise(found: _Found, window: str) -> Exercise:
    solution = window[found.solution.begin : found.solution.end].strip() if found.solution else None
    problem = window[found.problem.begin : found.problem.end].strip()
    return Exercise(problem, solution, found.answer, number="", rule=RULE)
