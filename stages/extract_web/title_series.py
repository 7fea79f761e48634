"""Titles with words nobody foresaw: numbered ones that label exercises, and ones that come once in every exercise.

"Drill 7" is an exercise's label when its numbers ascend and solutions follow most of its kind. "What we did" is a
solution's when no solution of the page has a known label and it is the only title within most exercises.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import pairwise

from stages.extract_web.blocks import Block, Page
from stages.extract_web.furniture import is_furniture, lines_again, tag_lines, tells
from stages.extract_web.induced_labels import asks
from stages.extract_web.labels import Label, Part, without_icon

SOLVES = frozenset([Part.SOLUTION, Part.ANSWER])
_SERIES = re.compile(
    r"(?P<words>(?:[A-Za-z][\w'’-]*[\s.]+){0,4}[A-Za-z][A-Za-z'’-]*)[\s.:]*(?:[Nn]o\.?\s*)?[#№(]?\s*"
    r"(?P<number>\d{1,4}(?:[.-]\d{1,4}){0,2}(?!\d)|(?<![\w.])[IVX]{1,5}(?!\w))\)?(?:\s+of\s+\d{1,4}|/\d{1,4})?"
    r"(?:\s*[(\[][^()\[\]]{0,40}[)\]]){0,2}(?:\W*|[\s.:–—|·-]+(?P<tags>\S.{0,50}))",
    re.DOTALL,
)
_NUMBER_FIRST = re.compile(
    r"[(\[]?(?P<number>\d{1,4})[.):\]]+\s+(?P<words>(?:[A-Za-z][\w'’-]*\s+){0,4}[A-Za-z][\w'’-]*)"
    r"(?:[.:]?|\s*[\n–—·|:]\s*(?P<tags>\S.{0,50}))",
    re.DOTALL,
)
_STRUCTURE = re.compile(
    r"\b(?:figure|fig|table|step|part|section|chapter|lesson|unit|module|theorem|lemma|corollary|definition|rule|note"
    r"|case|method|way|page|day|week|row|column|comments?|reply|replies|answers|responses|post|level|grade|year|version|volume|line|equation|eq)$",
    re.IGNORECASE,
)
_NO_SOLUTION = re.compile(
    r"\b(?:input|output|figure|table|note|given|data|required|constraints?|objectives?|materials|instructions?|part"
    r"|references?|related|share|comments?|print|save|bookmark|report|video|copy|next|previous|background|setup"
    r"|question|problem|exercise|task|hint|definition|theorem|summary|your|submission|submit|deliverables?|grading|due"
    r"|starter|code|files?|resources?|reading|links?|goals?|time|points|marks|level|topic|learning|prerequisites|test"
    r"|usage|syntax|parameters|returns?|examples?|sample|options?|choices?|description|name|title|context|story)\b",
    re.IGNORECASE,
)
"""Words of titles within exercises that are no solution's."""
_NUMBER = re.compile(r"\d|\b[IVX]{1,5}\b")
_ALNUM = re.compile(r"[^\W_]")
_SAYS = re.compile(r"\d|:.|[.?!]$")
"""Signs of a paragraph that is no title: "Added in: v2"."""
_NO_LETTER = re.compile(r"[\W\d_]+")
MIN_SERIES = 3
MAX_SERIES = 50
"""Series of a page that are looked at, the longest."""
MIN_SOLVED_SHARE = 0.25
MAX_STEP = 3
MIN_ASCENDING = 0.7
"""Share of a series' steps that count on."""
MAX_WITHIN = 0.5
"""Share of a series' titles that may stand under the text of another exercise, which then has no solution."""
MAX_TITLE_CHARACTERS = 60
MAX_SECOND_TITLE_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class _Title:
    index: int
    number: str
    rest: str
    tags: str


