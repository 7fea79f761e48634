"""Turns blocks into exercises: finds the solution, answer and instruction that belong to each problem.

A solution belongs to the exercise in whose box it is, or that it follows without a gap. Of several the first counts. An
exercise without a label is the text between the last boundary and a toggle that shows a solution, or a quotation that
the rest of its section solves.

Answer keys ("Answers to Odd-Numbered Exercises") collect answers elsewhere on the page. A key is a heading in the
plural over numbered entries whose numbers are those of exercises. Where a page has several keys or a key starts again
at 1, runs of entries are matched with runs of exercises in order.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from stages.extract_web.blocks import Page
from stages.extract_web.labels import ANSWER_NOUNS, KEYS, Label, Part, is_furniture
from stages.extract_web.page_labels import (
    ASKS,
    SOLVES,
    Numbered,
    Section,
    find_sections,
    instruction_scope,
    label_run,
    labelled_numbers,
    leading_number,
    numbered_blocks,
    page_labels,
    runs,
    section_text,
    strip_number,
)

MAX_LABEL_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Exercise:
    """The page's content for one exercise; None where it has none."""

    problem: str
    solution: str | None
    answer: str | None
    number: str
    instructions: str = ""
    """The page's instruction for this exercise and its neighbours, if it precedes them."""
    rule: str = "marked"
    """How problem and solution were recognised and joined: see candidates.py."""
    labels: tuple[str, ...] = ()
    """The labels of problem and solution as the page has them."""
    doubts: tuple[str, ...] = ()
    """Checks that the pair failed."""


@dataclass(frozen=True, slots=True)
class _Pair:
    head: Section
    own: list[Section]


def find_exercises(page: Page) -> list[Exercise]:
    """Returns every exercise of the page in reading order, including those without a solution."""
    labels = page_labels(page)
    # Keys first: their entries look like labelled exercises until `apply_keys` removes those labels.
    keyed = apply_keys(page, labels)
    pairs = _pairs(page, find_sections(page, labels))
    if page.quoted:
        pairs = _quoted(page, pairs)
    starts = [*(pair.head.start for pair in pairs[1:]), len(page.blocks)]
    exercises = [_exercise(page, pair, keyed, following) for pair, following in zip(pairs, starts, strict=False)]
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
    """Returns the solutions, answers and asides that follow the section `head` before the next exercise.

    They must follow without a gap: prose between an exercise and a solution means that they are unrelated; code and a
    line with the author's name do not.
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
    """Returns the text right before a solution without a labelled exercise: back to a heading, rule or the last
    section.

    A heading right before the solution is itself the problem, when no text is between.
    """
    start = section.start
    while start > last_end and page.blocks[start - 1].kind not in ("heading", "rule"):
        start -= 1
        # The question begins where its box does. Text before the box surrounds it.
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
    """Finds sections that begin with a quotation: the quotation is the problem, the rest solves it.

    Most exercises of the page must do so, and none of them may label its solution. On a page without exercises, the
    page itself must begin with a quotation that asks.
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
    """A lone answer also counts as the solution, as sites use the words loosely."""
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
    return Exercise(head.text, solution, answer, head.label.number, "", f"{head.label.rule}+{rule}", labels, doubts)


