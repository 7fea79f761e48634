"""The labels of a whole page, and the sections that they govern.

1. `page_labels`: the labels of single blocks, corrected and completed by patterns that the page repeats. The markup's
   words (a box of class "answer") count where there is no text; mere numbers are exercises where solutions follow
   them.
2. Numbers at the beginning of blocks, and runs of them: for pages that label only with numbers.
3. Instructions that several exercises share: "For the following exercises, solve for x."
4. `find_sections`: the blocks that each label governs. A labelled part is the box that its label opens, when the page's
   nesting shows one. That is the largest container that begins with the label and contains no second exercise. On a
   flat page it ends at the next exercise, or at a heading of the label's rank or above.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from stages.extract_web.blocks import Block, Mark, Page
from stages.extract_web.labels import Label, Part, find_label, is_first_option, is_furniture, is_placeholder

MAX_RUNS = 50
"""Numbered runs of a page that are tried, the longest first."""
SOLVES = frozenset([Part.SOLUTION, Part.ANSWER])
MIN_QUESTIONS = 3
"""Summaries with a question mark, or that say "show"; fewer may be headings of a text."""
_SHOWS = re.compile(
    r"\W*(?:click\s+(?:here\s+)?to\s+)?(?:show|reveal|unhide|peek)(?:\s+(?:it|me|here))?\W*", re.IGNORECASE
)
# Books solve only some of their exercises, often every other one.
MIN_SOLVED_SHARE = 0.25
OPTION_BLOCKS = 2
"""Blocks after the first option in which the second one begins: an option may have a line of code."""
NEAR = 3
"""Blocks from a container's beginning in which another one of its kind counts as the same."""


def page_labels(page: Page) -> list[Label | None]:
    """Returns one entry for each block: the label that it is or begins with, or None."""
    labels = [find_label(block) for block in page.blocks]
    _drop_options(page, labels)
    if page.marks:
        _add_marks(page, labels)
    # After the marks, since a part that the markup names needs no guess.
    _add_hidden_answers(page, labels)
    # Whether numbers are exercises depends on the solutions that the rules above have found.
    if any(label and label.part in SOLVES for label in labels):
        _add_numbered_run(page, labels)
    elif not page.quoted:
        _drop_stray_numbers(page, labels)
    # Last, because an instruction is outside of every exercise, however the exercise was recognised.
    for index in instruction_blocks(page, labels):
        labels[index] = Label(Part.BOUNDARY, "", "")
    return labels


def _drop_options(page: Page, labels: list[Label | None]) -> None:
    """`A:` is the first of several options or points, not the label of an answer, if `B:` follows."""
    for index, label in enumerate(labels):
        if label and label.part is Part.ANSWER:
            following = [block.text for block in page.blocks[index + 1 : index + 1 + OPTION_BLOCKS]]
            if is_first_option(page.blocks[index].text, following):
                labels[index] = None


def _add_hidden_answers(page: Page, labels: list[Label | None]) -> None:
    """Text that a question in a `summary` hides is its answer, if neither it nor the question is labelled otherwise.

    A summary without a label is a question where some have a question mark and most ask for something. A summary
    that only says "show" hides the solution of the text before it.
    """
    hidden: dict[int, int] = {}
    for index, (block, label) in enumerate(zip(page.blocks, labels, strict=True)):
        is_open = label is None or (label.part is Part.PROBLEM and label.rest)
        # The smallest box, because a larger one has the other summaries of its list too.
        boxes = page.spans.get(index, ()) if block.kind == "toggle" and is_open else ()
        end = next((end for end in boxes if end > index + 1), None)
        after = labels[end] if end and end < len(labels) else None
        if end and not any(labels[index + 1 : end]) and not (after and after.part in SOLVES):
            hidden[index] = end
    texts = {index: page.blocks[index].text.rstrip() for index in hidden}
    shows = {index for index, text in texts.items() if _SHOWS.fullmatch(text)}
    questions = sum("?" in text or "？" in text for text in texts.values())
    asking = sum(bool(ASKS.search(text) or "？" in text) for text in texts.values())
    for index, end in hidden.items():
        if index in shows:
            if len(shows) >= MIN_QUESTIONS:
                labels[index] = Label(Part.SOLUTION, "", "", end=end, rule="markup")
            continue
        if labels[index] is None:
            if questions < MIN_QUESTIONS or 2 * asking < len(texts):
                continue
            labels[index] = Label(Part.PROBLEM, page.blocks[index].text, "", end=index + 1)
        first = page.blocks[index + 1]
        # The label replaces the block, and a list would lose the dash of its first item.
        rest = f"- {first.text}" if first.kind == "item" else first.text
        labels[index + 1] = Label(Part.SOLUTION, rest, "", end=end, rule="markup")


