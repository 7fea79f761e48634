"""A page as a list of text blocks: every reader produces them, and pairing works on them.

A block is a paragraph, heading, list item, table or line. The page's nesting is kept as spans: `Page.spans[i]`
has the ends of the containers that begin with block i. So "everything in the box that this label opens" is arithmetic
on indices for every source format.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# Not `\s`: line ends stay, and the spaces of HTML that break no line are spaces like others.
_SPACE = r"[ \t\r\f\v\u00a0\u2000-\u200b\u202f\u205f\u3000]"
INNER_SPACE = re.compile(rf"{_SPACE}*\n\s*|{_SPACE}+")
STARS = re.compile(r"(?:\s*\*){3,}")
# lxml rejects a text that declares an encoding, because only bytes have one.
_DECLARATION = re.compile(r"\A[\s\ufeff]*<\?xml\b[^<>]{0,500}\?>")
_HALF_PAIRS = re.compile("[\ud800-\udfff]")
# Zero-width characters and soft hyphens would split the words that labels are recognised by.
HIDDEN_SPACE = re.compile(r"[\u200b\u200c\u200d\u2060\ufeff\u00ad]")


class Unreadable(Exception):
    """A reader cannot read the page. Arguments: the reason of the drop, and a detail."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True)
class Block:
    """One block of text."""

    text: str
    """Text with formulas as LaTeX between dollar signs; lines are separated by newlines."""
    kind: str
    """heading, paragraph, item (of a list), term (of a definition list), toggle, table, rule, code."""
    level: int = 0
    """Rank of a heading, 1 the highest; 0 for other blocks."""
    lead: str = ""
    """The text's emphasised beginning (bold, or marked as a label), empty when there is none."""
    depth: int = 0
    """Nesting depth of the element that begins with the block: siblings have the same."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The part that a container's markup (data-type, class, id) names."""

    part: str
    """problem, solution, answer or aside."""
    end: int
    """The block after the container."""


@dataclass(slots=True)
class Page:
    """Blocks in reading order with their containers."""

    blocks: list[Block] = field(default_factory=list)
    spans: dict[int, list[int]] = field(default_factory=dict)
    """First block of a container -> ends (exclusive) of the containers that begin there, innermost first."""
    outer_end: list[int] = field(default_factory=list)
    """For each block, the end of the innermost container that contains it and begins before it."""
    marks: dict[int, Mark] = field(default_factory=dict)
    """First block of a container -> the part that its markup names."""
    quoted: set[int] = field(default_factory=set)
    """Blocks inside a quotation."""
    boxes_left_out: int = 0
    """Boxes of HTML that are left out as site furniture."""

    def box(self, start: int, limit: int) -> int | None:
        """The end of the largest container that begins at `start`, has more than that block and ends by `limit`."""
        return next((end for end in reversed(self.spans.get(start, [])) if start + 1 < end <= limit), None)

    def close_container(self, start: int) -> None:
        """Records a container that began at block `start` and ends before the next block to come."""
        end = len(self.blocks)
        if end > start:
            ends = self.spans.setdefault(start, [])
            if not ends or ends[-1] != end:
                ends.append(end)

    def finish(self) -> Page:
        """Computes `outer_end` once all blocks exist."""
        total = len(self.blocks)
        self.outer_end = [total] * total
        # The longest first, so that inner containers overwrite the ends of outer ones.
        longest_first = sorted(
            ((start, end) for start, ends in self.spans.items() for end in ends), key=lambda span: span[0] - span[1]
        )
        for start, end in longest_first:
            self.outer_end[start + 1 : end] = [end] * (end - start - 1)
        return self


def tidy(text: str) -> str:
    """Collapses spaces, removes invisible characters and lines of stars, leaves one newline between lines."""
    text = HIDDEN_SPACE.sub("", text) if not text.isascii() else text
    text = STARS.sub(" ", text) if "*" in text else text
    return INNER_SPACE.sub(lambda found: "\n" if "\n" in found[0] else " ", text).strip()


def decoded(content: str) -> str:
    """Removes the parts that only make sense in bytes: the XML declaration of their encoding, which no longer holds,
    halves of surrogate pairs, NUL."""
    return _HALF_PAIRS.sub("\ufffd", _DECLARATION.sub("", content, count=1)).replace("\x00", "")