def followed_by_solution(labels: Sequence[Label | None], places: Sequence[int]) -> int:
    """How many of the places have a solution, and no other exercise's label, before the next."""
    ends = [*places[1:], len(labels)]
    count = 0
    for place, end in zip(places, ends, strict=True):
        first = next(
            (label.part for label in labels[place + 1 : end] if label and label.part is not Part.ASIDE), None
        )
        count += first in SOLVES
    return count


def add_series(page: Page, labels: list[Label | None]) -> None:
    """Labels numbered titles with an unforeseen word, or with tags: most of them are followed by a solution, or most
    solutions of the page follow one of them."""
    solved = sum(bool(label) and label.part in SOLVES for label in labels)
    for members in _series(page, labels):
        followed = followed_by_solution(labels, [one.index for one in members])
        is_most = 2 * followed >= len(members)
        is_where_solutions_are = followed >= MIN_SOLVED_SHARE * len(members) and 2 * followed >= solved
        if followed >= 2 and (is_most or is_where_solutions_are) and not _are_within(labels, members):
            for one in members:
                labels[one.index] = Label(Part.PROBLEM, one.rest, one.number)


def _are_within(labels: Sequence[Label | None], members: Sequence[_Title]) -> bool:
    """True where most of the titles stand under a labelled exercise's text: "Discuss (3)"."""
    places = {one.index for one in members}
    within, problem = 0, None
    for index, label in enumerate(labels):
        within += index in places and problem is not None and index > problem + 1
        if label and label.part is not Part.ASIDE:
            problem = index if label.part is Part.PROBLEM else None
    return within > MAX_WITHIN * len(members)


def _series(page: Page, labels: Sequence[Label | None]) -> list[list[_Title]]:
    """Titles of the same words with a number each, at least three of them, in the order of the first of each series."""
    found: dict[tuple[str, str], list[_Title]] = defaultdict(list)
    for index, block in enumerate(page.blocks):
        text = block.lead or block.text
        if labels[index] is not None or len(text) > MAX_TITLE_CHARACTERS or not _NUMBER.search(text):
            continue
        block = without_icon(block)
        title = _title(block)
        match = _SERIES.fullmatch(title) or _NUMBER_FIRST.fullmatch(title)
        if match and not _STRUCTURE.search(match["words"]):
            rest = block.text[len(title) :].lstrip(" .:)-–—\n")
            kind = block.kind if block.lead or block.kind in ("heading", "term") else "plain"
            if kind == "plain" and (tells(match["words"]) or is_furniture(title)):
                continue
            found[kind, match["words"].lower()].append(
                _Title(index, match["number"], rest, match["tags"] or "")
            )
    kept = ((kind, _without_prose(kind, members)) for (kind, _), members in found.items())
    every = [
        members
        for kind, members in kept
        if len(members) >= MIN_SERIES and (kind != "plain" or _counts(members))
    ]
    longest = {id(members) for members in nlargest(MAX_SERIES, every, key=len)}
    return [members for members in every if id(members) in longest]


def _title(block: Block) -> str:
    """What of a block may be a title: its emphasised beginning, or all of it."""
    if block.kind in ("toggle", "vote", "table", "code"):
        return ""
    title = block.lead or block.text
    return title if len(title) <= MAX_TITLE_CHARACTERS and (title[:1].isalnum() or title[:1] in "([#") else ""


def _without_prose(kind: str, members: Sequence[_Title]) -> list[_Title]:
    """The titles without tags, those with tags that come again, and in headings also those that go on with a name."""
    tags = tag_lines([one.tags for one in members if one.tags], sum(bool(one.tags) for one in members))
    kept = []
    for one in members:
        if not one.tags or one.tags in tags:
            kept.append(one)
        elif kind == "heading":
            kept.append(_Title(one.index, one.number, one.tags, ""))
    return kept


def _counts(members: Sequence[_Title]) -> bool:
    numbers = [_digits(one.number) for one in members]
    steps = list(pairwise(numbers))
    counting = sum(one[:-1] == two[:-1] and 0 < two[-1] - one[-1] <= MAX_STEP for one, two in steps)
    return counting >= MIN_ASCENDING * len(steps)