def _drop_stray_numbers(page: Page, labels: list[Label | None]) -> None:
    """Mere numbers, as versions and slides have them, count only on pages where solutions are labelled or quoted."""
    for index, label in enumerate(labels):
        # Without this rule about 120 headings of versions, slides and forums became exercises.
        if label and not label.rest and not re.search("[A-Za-z]", page.blocks[index].text[:12]):
            labels[index] = None


def _add_marks(page: Page, labels: list[Label | None]) -> None:
    kept: list[tuple[int, Mark]] = []
    boxed = {mark.part for start, mark in page.marks.items() if mark.end > start + 1}
    for start, mark in sorted(page.marks.items()):
        part = Part(mark.part)
        # `kept` is the stack of marked boxes that are still open.
        while kept and kept[-1][1].end <= start:
            kept.pop()
        label = labels[start]
        if label:
            # A marked box around only a label is a title, and the part follows it.
            is_title = mark.end == start + 1 and not label.rest
            is_title = is_title and (page.blocks[start].kind == "heading" or mark.part not in boxed)
            if not is_title and (label.part is part or {label.part, part} <= SOLVES):
                labels[start] = replace(label, end=mark.end)
                kept.append((start, mark))
            continue
        # A box of class "answer" within another one is the same answer. Exercises may contain exercises, but further
        # in.
        if any(
            Part(outer.part) is part and (part is not Part.PROBLEM or start - first <= NEAR) for first, outer in kept
        ):
            continue
        labels[start] = _marked_label(page, labels, start, mark, part)
        kept.append((start, mark))


def _marked_label(page: Page, labels: list[Label | None], start: int, mark: Mark, part: Part) -> Label:
    block = page.blocks[start]
    is_title = block.kind == "heading" and mark.end - start > 1 and labels[start + 1] is None
    following = page.marks.get(start + 1)
    is_title = is_title and not (following and part is Part.PROBLEM and Part(following.part) in SOLVES)
    number, rest = strip_number(block.text) if part is Part.PROBLEM else ("", block.text)
    return Label(part, "" if is_title else rest, number, end=mark.end, rule="markup")


def _add_numbered_run(page: Page, labels: list[Label | None]) -> None:
    """Blocks that are merely numbered are exercises when each of most solutions of the page follows one of them."""
    solved = [index for index, label in enumerate(labels) if label and label.part in SOLVES and not label.number]
    if any(label and label.part is Part.PROBLEM for label in labels):
        return
    numbered = [*numbered_blocks(page, 0, len(page.blocks)), *numbered_headings(page)]
    free = [one for one in numbered if labels[one.index] is None]
    # The longest run first: the steps of a solution are numbered too, and there are fewer of them.
    longest = sorted((run for run in runs(free, is_gapless=True) if len(run) > 1), key=len, reverse=True)
    for run in longest[:MAX_RUNS]:
        places = [one.index for one in run]
        followed = followed_by_solution(labels, places)
        if followed >= 2 and followed >= MIN_SOLVED_SHARE * len(run) and 2 * followed >= len(solved):
            label_run(labels, run)
            return