def _has_text_after(page: Page, pair: _Pair, following: int) -> bool:
    """True where the exercise's box continues with text after its last part."""
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
    """Returns place of an exercise -> its instructions, which apply until the next instructions or another heading."""
    shared: dict[int, str] = {}
    places = [
        # Boundaries with an end are answer keys, those without are instructions.
        index
        for index, label in enumerate(labels)
        if label and label.part is Part.BOUNDARY and label.end is None
    ]
    if not places:
        return shared
    pair = 0
    for place, following in zip(places, [*places[1:], len(page.blocks)], strict=True):
        end = next(
            (i for i in range(place + 1, following) if page.blocks[i].kind == "heading" and not labels[i]), following
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
            own = pairs[pair].head.label.number
            if numbers is None or not own.isdecimal() or numbers[0] <= int(own) <= numbers[1]:
                shared[pair] = text
            number += 1
            pair += 1
    return shared


_SEVERAL = r"(?:exercises|problems|questions|examples|tests?|quiz(?:zes)?|worksheets?|activities|reviews?|sets?)"
# "Jump to the answers" at the top of a page is a link to the key and not the key.
_KEY = re.compile(
    rf"\W*(?!(?:jump|go|skip|scroll|link|back|see|click)\b)(?:(?:[\w.’'-]+:?|&)\s+){{0,4}}{KEYS}(?:\s+(?:and|&)\s+[a-z]{{4,12}})?"
    r"(?:\s+(?:key|section|manual|page))?"
    rf"(?:\s+(?:to|for|of)\s+(?:[\w.’'-]+\s+){{0,5}}{_SEVERAL})?(?:\s+[\d.–-]+)?\W*",
    re.IGNORECASE,
)
_ANSWERS = re.compile(rf"key|{ANSWER_NOUNS}|answer", re.IGNORECASE)
MAX_HEADER_CHARACTERS = 80
MAX_RUNS = 100
"""Most runs of a page that are compared: the cost is quadratic."""
MAX_LEVEL = 9
"""Above any heading's rank."""
_NO_WORD = re.compile(r"\W+")
MIN_MATCHED = 2
# Not every number of a key has to be among the exercises: a page may show only some of them.
MIN_MATCHED_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class Entry:
    """One answer of a key."""

    number: str
    text: str
    section: str = ""
    """For the first entry of a run: the heading within the key above the run."""


@dataclass(frozen=True, slots=True)
class _Key:
    start: int
    end: int
    part: Part
    runs: list[list[Entry]]


@dataclass(frozen=True, slots=True)
class Keyed:
    """A key's content for an exercise."""

    part: Part
    text: str
    title: str = ""
    """The key's title and the section that it names."""
    doubts: tuple[str, ...] = ()


KeyedAnswers = dict[int, Keyed]
"""First block of an exercise -> the key's content for it."""


def apply_keys(page: Page, labels: list[Label | None]) -> KeyedAnswers:
    """Finds the keys, labels the exercises they answer, and removes the keys' labels."""
    keyed: KeyedAnswers = {}
    sources: set[tuple[str, int]] = set()
    headers = [index for index in range(len(labels)) if _is_header(page, labels, index)]
    exercises = sum(bool(label) and label.part is Part.PROBLEM for label in labels)
    # Many such titles are not keys: a page may label each solution by "Answers" below its exercise.
    if not headers or len(headers) > max(2, exercises / 3):
        return keyed
    keys = [key for key in (_read_key(page, labels, header) for header in headers) if key]
    for key in keys:
        others = [(other.start, other.end) for other in keys]
        matched = _match(page, labels, key, others, keyed)
        if not matched:
            continue
        for run, entries in matched:
            # Blocks that are merely numbered become exercises because a key answers them.
            if run[0].source[0] != "label":
                label_run(labels, run)
                sources.add(run[0].source)
            texts = {entry.number: entry.text for entry in entries}
            title = " / ".join(filter(None, (page.blocks[key.start].text, entries[0].section)))
            doubts = _doubts(page, labels, run, entries, keys)
            for one in run:
                if texts.get(one.number):
                    keyed[one.index] = Keyed(key.part, texts[one.number], title, doubts)
        # The entries of a key are not exercises themselves, and its title labels no solution.
        labels[key.start : key.end] = [None] * (key.end - key.start)
        labels[key.start] = Label(Part.BOUNDARY, "", "", end=key.end)
    if keyed:
        _label_siblings(page, labels, sources)
    return keyed


def _doubts(
    page: Page, labels: list[Label | None], run: list[Numbered], entries: list[Entry], keys: Sequence[_Key]
) -> tuple[str, ...]:
    """Returns why the entries may answer other exercises: the run is not under their section, or they name none and the
    page numbers others alike."""
    name = _name(entries[0].section)
    if name and name in _named_sections(page, run):
        return ()
    is_of_page = any(
        block.kind == "heading" and index < keys[0].start and _name(block.text) == name
        for index, block in enumerate(page.blocks)
    )
    if name and is_of_page:
        return ("other_section",)
    if len(keys) > 1 or len(keys[0].runs) > 1:
        return ()
    start, end = keys[0].start, keys[0].end
    if run[0].source[0] == "label":
        alike = labelled_numbers(
            [None if start <= i < end else label for i, label in enumerate(labels)], [Part.PROBLEM]
        )
    else:
        alike = [
            one
            for one in numbered_blocks(page, 0, len(page.blocks))
            if one.source == run[0].source and not start <= one.index < end
        ]
    again = sum(one.number == entries[0].number for one in alike)
    return ("numbers_restart",) if again > 1 else ()


def _label_siblings(page: Page, labels: list[Label | None], sources: Collection[tuple[str, int]]) -> None:
    """Sections that no key answers: runs outside the keys, numbered like the answered ones, most of which ask."""
    ends = [label.end if label and label.part is Part.BOUNDARY else None for label in labels]
    free, end = [], 0
    for index, label in enumerate(labels):
        end = max(end, ends[index] or 0)
        if label is None and index >= end:
            free.append(index)
    found = [one for index in free if (one := leading_number(page.blocks[index], index))]
    for run in runs([one for one in found if one.source in sources], is_gapless=True):
        if len(run) >= MIN_MATCHED and 2 * sum(bool(ASKS.search(one.rest)) for one in run) > len(run):
            label_run(labels, run)


def _is_header(page: Page, labels: Sequence[Label | None], index: int) -> bool:
    block = page.blocks[index]
    is_title = block.kind in ("heading", "term", "toggle", "paragraph")
    if not is_title or len(block.text) > MAX_HEADER_CHARACTERS or not _KEY.fullmatch(block.text):
        return False
    label = labels[index]
    return label is None or (label.part in SOLVES and not label.number and not label.rest)


def _read_key(page: Page, labels: Sequence[Label | None], header: int) -> _Key | None:
    end = _region_end(page, labels, header)
    block = page.blocks[header]
    part = Part.ANSWER if _ANSWERS.search(block.lead or block.text) else Part.SOLUTION
    found = _entries(page, labels, header + 1, end)
    return _Key(header, end, part, found) if found else None


def _region_end(page: Page, labels: Sequence[Label | None], header: int) -> int:
    """Returns the end of the header's box, or the next heading of its rank that is not an entry."""
    block = page.blocks[header]
    end = page.box(header, len(page.blocks)) or len(page.blocks)
    for index in range(header + 1, end):
        other = page.blocks[index]
        is_higher = other.kind == "heading" and (not block.level or other.level <= block.level)
        # An entry may itself be a heading, such as "Exercise 3" below "Answers". It does not end the key.
        if (is_higher and not (labels[index] and labels[index].number)) or _is_header(page, labels, index):
            return index
    return end


def _entries(page: Page, labels: Sequence[Label | None], start: int, end: int) -> list[list[Entry]]:
    labelled = labelled_numbers(
        [label if start <= index < end else None for index, label in enumerate(labels)], [Part.PROBLEM, *SOLVES]
    )
    numbered = numbered_blocks(page, start, end)
    # Labelled headings over many more numbered lines are the sections of a key and not its entries.
    are_sections = all(page.blocks[one.index].kind == "heading" for one in labelled)
    if labelled and not (are_sections and len(numbered) > 2 * len(labelled)):
        # A solution without a number belongs to the text above it. Then this is a list of exercises and not a key.
        if any(_stands_alone(labels, index) for index in range(start, end)):
            return []
        return _texts(page, runs(labelled, is_gapless=False), start - 1, end)
    # Only numbers of the first one's kind: an entry may have numbered steps.
    top = [one for one in numbered if one.source == numbered[0].source]
    return _texts(page, runs(top, is_gapless=False), start - 1, end)


def _stands_alone(labels: Sequence[Label | None], index: int) -> bool:
    """True for the label of a solution without a number, and without a number as a label right before it."""
    label, before = labels[index], labels[index - 1]
    is_numbered = before is not None and bool(before.number) and not before.rest
    return label is not None and label.part in SOLVES and not label.number and not is_numbered


def _texts(page: Page, found: list[list[Numbered]], start: int, end: int) -> list[list[Entry]]:
    places = sorted(one.index for run in found for one in run)
    last = places[-1] if places else end
    # A rule below the last entry ends it, because the foot of the page follows.
    end = next((index for index in range(last, end) if page.blocks[index].kind == "rule"), end)
    following = dict(pairwise([*places, end]))
    headings = [index for index in range(places[0] if places else end, end) if page.blocks[index].kind == "heading"]

    def entry(one: Numbered) -> Entry:
        stop = following[one.index]
        place = bisect_right(headings, one.index)
        # An entry ends at the next title within the key, unless the entries are headings themselves.
        if page.blocks[one.index].kind != "heading" and place < len(headings):
            stop = min(stop, headings[place])
        text = section_text(page, Label(Part.ANSWER, one.rest, ""), one.index, stop)
        title = next(_titles_above(page, one.index, start), "") if one in firsts else ""
        return Entry(one.number, text, title)

    firsts = [run[0] for run in found[:MAX_RUNS] if run]
    return [[entry(one) for one in run] for run in found[:MAX_RUNS]]


def _match(
    page: Page, labels: Sequence[Label | None], key: _Key, regions: list[tuple[int, int]], keyed: KeyedAnswers
) -> list[tuple[list[Numbered], list[Entry]]]:
    """Returns runs of exercises with the runs of entries that answer them; empty when the key answers nothing.

    A key of one run answers the nearest run before it, one of several answers runs in their order.
    """
    is_free = [index not in keyed for index in range(len(labels))]
    for start, end in regions:
        is_free[start:end] = [False] * (end - start)
    outside = [label if is_free[index] else None for index, label in enumerate(labels)]
    merely = [
        one for one in numbered_blocks(page, 0, len(page.blocks)) if is_free[one.index] and labels[one.index] is None
    ]
    for candidates in (
        runs(labelled_numbers(outside, [Part.PROBLEM]), is_gapless=False),
        # Mere numbers must have no gaps, since any list or table of contents has some numbers.
        runs(merely, is_gapless=True),
    ):
        if len(key.runs) == 1:
            before = [run for run in candidates if run[0].index < key.start]
            # The nearest run before the key first, then those after it.
            candidates = [*reversed(before), *candidates[len(before) :]]
        matched = _matched_in_order(page, key, candidates[:MAX_RUNS])
        if matched:
            return matched
    return []


def _titles_above(page: Page, index: int, start: int) -> Iterator[str]:
    """Yields the headings above the block, the nearest first, none at `start` or before."""
    level = MAX_LEVEL
    for place in range(index - 1, start, -1):
        block = page.blocks[place]
        if block.kind == "heading" and block.level < level:
            level = block.level
            yield block.text


def _named_sections(page: Page, run: Sequence[Numbered]) -> frozenset[str]:
    return frozenset(map(_name, _titles_above(page, run[0].index, -1)))


def _name(title: str) -> str:
    return _NO_WORD.sub("", title).lower()


def _matched_in_order(
    page: Page, key: _Key, candidates: list[list[Numbered]]
) -> list[tuple[list[Numbered], list[Entry]]]:
    """Matches runs of entries with runs of exercises, in order. Entries under a heading that occurs elsewhere on the
    page only answer exercises under that heading."""
    matched: list[tuple[list[Numbered], list[Entry]]] = []
    sections = [_named_sections(page, run) for run in candidates]
    place = 0
    for entries in key.runs:
        numbers = {entry.number for entry in entries}
        named = _name(entries[0].section)
        is_named = bool(named) and any(named in titles for titles in sections)
        for offset, run in enumerate(candidates[place:]):
            if is_named and named not in sections[place + offset]:
                continue
            shared = numbers & {one.number for one in run}
            if len(shared) >= min(MIN_MATCHED, len(numbers)) and len(shared) >= MIN_MATCHED_SHARE * len(numbers):
                matched.append((run, entries))
                place += offset + 1
                break
    total = sum(len(entries) for entries in key.runs)
    answered = sum(len(entries) for _, entries in matched)
    return matched if answered >= min(MIN_MATCHED, total) and 2 * answered >= total else []
