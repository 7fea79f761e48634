"""Numbers at the beginning of blocks, and runs of them: how pages that label with nothing but numbers are read."""

from __future__ import annotations

import re
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
MAX_ALONE = 16


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
    """The number that the block's text begins with."""
    if block.kind not in ("paragraph", "item", "term"):
        return None
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
    """Ascending sequences of one source, in order of their beginning; a restart begins the next run."""
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


def numbered_headings(page: Page) -> list[Numbered]:
    """Headings that begin with a number and ask or tell something: those of chapters do so too."""
    found = []
    for index, block in enumerate(page.blocks):
        number, rest = strip_number(block.text) if block.kind == "heading" else ("", "")
        if number and rest:
            found.append(Numbered(index, number, rest, ("heading", block.level)))
    return found


def numbered_blocks(page: Page, start: int, end: int) -> list[Numbered]:
    """Blocks from `start` to `end` that begin with a number."""
    found = (leading_number(page.blocks[index], index) for index in range(start, end))
    return [one for one in found if one]