def label_run(labels: list[Label | None], run: list[Numbered]) -> None:
    """Turns every block of the run into an exercise's label."""
    for one in run:
        labels[one.index] = Label(Part.PROBLEM, one.rest, one.number, rule="number")


def followed_by_solution(labels: Sequence[Label | None], places: Sequence[int]) -> int:
    """Counts the places with a solution, and no other exercise's label, before the next place."""
    ends = [*places[1:], len(labels)]
    count = 0
    for place, end in zip(places, ends, strict=True):
        first = next((label.part for label in labels[place + 1 : end] if label and label.part is not Part.ASIDE), None)
        count += first in SOLVES
    return count


# A full stop must be followed by a space or a letter: `3.5` is a number and not item 3.
_LEADING = re.compile(
    r"(?:#\s?)?[(\[]?(?P<number>\d{1,4}(?:\.\d{1,3}){0,2})\s?(?:[):\]]+\s*|\.[.):\]]*(?:\s+|(?=[^\d\s])))", re.DOTALL
)
_HASH = re.compile(r"#\s?(?P<number>\d{1,4})\s+(?=\S)")
_ALONE = re.compile(r"(?:#\s?)?[(\[]?(?P<number>\d{1,4}(?:\.\d{1,3}){0,2})\s?[.):\]]+")
MAX_ALONE = 16


@dataclass(frozen=True, slots=True)
class Numbered:
    """A block that begins with a number, or a labelled one."""

    index: int
    number: str
    rest: str
    """Text of the block without the number."""
    source: tuple[str, int]
    """Style of numbering and depth of nesting: equal for members of one run."""


def leading_number(block: Block, index: int) -> Numbered | None:
    """The number that the block's text begins with."""
    if block.kind not in ("paragraph", "item", "term"):
        return None
    number, rest = strip_number(block.text)
    if number:
        return Numbered(index, number, rest, ("text" if rest else "alone", block.depth))
    found = _HASH.match(block.text)
    return found and Numbered(index, found["number"], block.text[found.end() :], ("text", block.depth))


def strip_number(text: str) -> tuple[str, str]:
    """(number, rest) of a text that is or begins with a number and a sign; an empty number where there is none."""
    if len(text) <= MAX_ALONE and (alone := _ALONE.fullmatch(text)):
        return alone["number"], ""
    found = _LEADING.match(text)
    return (found["number"], text[found.end() :]) if found and found.end() < len(text) else ("", text)


def labelled_numbers(labels: Sequence[Label | None], parts: Iterable[Part]) -> list[Numbered]:
    """Returns labels of these parts that have a number."""
    wanted = frozenset(parts)
    return [
        Numbered(index, label.number, label.rest, ("label", 0))
        for index, label in enumerate(labels)
        if label and label.part in wanted and label.number
    ]


def runs(numbered: Iterable[Numbered], is_gapless: bool) -> list[list[Numbered]]:
    """Returns ascending sequences of one source, in order of their beginning; a restart begins the next run."""
    found: list[list[Numbered]] = []
    latest: dict[tuple[str, int], list[Numbered]] = {}
    for one in numbered:
        own = latest.get(one.source)
        if own and _follows(own[-1].number, one.number, is_gapless):
            own.append(one)
        else:
            latest[one.source] = [one]
            found.append(latest[one.source])
    return found


def _follows(before: str, after: str, is_gapless: bool) -> bool:
    one, two = (tuple(map(int, re.findall(r"\d+", number))) for number in (before, after))
    if not one or not two:
        return False
    if not is_gapless or len(one) != len(two):
        return one < two
    # One number may be missing, because pages leave exercises out.
    return one[:-1] == two[:-1] and one[-1] < two[-1] <= one[-1] + 2


def numbered_headings(page: Page) -> list[Numbered]:
    """Returns headings that begin with a number, including those of chapters."""
    found = []
    for index, block in enumerate(page.blocks):
        number, rest = strip_number(block.text) if block.kind == "heading" else ("", "")
        if number and rest:
            found.append(Numbered(index, number, rest, ("heading", block.level)))
    return found


