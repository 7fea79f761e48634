"""What the tables of a page are for: a layout, a list of exercises under named columns, or data."""

from __future__ import annotations

import re
from itertools import islice, pairwise

from lxml.etree import _Element

from stages.extract_web.labels.blocks import tidy
from stages.extract_web.labels.instructions import ASKS
from stages.extract_web.labels.labels import is_solution_label, is_worded_label
from stages.extract_web.readers.html_elements import HEADINGS
from stages.extract_web.readers.mathml import name_of, names

NAMES_A_PART = names("b strong div p span dt summary button")
SHORT_LABEL = re.compile(r"[QA]\d{1,4}[.:)]?")
MIN_NUMBERED = 3
LETTERS = {"q": "Question", "a": "Answer"}
_KEY = re.compile(
    r"(?:(?!(?:your|student|pupil|my|space|number|no)\b)[\w'’-]+\s+){0,3}(?:key|answers?|solutions?|workings?)"
    r"(?:\s*\([^()]{1,20}\))?",
    re.IGNORECASE,
)
"""What else may name the column of answers after one that is named as the question."""
MAX_LEAD_CHARACTERS = 60
MAX_PIECES = 200
MAX_PIECE_CHARACTERS = 1_000


def rows_of(table: _Element) -> list[list[_Element]]:
    """The cells of each row that has some. Rows of tables in its cells are the cells' own: read twice at each level,
    nested tables would take exponential time."""
    own = (row for row in table.iter("tr") if next(row.iterancestors("table"), table) is table)
    rows = [[cell for cell in row if name_of(cell) in ("td", "th")] for row in own]
    return [row for row in rows if row]


def column_names(rows: list[list[_Element]]) -> list[str] | None:
    """What the first row calls the columns, empty for columns that are no part of an exercise; None where fewer than
    two are. `Q` and `A` count together. The nearest column that asks before one of answers has the questions; a column
    whose name ends in a word for answers has those of questions before it that ask."""
    if len(rows) < 2:
        return None
    written = [tidy(" ".join(cell.itertext())) for cell in rows[0]]
    letters = [name.strip(" .:").lower() for name in written]
    if "q" in letters and "a" in letters:
        written = [LETTERS.get(letter, name) for letter, name in zip(letters, written, strict=True)]
    named = [name if is_worded_label(name) else "" for name in written]
    if named[0] and _begin_with_numbers(rows[1:]):
        named[0] = ""
    if sum(map(bool, named)) == 1 and len(rows) > MIN_NUMBERED:
        place = next(index for index, name in enumerate(named) if name)
        if is_solution_label(named[place]):
            asking = next((index for index in reversed(range(place)) if _asks(rows[1:], index)), None)
            if asking is not None:
                named[asking] = LETTERS["q"]
        elif _asks(rows[1:], place):
            key = next(
                (index for index in range(place + 1, len(named)) if _KEY.fullmatch(written[index])), place
            )
            named[key] = LETTERS["a"] if key != place else named[key]
    return named if sum(map(bool, named)) >= 2 else None


def _begin_with_numbers(rows: list[list[_Element]]) -> bool:
    """True for rows of an answer key, which begin with the questions' numbers: 1, 2, 3 and so on, some left out."""
    firsts = [tidy(_beginning(row[0])) for row in rows]
    numbers = [int(first) for first in firsts if first.isdecimal() and len(first) < 4]
    return 1 < len(numbers) == len(firsts) and all(one < other for one, other in pairwise(numbers))


def _is_key(rows: list[list[_Element]]) -> bool:
    """True for two columns of which the first has the numbers of questions and is named so."""
    if len(rows) <= MIN_NUMBERED or any(len(row) != 2 for row in rows):
        return False
    return is_worded_label(tidy("".join(rows[0][0].itertext()))) and _begin_with_numbers(rows[1:])


def _asks(rows: list[list[_Element]], column: int) -> bool:
    """True where most cells of the column want something done."""
    cells = [row[column] for row in rows if len(row) > column]
    return 2 * sum(bool(ASKS.search(_beginning(cell))) for cell in cells) > len(cells)


def _beginning(cell: _Element) -> str:
    """Text of a cell, bounded because the cells of nested tables are read again with those around them."""
    return " ".join(piece[:MAX_PIECE_CHARACTERS] for piece in islice(cell.itertext(), MAX_PIECES))


def is_layout(table: _Element) -> bool:
    """True for a table that only places things: it has one column, or holds headings, details or a cell that is a
    label by itself."""
    rows = rows_of(table)
    if column_names(rows) or _is_key(rows):
        return False
    if rows and all(len(row) == 1 for row in rows):
        return True
    for element in table.iter():
        name = name_of(element)
        if name in HEADINGS or name == "details":
            return True
        text = (element.text or "").strip() if name in NAMES_A_PART and not len(element) else ""
        if 2 < len(text) <= MAX_LEAD_CHARACTERS and is_worded_label(tidy(text)):
            return True
    firsts = [tidy(" ".join(row[0].itertext())) for row in rows]
    return any(is_worded_label(first) or SHORT_LABEL.fullmatch(first) for first in firsts)
