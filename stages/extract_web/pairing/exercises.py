"""Blocks to exercises: which solution, answer and instruction belongs to which problem.

A solution belongs to the exercise in whose box it stands, or that it follows without a gap. Of several the first
counts. An exercise without a label is what stands between the last boundary and a toggle that shows a solution, or a
quotation that the rest of its section works out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stages.extract_web.labels.blocks import Page
from stages.extract_web.labels.furniture import is_furniture
from stages.extract_web.labels.instructions import ASKS, instruction_scope
from stages.extract_web.labels.labels import Label, Part
from stages.extract_web.labels.numbering import strip_number
from stages.extract_web.labels.page_labels import SOLVES, page_labels
from stages.extract_web.pairing.answer_keys import KeyedAnswers, apply_keys
from stages.extract_web.pairing.sections import Section, find_sections, section_text

MAX_LABEL_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Exercise:
    """What a page says about one exercise; None where it says nothing."""

    problem: str
    solution: str | None
    answer: str | None
    number: str
    instructions: str = ""
    """What the page tells to do in this exercise and its neighbours, where that stands before them."""
    rule: str = "marked"
    """How problem and solution were found and joined: see `confidence.py`."""
    labels: tuple[str, ...] = ()
    """The labels of problem and solution as the page has them."""
    doubts: tuple[str, ...] = ()
    """Checks that the pair did not pass."""


@dataclass(frozen=True, slots=True)
class _Pair:
    head: Section
    own: list[Section]


def find_exercises(page: Page) -> list[Exercise]:
    """Every exercise of the page in reading order, those without a solution included."""
    labels = page_labels(page)
    keyed = apply_keys(page, labels)
    pairs = _pairs(page, find_sections(page, labels))
    if page.quoted:
        pairs = _quoted(page, pairs)
    starts = [*(pair.head.start for pair in pairs[1:]), len(page.blocks)]
    exercises = [
        _exercise(page, pair, keyed, following) for pair, following in zip(pairs, starts, strict=False)
    ]
    shared = _instructions(page, labels, pairs)
    return [
        replace(exercise, instructions=shared.get(index, ""))
        for index, exercise in enumerate(exercises)
        if exercise.problem
    ]


def _pairs(page: Page, sections: list[Section]) -> list[_Pair]:
    pairs: list[_Pair] = []
    index = 0
    last_end = 0
    while index < len(sections):
        section = sections[index]
        count = 1
        if section.part is Part.PROBLEM:
            own = _owned(page, sections, index)
            pairs.append(_Pair(section, own))
            count += len(own)
        elif section.part in SOLVES:
            own = [section]
            problem = _unlabelled_problem(page, section, last_end)
            if problem:
                pairs.append(_Pair(problem, own))
            count = len(own)
        last_end = max(last_end, *(one.end for one in sections[index : index + count]))
        index += count
    return pairs


def _owned(page: Page, sections: list[Section], head: int) -> list[Section]:
    """The solutions, answers and asides that follow the section `head` before the next exercise.

    They must follow without a gap: prose between an exercise and a solution means that they are strangers; code, a
    line on who wrote it does not.
    """
    own: list[Section] = []
    end = sections[head].end
    for section in map(sections.__getitem__, range(head + 1, len(sections))):
        if section.part in (Part.PROBLEM, Part.BOUNDARY):
            break
        between = page.blocks[end : section.start]
        if any(block.kind != "code" and block.text and not is_furniture(block.text) for block in between):
            break
        own.append(section)
        end = max(end, section.end)
    return own


def _unlabelled_problem(page: Page, section: Section, last_end: int) -> Section | None:
    """Text right before a solution that no labelled exercise owns: back to a heading, a rule or the last section.

    A heading right before the solution is itself the problem, when nothing stands between.
    """
    start = section.start
    while start > last_end and page.blocks[start - 1].kind not in ("heading", "rule"):
        start -= 1
        if page.blocks[start].kind == "paragraph" and page.outer_end[start] != page.outer_end[start + 1]:
            break
    if start == section.start and start > last_end and page.blocks[start - 1].kind == "heading":
        start -= 1
    text = section_text(page, Label(Part.PROBLEM, "", ""), start - 1, section.start)
    if not text:
        return None
    number, text = strip_number(text) if page.blocks[start].kind == "heading" else ("", text)
    return Section(Part.PROBLEM, Label(Part.PROBLEM, "", number, rule="none"), start, section.start, text)


def _quoted(page: Page, pairs: list[_Pair]) -> list[_Pair]:
    """Sections that begin with a quotation: the quotation is the problem, the rest works it out.

    Only where most exercises of the page do so and none of them labels its solution; on a page without exercises
    where the page itself begins with a quotation that asks.
    """
    blank = Label(Part.PROBLEM, "", "", rule="none")
    if not pairs:
        whole = Section(Part.PROBLEM, blank, -1, len(page.blocks), "")
        split = _split_at_quote(page, _Pair(whole, []), "none")
        return [split] if split and split.own and ASKS.search(split.head.text) else pairs
    splits = [_split_at_quote(page, pair) for pair in pairs]
    if 2 * sum(split is not None for split in splits) < len(pairs):
        return pairs
    return [split or pair for split, pair in zip(splits, pairs, strict=True)]


def _split_at_quote(page: Page, pair: _Pair, rule: str = "quote") -> _Pair | None:
    head = pair.head
    limit = max([head.end, *(section.end for section in pair.own)])
    first = head.start + 1
    while first < limit and page.blocks[first].kind == "heading":
        first += 1
    end = first
    while end < limit and end in page.quoted:
        end += 1
    if end == first or head.label.rest or (pair.own and pair.own[0].start == end):
        return None
    rule = "none" if head.label.rule == "none" else rule
    blank = Label(Part.PROBLEM, "", head.label.number, rule=rule)
    problem = section_text(page, blank, first - 1, end)
    worked = section_text(page, blank, end - 1, limit)
    solution = Section(Part.SOLUTION, Label(Part.SOLUTION, "", "", rule="quote"), end, limit, worked)
    return _Pair(Section(Part.PROBLEM, blank, head.start, end, problem), [solution] if worked else [])


def _exercise(page: Page, pair: _Pair, keyed: KeyedAnswers, following: int) -> Exercise:
    """A lone answer stands for the solution too, as sites use the words freely."""
    head = pair.head
    solution = _first_text(pair.own, Part.SOLUTION)
    answer = _first_text(pair.own, Part.ANSWER)
    found = keyed.get(head.start)
    is_keyed = bool(found) and solution is None and answer is None
    if found and found.part is Part.SOLUTION:
        solution = solution or found.text
    elif found:
        answer = answer or found.text
    solves = [section for section in pair.own if section.part in SOLVES]
    if found and is_keyed:
        rule, labels, doubts = "key", (found.title,), found.doubts
    else:
        rule = solves[0].label.rule if solves else "none"
        labels = tuple(_label_text(page, section) for section in solves)
        doubts = ("text_after",) if solves and _has_text_after(page, pair, following) else ()
    labels = tuple(label[:MAX_LABEL_CHARACTERS] for label in (_label_text(page, head), *labels))
    solution = solution if solution is not None else answer
    return Exercise(
        head.text, solution, answer, head.label.number, "", f"{head.label.rule}+{rule}", labels, doubts
    )


def _has_text_after(page: Page, pair: _Pair, following: int) -> bool:
    """True where the exercise's own box goes on in text after its last part."""
    start, end = pair.head.start, max(section.end for section in pair.own)
    boxes = [page.outer_end[start], *page.spans.get(start, ())] if start >= 0 else []
    if not any(end < box <= following and box < len(page.blocks) for box in boxes):
        return False
    block = page.blocks[end]
    return block.kind in ("paragraph", "item", "table") and not is_furniture(block.text)


