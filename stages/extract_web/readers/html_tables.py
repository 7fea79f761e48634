"""What the tables of a page are for: a layout, exercises under named columns, or data."""

from __future__ import annotations

from itertools import islice

from lxml.etree import _Element

from stages.extract_web.labels.blocks import tidy
from stages.extract_web.labels.labels import is_worded_label
from stages.extract_web.readers.html_elements import HEADINGS
from stages.extract_web.readers.mathml import name_of, names

NAMES_A_PART = names("b strong div p span dt summary button")
MAX_LEAD_CHARACTERS = 60
MAX_PIECES = 20


def rows_of(table: _Element) -> list[list[_Element]]:
    """The cells of each row that has some. Rows of tables in its cells are the cells' own: read twice at each level,
    nested tables would take exponential time."""
    own = (row for row in table.iter("tr") if next(row.iterancestors("table"), table) is table)
    rows = [[cell for cell in row if name_of(cell) in ("td", "th")] for row in own]
    return [row for row in rows if row]


def column_names(rows: list[list[_Element]]) -> list[str] | None:
    """What the first row calls the columns, empty for columns that are no part of an exercise; None where fewer than
    two are, or where the rows begin with the numbers of questions that stand elsewhere."""
    if len(rows) < 2:
        return None
    written = [tidy(" ".join(cell.itertext())) for cell in rows[0]]
    named = [name if is_worded_label(name) else "" for name in written]
    if named[0] and all(
        "".join(islice(row[0].itertext(), MAX_PIECES)).strip().isdecimal() for row in rows[1:]
    ):
        named[0] = ""
    return named if sum(map(bool, named)) > 1 else None


def is_layout(table: _Element) -> bool:
    """True for a table that only places things: it has one column, or holds headings, details or a cell that is a
    label by itself."""
    rows = rows_of(table)
    if column_names(rows):
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
    return any(is_worded_label(tidy(" ".join(row[0].itertext()))) for row in rows)
