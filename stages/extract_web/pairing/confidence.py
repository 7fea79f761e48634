"""How far a pair of problem and solution can be trusted: by the rule that found it, less for each check it fails.

The confidence of a rule is its precision on two books and three collections of documents whose pairs are known
(docs/extraction.md has the table); a failed check multiplies it. A rule that was not measured has `UNMEASURED`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stages.extract_web.labels.labels import Part, prefix_label
from stages.extract_web.pairing.exercises import Exercise
from stages.extract_web.pairing.short_answer import chosen_letter

MEASURED = {
    "marked": 0.97,
    "quote+quote": 0.97,
    "words+words": 0.97,
    "words+none": 0.97,
    "markup+markup": 0.9,
    "markup+words": 0.9,
    "number+key": 0.9,
    "number+words": 0.9,
    "words+key": 0.9,
    "words+markup": 0.75,
    "none+markup": 0.65,
    "none+words": 0.45,
}
"""How problem and solution are known -> precision. The first four on books and documents as they are, the others on the
books' exercises in other layouts, at most 0.9, because a layout that somebody made up is no page; boxes of class
"answer" are of FAQs too."""
UNMEASURED = 0.5
COSTS = {
    "other_section": 0.3,
    "numbers_restart": 0.7,
    "text_after": 0.85,
    "holds_next_label": 0.4,
    "problem_holds_part": 0.5,
    "number_out_of_order": 0.8,
    "same_solution": 0.2,
}
"""Check -> what is left of the confidence where it fails."""
MIN_SAME = 3
MIN_SAME_SHARE = 1 / 3
"""Problems with the same solution, letter by letter, and their share of the page's, that make it none of theirs."""
MIN_HELD_CHARACTERS = 40
"""Characters of a solution, spaces aside, that are no chance when they stand in the problem; choices are shorter."""
MAX_STEP = 4
MAX_LINES = 200
"""Lines of a text that are looked at."""


def judged(exercises: Sequence[Exercise]) -> list[Exercise]:
    """The exercises of a page with the doubts that their texts, numbers and neighbours raise."""
    problems: dict[str, set[str]] = {}
    for one in exercises:
        if one.solution:
            problems.setdefault(one.solution, set()).add(one.problem)
    solved = sum(one.solution is not None for one in exercises)
    found = []
    neighbours = [None, *exercises, None]
    for before, one, after in zip(neighbours, exercises, neighbours[2:], strict=False):
        doubts = list(one.doubts)
        if one.solution:
            same = len(problems[one.solution])
            if same >= MIN_SAME and same >= MIN_SAME_SHARE * solved:
                doubts.append("same_solution")
            if after and after.number and _holds(one.solution, [Part.PROBLEM], after.number):
                doubts.append("holds_next_label")
        if _holds(one.problem, [Part.SOLUTION, Part.ANSWER, Part.ASIDE], "") or _holds_solution(one):
            doubts.append("problem_holds_part")
        if before and after and _is_out_of_order(before.number, one.number, after.number):
            doubts.append("number_out_of_order")
        found.append(replace(one, doubts=tuple(doubts)))
    return found


def confidence(exercise: Exercise, precision: float | None = None) -> float:
    """Between 0 and 1, two digits: the share of pairs found and doubted like this one that are right.

    `precision` is that of what found it, where it is no rule.
    """
    value = MEASURED.get(exercise.rule, UNMEASURED) if precision is None else precision
    for doubt in exercise.doubts:
        value *= COSTS[doubt]
    return round(value, 2)


def evidence(exercise: Exercise) -> str:
    """Rule, labels as the page has them, and failed checks: `words+words: Exercise 3. | Solution; text_after`."""
    labels = " | ".join(" ".join(label.split()) for label in exercise.labels)
    return "; ".join(
        [f"{exercise.rule}: {labels}" if labels.strip(" |") else exercise.rule, *exercise.doubts]
    )


def _holds(text: str, parts: Sequence[Part], number: str) -> bool:
    """True for a text with a line, not the first, that begins with such a label (and number, where one is given)."""
    for line in text.split("\n")[1:MAX_LINES]:
        label = prefix_label(line)
        if label and label.part in parts and (not number or label.number == number):
            return True
    return False


def _holds_solution(exercise: Exercise) -> bool:
    """True where the solution's own text stands in the problem, and not as one of its choices: that reaches too far."""
    solution = "".join((exercise.solution or "").split())
    if len(solution) < MIN_HELD_CHARACTERS or solution not in "".join(exercise.problem.split()):
        return False
    return chosen_letter(exercise.problem, exercise.solution or "") is None


def _is_out_of_order(before: str, own: str, after: str) -> bool:
    """True for a number that is not between those of its neighbours, which follow each other."""
    if not (before.isdecimal() and own.isdecimal() and after.isdecimal()):
        return False
    return int(before) < int(after) <= int(before) + MAX_STEP and not int(before) < int(own) < int(after)
