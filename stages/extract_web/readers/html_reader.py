"""HTML to blocks: navigation, advertisements, scripts and comments left out, formulas as LaTeX.

What counts as noise is decided by what HTML says an element is (nav, footer, aside, script), by the words that sites
everywhere put into class, id and role ("sidebar", "share"). No rule names a site.
"""

from __future__ import annotations

import re

from lxml.etree import _Element

from stages.extract_web.labels.blocks import Block, Mark, Page, tidy
from stages.extract_web.labels.labels import HIDES, is_toggle_label
from stages.extract_web.readers.html_elements import BLOCKS, DROPPED, HEADINGS
from stages.extract_web.readers.html_source import parse_html
from stages.extract_web.readers.markup import (
    EMPHASIS,
    image_text,
    is_marked_noise,
    is_rendering,
    is_toggle,
    role,
)
from stages.extract_web.readers.mathml import mathml_to_latex, name_of, names

KINDS = {"li": "item", "dt": "term", "summary": "toggle", "button": "toggle"}
MATH_SCRIPT = re.compile(r"math/tex")
TRIGGERS = names("a span label")
MAX_LEAD_CHARACTERS = 60
MAX_DEPTH = 150
"""Elements nested deeper are left out: three Python frames a level must stay under the interpreter's limit."""


def read_html(content: str) -> Page:
    """The page's blocks in reading order; NotHtml when there is nothing to parse."""
    root = parse_html(content)
    page = Page()
    _Walk(page).container(root, 0)
    return page.finish()


class _Walk:
    """One pass over the tree; `pieces` is the text of the block being gathered."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.pieces: list[str] = []
        self.is_blank = True
        self.lead = ""
        self.kind, self.level, self.depth = "paragraph", 0, 0

    def flush(self) -> None:
        """Ends the block in progress; blocks without text are not recorded."""
        text = tidy("".join(self.pieces)) if self.pieces else ""
        if text:
            lead = tidy(self.lead)
            lead = lead if text.startswith(lead) else ""
            self.page.blocks.append(Block(text, self.kind, self.level, lead, self.depth))
            if self.kind == "item":
                self.kind = "paragraph"
        self.pieces.clear()
        self.is_blank = True
        self.lead = ""

    def add(self, text: str) -> None:
        """Appends to the block in progress."""
        self.pieces.append(text)
        self.is_blank = self.is_blank and not text.strip()

    def container(self, element: _Element, depth: int) -> None:
        """A block-level element: its text becomes blocks, its extent a span."""
        name = name_of(element)
        self.flush()
        if name == "hr":
            self.page.blocks.append(Block("", "rule"))
            return
        if name == "table":
            self.table(element)
            return
        if name == "pre":
            self.code(element)
            return
        kept = self.kind, self.level, self.depth
        self.kind, self.level = KINDS.get(name, "paragraph"), HEADINGS.get(name, 0)
        if self.level:
            self.kind = "heading"
        self.depth = depth
        start = len(self.page.blocks)
        self.inline(element, depth + 1)
        self.flush()
        self.close(element, name, start)
        self.kind, self.level, self.depth = kept

    def code(self, element: _Element) -> None:
        """Preformatted text keeps its lines and is one block."""
        start = len(self.page.blocks)
        text = "".join(element.itertext())
        if text.strip():
            self.page.blocks.append(Block("\n".join(map(str.rstrip, text.strip("\n").split("\n"))), "code"))
        self.page.close_container(start)

    def close(self, element: _Element, name: str, start: int) -> None:
        """Records the container that began at `start` and what its markup says."""
        end = len(self.page.blocks)
        if end == start:
            return
        self.page.close_container(start)
        if name == "blockquote":
            self.page.quoted.update(range(start, end))
        elif name not in ("html", "body", "main"):
            said = role(element)
            if said:
                self.page.marks[start] = Mark(said, end)

    def inline(self, element: _Element, depth: int) -> None:
        """The element's own text and children, in order."""
        if element.text:
            self.add(element.text.replace("\n", " "))
        for child in element:
            self.child(child, depth)
            if child.tail:
                self.add(child.tail.replace("\n", " "))

    def child(self, element: _Element, depth: int) -> None:
        """One child by its kind: formula, noise, block or inline."""
        name = name_of(element)
        if name == "math":
            latex, after = mathml_to_latex(element)
            self.add((f" ${latex}$" if latex else " ") + after)
        elif not name or depth > MAX_DEPTH:
            return
        elif name == "script" and MATH_SCRIPT.search(element.get("type") or ""):
            self.add(f" ${(element.text or '').strip()}$ ")
        elif name == "br":
            self.add("\n")
        elif name == "img":
            self.add(image_text(element))
        elif name in DROPPED or (name != "body" and is_marked_noise(element)):
            if name in BLOCKS:
                self.flush()
        elif name in BLOCKS:
            if name != "button" or not self.toggle(element, name):
                self.container(element, depth)
        else:
            self.inline_child(element, name, depth)

    def inline_child(self, element: _Element, name: str, depth: int) -> None:
        """An element within a line of text."""
        if is_rendering(element) or (name in TRIGGERS and self.toggle(element, name)):
            return
        if name in ("sup", "sub"):
            self.script_text(element, "^" if name == "sup" else "_", depth)
        elif name in EMPHASIS and self.is_blank:
            first = len(self.pieces)
            self.inline(element, depth + 1)
            self.lead = "".join(self.pieces[first:])
        else:
            self.inline(element, depth + 1)

    def toggle(self, element: _Element, name: str) -> bool:
        """A link or button that opens a part becomes a label of its own; other buttons are left out."""
        if not is_toggle(element, name):
            return False
        text = tidy("".join(element.itertext())) if len(element) < 10 else ""
        is_label = len(text) <= MAX_LEAD_CHARACTERS and is_toggle_label(text)
        if not is_label and name != "button":
            return False
        self.flush()
        if is_label and not (HIDES.match(text) and "show" not in text.lower()):
            self.page.blocks.append(Block(text, "toggle", 0, text))
        return True

    def script_text(self, element: _Element, mark: str, depth: int) -> None:
        """x<sup>2</sup> as x^2: without the mark it would read x2."""
        text = tidy("".join(element.itertext()))
        if re.fullmatch(r"[\w+\-−*/().]{1,12}", text) and self.pieces and self.pieces[-1][-1:].strip():
            self.add(mark + (text if len(text) == 1 else "{" + text.replace("−", "-") + "}"))
        else:
            self.inline(element, depth + 1)

    def table(self, table: _Element) -> None:
        """One block, a line a row. Rows of tables in its cells are the cells' own: read twice at each level, nested
        tables would take exponential time."""
        start = len(self.page.blocks)
        own = (row for row in table.iter("tr") if next(row.iterancestors("table"), table) is table)
        rows = [[cell for cell in row if name_of(cell) in ("td", "th")] for row in own]
        lines = [" | ".join(_cell_text(cell) for cell in row) for row in rows if row]
        captions = [tidy(" ".join(caption.itertext())) for caption in table.iter("caption")]
        self.page.blocks.append(Block("\n".join(filter(None, captions + lines)), "table"))
        self.page.close_container(start)


def _cell_text(cell: _Element) -> str:
    page = Page()
    walk = _Walk(page)
    walk.inline(cell, MAX_DEPTH // 2)
    walk.flush()
    return " ".join(block.text.replace("\n", " ") for block in page.blocks)