def numbered_blocks(page: Page, start: int, end: int) -> list[Numbered]:
    """Returns blocks from `start` to `end` that begin with a number."""
    found = (leading_number(page.blocks[index], index) for index in range(start, end))
    return [one for one in found if one]


_SEVERAL = r"(?:exercises|problems|questions)"
# "Use the data to answer the next six exercises": written numbers that pages are known to use.
_COUNTED = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve")
_COUNTS = dict(zip(_COUNTED, (*range(2, 11), 12), strict=True))
_INSTRUCTION = re.compile(
    rf"(?:for|in|with)\s+(?:each\s+of\s+)?(?:the\s+)?(?:following|next)\b(?=.{{0,60}}\b{_SEVERAL})"
    rf"|(?:for|in)\s+{_SEVERAL}\s+#?\d"
    rf"|{_SEVERAL}\s+\d{{1,4}}\s*(?:-|–|—|to|through|and)\s*\d{{1,4}}\s*[:.]?"
    rf"|(?:use|refer|consider|read)\b(?=.{{0,200}}\b(?:next|following)\s+(?:\w+\s+)?{_SEVERAL})"
    r"|(?:directions|instructions)\s*[:.]",
    re.IGNORECASE | re.DOTALL,
)
ASKS = re.compile(
    r"\?|\b(?:prove|show|find|give|compute|calculate|describe|suppose|consider|determine|explain|solve|design|argue"
    r"|simplify|evaluate|write|name|state|list|factor|sketch|graph)\b",
    re.IGNORECASE,
)
"""Words of a text that asks for an action."""
_RANGE = re.compile(rf"{_SEVERAL}\s+#?(\d{{1,4}})\s*(?:-|–|—|to|through|and)\s*#?(\d{{1,4}})", re.IGNORECASE)
_NEXT = re.compile(rf"\bnext\s+(\w+)\s+{_SEVERAL}", re.IGNORECASE)
MAX_CHARACTERS = 1_500


def is_instruction(text: str) -> bool:
    """True for an instruction for several exercises."""
    return len(text) <= MAX_CHARACTERS and bool(_INSTRUCTION.match(text))


def instruction_blocks(page: Page, labels: Sequence[Label | None]) -> list[int]:
    """Finds shared instructions: outside each box that an exercise's label opens, and with an exercise after them."""
    found = []
    problems = [index for index, label in enumerate(labels) if label and label.part is Part.PROBLEM]
    inside, following = 0, 0
    for index in range(problems[-1] if problems else 0):
        if index == problems[following]:
            following += 1
            limit = problems[following] if following < len(problems) else len(page.blocks)
            label = labels[index]
            inside = max(inside, page.box(index, limit) or 0, label.end or 0 if label else 0)
        elif index >= inside and labels[index] is None and is_instruction(page.blocks[index].text):
            found.append(index)
    return found


def instruction_scope(text: str) -> tuple[int | None, tuple[int, int] | None]:
    """Returns (how many exercises, first and last number) that the instruction names; None where it names none."""
    named = _RANGE.search(text)
    following = _NEXT.search(text)
    count = None
    if following:
        word = following[1].lower()
        count = int(word) if word.isdecimal() and len(word) <= 3 else _COUNTS.get(word)
    return count, (int(named[1]), int(named[2])) if named else None


IMAGE = re.compile(r"!\[[^\n]*?\]\([^()\n]*\)")
_WITHOUT_WORDS = re.compile(r"\{:[^{}\n]*\}")
"""Attribute lists that a Markdown converter left in the text."""


@dataclass(frozen=True, slots=True)
class Section:
    """A label and the blocks it governs."""

    part: Part
    label: Label
    start: int
    end: int
    text: str


