"""Answers collected at another place of the page ("Answers to Odd-Numbered Exercises"), matched by number.

A key is a heading in the plural over numbered entries whose numbers are those of exercises elsewhere on the page.
Where a page has several keys or a key starts again at 1, runs of entries go with runs of exercises in order.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stages.extract_web.labels.blocks import Page
from stages.extract_web.labels.instructions import ASKS
from stages.extract_web.labels.label_words import ANSWER_NOUNS, KEYS
from stages.extract_web.labels.labels import Label, Part
from stages.extract_web.labels.numbering import (
    Numbered,
    labelled_numbers,
    leading_number,
    numbered_blocks,
    runs,
)
from stages.extract_web.labels.page_labels import SOLVES, label_run
from stages.extract_web.pairing.sections import section_text

_SEVERAL = (
    r"(?:exercises|problems|questions|examples|tests?|quiz(?:zes)?|worksheets?|activities|reviews?|sets?)"
)
_KEY = re.compile(
    rf"\W*(?!(?:jump|go|skip|scroll|link|back|see|click)\b)(?:(?:[\w.’'-]+:?|&)\s+){{0,4}}{KEYS}(?:\s+(?:and|&)\s+[a-z]{{4,12}})?"
    r"(?:\s+(?:key|section|manual|page))?"
    rf"(?:\s+(?:to|for|of)\s+(?:[\w.’'-]+\s+){{0,5}}{_SEVERAL})?(?:\s+[\d.–-]+)?\W*",
    re.IGNORECASE,
)
_ANSWERS = re.compile(rf"key|{ANSWER_NOUNS}|answer", re.IGNORECASE)
MAX_HEADER_CHARACTERS = 80
MAX_RUNS = 100
"""Runs of a page that are looked at: their comparison costs the square."""
MAX_LEVEL = 9
"""Above any heading's rank."""
_NO_WORD = re.compile(r"\W+")
MIN_MATCHED = 2
MIN_MATCHED_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class Entry:
    """One answer of a key."""

    number: str
    text: str
    section: str = ""
    """Of a run's first entry: the heading within the key that the run stands under."""


@dataclass(frozen=True, slots=True)
class _Key:
    start: int
    end: int
    part: Part
    runs: list[list[Entry]]


@dataclass(frozen=True, slots=True)
class Keyed:
    """What a key says about an exercise."""

    part: Part
    text: str
    title: str = ""
    """The key's title and the section that it names."""
    doubts: tuple[str, ...] = ()


KeyedAnswers = dict[int, Keyed]
"""First block of an exercise -> what a key says about it."""


def apply_keys(page: Page, labels: list[Label | None]) -> KeyedAnswers:
    """Finds the keys, labels the exercises they answer, and takes the keys' own labels away."""
    keyed: KeyedAnswers = {}
    sources: set[tuple[str, int]] = set()
    headers = [index for index in range(len(labels)) if _is_header(page, labels, index)]
    exercises = sum(bool(label) and label.part is Part.PROBLEM for label in labels)
    if not headers or len(headers) > max(2, exercises / 3):
        return keyed
    keys = [key for key in (_read_key(page, labels, header) for header in headers) if key]
    for key in keys:
        others = [(other.start, other.end) for other in keys]
        matched = _match(page, labels, key, others, keyed)
        if not matched:
            continue
        for run, entries in matched:
            if run[0].source[0] != "label":
                label_run(labels, run)
                sources.add(run[0].source)
            texts = {entry.number: entry.text for entry in entries}
            title = " / ".join(filter(None, (page.blocks[key.start].text, entries[0].section)))
            doubts = _doubts(page, labels, run, entries, keys)
            for one in run:
                if texts.get(one.number):
                    keyed[one.index] = Keyed(key.part, texts[one.number], title, doubts)
        labels[key.start : key.end] = [None] * (key.end - key.start)
        labels[key.start] = Label(Part.BOUNDARY, "", "", end=key.end)
    if keyed:
        _label_siblings(page, labels, sources)
    return keyed