def _first_text(sections: list[Section], part: Part) -> str | None:
    return next((section.text for section in sections if section.part is part and section.text), None)


def _label_text(page: Page, section: Section) -> str:
    if section.label.rule == "none" or section.start < 0:
        return ""
    text = page.blocks[section.start].text
    rest = section.label.rest.partition("\n")[0]
    return (text[: text.find(rest)] if rest and rest in text else text).strip()


def _instructions(page: Page, labels: list[Label | None], pairs: list[_Pair]) -> dict[int, str]:
    """Place of an exercise -> the instructions that hold for it: until the next instructions or another heading."""
    shared: dict[int, str] = {}
    places = [
        index
        for index, label in enumerate(labels)
        if label and label.part is Part.BOUNDARY and label.end is None
    ]
    if not places:
        return shared
    pair = 0
    for place, following in zip(places, [*places[1:], len(page.blocks)], strict=True):
        end = next(
            (i for i in range(place + 1, following) if page.blocks[i].kind == "heading" and not labels[i]),
            following,
        )
        while pair < len(pairs) and pairs[pair].head.start < place:
            pair += 1
        first = pairs[pair].head.start if pair < len(pairs) else place
        if first >= end:
            continue
        text = section_text(page, Label(Part.BOUNDARY, "", ""), place - 1, first)
        count, numbers = instruction_scope(text)
        number = 0
        while pair < len(pairs) and pairs[pair].head.start < end and (count is None or number < count):
            if numbers is None or _is_between(pairs[pair].head.label.number, numbers):
                shared[pair] = text
            number += 1
            pair += 1
    return shared


def _is_between(number: str, numbers: tuple[int, int]) -> bool:
    return not number.isdecimal() or numbers[0] <= int(number) <= numbers[1]