def _digits(number: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", number))) or (_roman(number),)


def _roman(number: str) -> int:
    """The value of a Roman number under 40."""
    values = [{"I": 1, "V": 5, "X": 10}.get(letter, 0) for letter in number]
    return sum(-one if one < after else one for one, after in pairwise([*values, 0]))


def add_second_titles(page: Page, labels: list[Label | None]) -> None:
    """Labels the title that comes once in most exercises, between their text and another, as that of the solution.

    Only where exercises have labels, or numbered titles, and most of them ask something. Where several titles do so
    as often, nothing is labelled: they are parts of the exercise.
    """
    problems = [
        _Title(index, label.number, label.rest, "")
        for index, label in enumerate(labels)
        if label and label.part is Part.PROBLEM
    ]
    longest = max(_series(page, labels), key=len, default=[])
    problems = longest if len(longest) > 2 * len(problems) else problems
    if len(problems) < MIN_SERIES:
        return
    ends = [*(one.index for one in problems[1:]), len(labels)]
    titles = [_titles_within(page, labels, one, end) for one, end in zip(problems, ends, strict=True)]
    counts = Counter(key for found in titles for key in found)
    again = lines_again([block.text for block in page.blocks])
    chosen: dict[str, list[int]] = defaultdict(list)
    for one, end, found in zip(problems, ends, titles, strict=True):
        common = {index: key for key, index in found.items() if counts[key] >= MIN_SERIES}
        stops = [index for index in range(one.index + 1, end) if index in common or labels[index]]
        for index, following in pairwise([*stops, end]):
            key = common.get(index, "")
            asked = [one.rest, *(text for text in _texts(page, one.index, index) if text not in again)]
            told = [text for text in _texts(page, index, following) if text not in again]
            if key and any(map(asks, asked)) and (told or _rest(page.blocks[index])):
                chosen[key].append(index)
    ranked = sorted(chosen.values(), key=len, reverse=True)
    least = max(MIN_SERIES, MIN_SOLVED_SHARE * len(problems))
    if not ranked or len(ranked[0]) < least or (len(ranked) > 1 and 2 * len(ranked[1]) > len(ranked[0])):
        return
    for one in problems:
        labels[one.index] = labels[one.index] or Label(Part.PROBLEM, one.rest, one.number)
    for index in ranked[0]:
        labels[index] = Label(Part.SOLUTION, _rest(without_icon(page.blocks[index])), "")


def _titles_within(page: Page, labels: Sequence[Label | None], problem: _Title, end: int) -> dict[str, int]:
    """Title -> its block, for those that come once after the exercise's label, in their order."""
    found: dict[str, int] = {}
    again: set[str] = set()
    for index in range(problem.index + 1, end):
        block = without_icon(page.blocks[index])
        title = block.text if block.kind == "toggle" else _title(block)
        title = title if labels[index] is None else ""
        key = _NO_LETTER.sub(" ", title).strip().lower() if len(title) <= MAX_SECOND_TITLE_CHARACTERS else ""
        is_plain = title == block.text and block.kind == "paragraph"
        if (
            len(key) < 3
            or _NO_SOLUTION.match(key)
            or is_furniture(title)
            or (is_plain and _SAYS.search(title))
        ):
            continue
        if key in found:
            again.add(key)
        found.setdefault(key, index)
    return {key: index for key, index in found.items() if key not in again}


def _texts(page: Page, start: int, end: int) -> list[str]:
    """The texts between two blocks that have a letter or a digit."""
    return [block.text for block in page.blocks[start + 1 : end] if _ALNUM.search(block.text)]


def _rest(block: Block) -> str:
    return block.text[len(block.lead) :].lstrip(" .:)-–—\n") if block.lead else ""