def _doubts(
    page: Page, labels: list[Label | None], run: list[Numbered], entries: list[Entry], keys: Sequence[_Key]
) -> tuple[str, ...]:
    """Why the entries may answer other exercises: their section is none that the run stands under, or they name none
    and the page numbers others alike."""
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
    """Sections that no key answers: runs numbered as the answered ones are, outside the keys, most of which ask."""
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
    """The end of the header's box, or the next heading of its rank that is no entry."""
    block = page.blocks[header]
    end = page.box(header, len(page.blocks)) or len(page.blocks)
    for index in range(header + 1, end):
        other = page.blocks[index]
        is_higher = other.kind == "heading" and (not block.level or other.level <= block.level)
        if (is_higher and not (labels[index] and labels[index].number)) or _is_header(page, labels, index):
            return index
    return end


def _entries(page: Page, labels: Sequence[Label | None], start: int, end: int) -> list[list[Entry]]:
    labelled = labelled_numbers(
        [label if start <= index < end else None for index, label in enumerate(labels)],
        [Part.PROBLEM, *SOLVES],
    )
    numbered = numbered_blocks(page, start, end)
    are_sections = all(page.blocks[one.index].kind == "heading" for one in labelled)
    if labelled and not (are_sections and len(numbered) > 2 * len(labelled)):
        if any(_stands_alone(labels, index) for index in range(start, end)):
            return []
        return _texts(page, runs(labelled, is_gapless=False), start - 1, end)
    top = [one for one in numbered if one.source == numbered[0].source]
    return _texts(page, runs(top, is_gapless=False), start - 1, end)


def _stands_alone(labels: Sequence[Label | None], index: int) -> bool:
    """True for the label of a solution that has no number, nor a number as a label of its own right before it."""
    label, before = labels[index], labels[index - 1]
    is_numbered = before is not None and bool(before.number) and not before.rest
    return label is not None and label.part in SOLVES and not label.number and not is_numbered


def _texts(page: Page, found: list[list[Numbered]], start: int, end: int) -> list[list[Entry]]:
    places = sorted(one.index for run in found for one in run)
    last = places[-1] if places else end
    end = next((index for index in range(last, end) if page.blocks[index].kind == "rule"), end)
    following = dict(pairwise([*places, end]))
    headings = [
        index for index in range(places[0] if places else end, end) if page.blocks[index].kind == "heading"
    ]

    def entry(one: Numbered) -> Entry:
        stop = following[one.index]
        place = bisect_right(headings, one.index)
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
    """Runs of exercises with the runs of entries that answer them; empty when the key answers nothing.

    A key of one run answers the nearest run before it, one of several answers runs in their order.
    """
    is_free = [index not in keyed for index in range(len(labels))]
    for start, end in regions:
        is_free[start:end] = [False] * (end - start)
    outside = [label if is_free[index] else None for index, label in enumerate(labels)]
    merely = [
        one
        for one in numbered_blocks(page, 0, len(page.blocks))
        if is_free[one.index] and labels[one.index] is None
    ]
    for candidates in (
        runs(labelled_numbers(outside, [Part.PROBLEM]), is_gapless=False),
        runs(merely, is_gapless=True),
    ):
        if len(key.runs) == 1:
            before = [run for run in candidates if run[0].index < key.start]
            candidates = [*reversed(before), *candidates[len(before) :]]
        matched = _matched_in_order(page, key, candidates[:MAX_RUNS])
        if matched:
            return matched
    return []


def _titles_above(page: Page, index: int, start: int) -> Iterator[str]:
    """The headings that the block stands under, the nearest first, none at `start` or before."""
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
    """Runs of entries with runs of exercises, in order. Entries under a heading that the page has elsewhere too answer
    exercises under that heading and no others."""
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
            if len(shared) >= min(MIN_MATCHED, len(numbers)) and len(shared) >= MIN_MATCHED_SHARE * len(
                numbers
            ):
                matched.append((run, entries))
                place += offset + 1
                break
    total = sum(len(entries) for entries in key.runs)
    answered = sum(len(entries) for _, entries in matched)
    return matched if answered >= min(MIN_MATCHED, total) and 2 * answered >= total else []