# A search through all labels for each label would be quadratic in a long page.
class LabelIndex:
    """The places of labels by part: `next` in logarithmic time, so that long pages stay linear."""

    def __init__(self, labels: Sequence[Label | None]) -> None:
        self._places = {
            part: [index for index, label in enumerate(labels) if label and label.part is part] for part in Part
        }

    def next(self, index: int, limit: int, parts: frozenset[Part]) -> int:
        """Returns the first label of these parts after `index`, at most `limit`."""
        first = limit
        for part in parts:
            places = self._places[part]
            place = bisect_left(places, index + 1)
            if place < len(places):
                first = min(first, places[place])
        return first


_EXERCISES = frozenset([Part.PROBLEM, Part.BOUNDARY])
_ALL = frozenset(Part)


def find_sections(page: Page, labels: Sequence[Label | None]) -> list[Section]:
    """Returns the sections of all labels in order; asides within a section are part of it."""
    index_of = LabelIndex(labels)
    sections: list[Section] = []
    total = len(page.blocks)
    exercise_end = total
    for index, label in enumerate(labels):
        if label is None or (label.part is Part.ASIDE and sections and index < sections[-1].end):
            continue
        if label.part is Part.BOUNDARY:
            end = label.end or index + 1
            sections.append(Section(label.part, label, index, end, ""))
            continue
        if label.part is Part.PROBLEM:
            exercise_end = _extent(page, labels, index_of, index, total, _EXERCISES)
            end = index_of.next(index, exercise_end, _ALL)
        else:
            # A toggle that ends the box of its exercise opens a part that follows the box.
            is_last = page.blocks[index].kind == "toggle" and index + 1 == exercise_end and not label.rest
            limit = exercise_end if index < exercise_end and not is_last else total
            end = _extent(page, labels, index_of, index, limit, _ALL)
        sections.append(Section(label.part, label, index, end, section_text(page, label, index, end)))
    return sections


def _extent(
    page: Page, labels: Sequence[Label | None], index_of: LabelIndex, index: int, limit: int, stops: frozenset[Part]
) -> int:
    """Returns the end (exclusive) of the text that the label at `index` governs; `stops` are the labels that end it."""
    label = labels[index]
    assert label is not None
    # A hint inside the box of a solution does not end it. Hints end only parts without a box.
    stop = index_of.next(index, limit, stops - {Part.ASIDE})
    if label.end is not None:
        return min(label.end, stop)
    box = page.box(index, stop)
    if box:
        return box
    stop = index_of.next(index, stop, stops)
    block = page.blocks[index]
    end = min(stop, page.outer_end[index])
    if block.kind == "toggle" and end == index + 1 < stop and not label.rest:
        # A button alone in its box opens the box that follows.
        opened = [last for last in page.spans.get(end, []) if last <= stop]
        return max(opened, default=end)
    for i in range(index + 1, end):
        other = page.blocks[i]
        is_boundary = other.level > 0 and (not block.level or other.level <= block.level)
        is_rule = other.kind == "rule" and (i > index + 1 or label.rest)  # right below a label it is decoration
        if is_rule or (is_boundary and not labels[i]):
            return i
    return end


def section_text(page: Page, label: Label, start: int, end: int) -> str:
    """Returns the governed text, one block per paragraph, list items with a dash, without site furniture."""
    lines = [label.rest] if label.rest and not is_furniture(label.rest) else []
    for block in page.blocks[start + 1 : end]:
        if block.kind != "rule" and not is_furniture(block.text):
            lines.append(f"- {block.text}" if block.kind == "item" else block.text)
    text = without_descriptions("\n".join(lines).strip())
    if label.part in (Part.SOLUTION, Part.ANSWER):
        return "" if is_placeholder(text) else text
    return text


def without_descriptions(text: str) -> str:
    """Images beside text shrink to `![]()`: they still show that the text depends on a figure, and their descriptions
    do not count as the author's words. A part with only images keeps them."""
    return IMAGE.sub("![]()", text) if "![" in text and _WITHOUT_WORDS.sub("", IMAGE.sub("", text)).strip() else text
