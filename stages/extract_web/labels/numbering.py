"""Numbers at the beginning of blocks, and runs of them: how pages that label with nothing but numbers are read."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stages.extract_web.labels.blocks import Block, Page
from stages.extract_web.labels.labels import Label, Part

_LEADING = re.compile(
    r"(?:#\s?)?[(\[]?(?P<number>\d{1,4}(?:\.\d{1,3}){0,2})\s?(?:[):\]]+\s*|\.[.):\]]*(?:\s+|(?=[^\d\s])))",
    re.DOTALL,
)
_HASH = re.compile(r"#\s?(?P<number>\d{1,4})\s+(?=\S)")
_ALONE = re.compile(r"(?:#\s?)?[(\[]?(?P<number>\d{1,4}(?:\.\d{1,3}){0,2})\s?[.):\]]+")
_RUN_IN = re.compile(r"(?:^|(?<=[\s;,]))[(\[]?(\d{1,4})[.)\]]+\s+(?=\S)")
_TABLE_ROW = re.compile(r"[(\[]?(\d{1,4})[.):\]]*\s*\|\s*(\S.*)")
MAX_ALONE = 16
MIN_RUN_IN = 3
"""Numbers that a paragraph must count through to be read as a list."""

MAX_STRAYS = 3
"""Numbers out of order in a row that a run survives."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """A block that begins with a number, or a labelled one."""

    index: int
    number: str
    rest: str
    """Text of the block without the number."""
    source: tuple[str, int]
    """How it is numbered and how deeply nested: members of one run agree."""


def leading_number(block: Block, index: int) -> Numbered | None:
    """The number that a list shows before the block or that its text begins with."""
    if block.kind not in ("paragraph", "item", "cell", "term"):
        return None
    if block.number:
        return Numbered(index, block.number, block.text, ("list", block.depth))
    if len(block.text) <= MAX_ALONE and (alone := _ALONE.fullmatch(block.text)):
        return Numbered(index, alone["number"], "", ("alone", block.depth))
    found = _LEADING.match(block.text) or _HASH.match(block.text)
    if not found or found.end() == len(block.text):
        return None
    return Numbered(index, found["number"], block.text[found.end() :], ("text", block.depth))


def strip_number(text: str) -> tuple[str, str]:
    """(number, rest) of a text that is or begins with a number and a sign; an empty number where there is none."""
    if len(text) <= MAX_ALONE and (alone := _ALONE.fullmatch(text)):
        return alone["number"], ""
    found = _LEADING.match(text)
    return (found["number"], text[found.end() :]) if found and found.end() < len(text) else ("", text)


def labelled_numbers(labels: Sequence[Label | None], parts: Iterable[Part]) -> list[Numbered]:
    """Labels of these parts that carry a number."""
    wanted = frozenset(parts)
    return [
        Numbered(index, label.number, label.rest, ("label", 0))
        for index, label in enumerate(labels)
        if label and label.part in wanted and label.number
    ]


def runs(numbered: Iterable[Numbered], is_gapless: bool) -> list[list[Numbered]]:
    """Ascending sequences of one source, in order of their beginning; a restart begins the next run.

    A number out of order between two that follow each other is left out: a line of a solution may begin with one.
    """
    found: list[list[Numbered]] = []
    latest: dict[tuple[str, int], list[list[Numbered]]] = {}
    for one in numbered:
        own = latest.setdefault(one.source, [])
        if own and _is_next(own[-1][-1].number, one.number):
            own[-1].append(one)
        elif (run := _interrupted(own, one)) is not None:
            run.append(one)
        elif own and _follows(own[-1][-1].number, one.number, is_gapless):
            own[-1].append(one)
        else:
            own.append([one])
            found.append(own[-1])
            del own[:-MAX_STRAYS]
    return [run for run in found if run]


def _interrupted(own: list[list[Numbered]], one: Numbered) -> list[Numbered] | None:
    """The run that goes on with `one` once the strays since are taken out: its last members, or runs of one member."""
    for back in range(1, len(own) + 1):
        run = own[-back]
        if back > 1 and _is_next(run[-1].number, one.number):
            return run
        for strays in range(1, min(MAX_STRAYS, len(run))):
            last, stray = run[-1 - strays].number, run[-strays].number
            if _is_next(last, one.number) and not _is_next(last, stray):
                del run[-strays:]
                return run
        if len(run) > 1:
            return None
    return None


def longest_ascending(numbered: Sequence[Numbered]) -> list[Numbered]:
    """The longest ascending sequence of plain numbers, the others left out (patience sorting, n log n)."""
    tops: list[int] = []
    places: list[int] = []
    before: dict[int, int | None] = {}
    for place, one in enumerate(numbered):
        if not one.number.isdecimal():
            continue
        pile = bisect_left(tops, int(one.number))
        before[place] = places[pile - 1] if pile else None
        tops[pile : pile + 1] = [int(one.number)]
        places[pile : pile + 1] = [place]
    chain: list[Numbered] = []
    last = places[-1] if places else None
    while last is not None:
        chain.append(numbered[last])
        last = before[last]
    return chain[::-1]


def _follows(before: str, after: str, is_gapless: bool) -> bool:
    one, two = _digits(before), _digits(after)
    if not one or not two or len(one) != len(two):
        return one is not None and two is not None and before != after and one < two
    return _is_next(before, after) if is_gapless else one < two


def _is_next(before: str, after: str) -> bool:
    """True for the next number of one series, or the one after it."""
    one, two = _digits(before), _digits(after)
    if not one or not two or len(one) != len(two):
        return False
    return one[:-1] == two[:-1] and one[-1] < two[-1] <= one[-1] + 2


def _digits(number: str) -> tuple[int, ...] | None:
    found = re.findall(r"\d+", number)
    return tuple(map(int, found)) or None


def table_entries(block: Block) -> list[tuple[str, str]]:
    """(number, text) of each row of a table whose first column is numbers."""
    if block.kind != "table":
        return []
    rows = [_TABLE_ROW.fullmatch(line) for line in block.text.split("\n")]
    found = [(row[1], row[2]) for row in rows if row]
    return found if len(found) >= max(2, len(rows) - 1) else []


def run_in_entries(text: str) -> list[tuple[str, str]]:
    """(number, text) of each item of a list that runs on in one paragraph: `1. x=3 2. x=5 4. none`."""
    places = list(_RUN_IN.finditer(text))
    kept = []
    for place in places:
        if not kept or int(kept[-1][1]) < int(place[1]) <= int(kept[-1][1]) + 12:
            kept.append(place)
    if len(kept) < MIN_RUN_IN or kept[0].start() > 0 or len(kept) < len(places):
        return []
    ends = [place.start() for place in kept[1:]] + [len(text)]
    return [(place[1], text[place.end() : end].strip(" ;,\n")) for place, end in zip(kept, ends, strict=True)]


def numbered_blocks(page: Page, start: int, end: int) -> list[Numbered]:
    """Blocks from `start` to `end` that begin with a number."""
    found = (leading_number(page.blocks[index], index) for index in range(start, end))
    return [one for one in found if one]
