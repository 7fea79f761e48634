"""HTML to blocks: navigation, advertisements, scripts and comments left out, formulas as LaTeX.

What counts as noise is decided by what HTML says an element is (nav, footer, aside, script), by the words that sites
everywhere put into class, id and role ("sidebar", "share"), and by lists that consist of links. No rule names a site.
"""

from __future__ import annotations

import re

from lxml.etree import _Element

from stages.extract_web.labels.blocks import Block, Mark, Page, tidy
from stages.extract_web.labels.labels import HIDES, find_label, is_toggle_label, is_whole_label, prefix_label
from stages.extract_web.readers.html_elements import BLOCKS, DROPPED, HEADINGS
from stages.extract_web.readers.html_source import parse_html
from stages.extract_web.readers.html_tables import MAX_LEAD_CHARACTERS, column_names, is_layout, rows_of
from stages.extract_web.readers.markup import (
    first_ordinal,
    image_text,
    is_emphasis,
    is_marked_noise,
    is_rendering,
    is_toggle,
    role,
)
from stages.extract_web.readers.mathml import mathml_to_latex, name_of, names
from stages.extract_web.readers.text_reader import read_text

KINDS = {"li": "item", "dt": "term", "summary": "toggle", "button": "toggle", "th": "cell", "td": "cell"}
MATH_SCRIPT = re.compile(r"math/tex")
BOX_OF_LINKS_SHARE = 0.7
"""A block of three or more links is navigation when they hold more than this share of its characters."""
TRIGGERS = names("a span label")
_GOES_ON = re.compile(r"\s*(?:[,;]|[a-z])")
LINK_BOXES = names("ul ol div p section menu")
MAX_EFFORT = 40
"""Times the page's length that may be read again to tell boxes of links: nested ones would cost the square."""
MAX_DEPTH = 150
"""Elements nested deeper are left out: three Python frames a level must stay under the interpreter's limit."""


def read_html(content: str) -> Page:
    """The page's blocks in reading order; NotHtml when there is nothing to parse."""
    root = parse_html(content)
    page = Page()
    _Walk(page, MAX_EFFORT * len(content)).container(root, 0)
    return page.finish()


class _Walk:
    """One pass over the tree; `pieces` is the text of the block being gathered."""

    def __init__(self, page: Page, effort: int) -> None:
        self.page = page
        self.pieces: list[str] = []
        self.is_blank = True
        self.lead = ""
        self.kind, self.level, self.number = "paragraph", 0, ""
        self.next_ordinal: int | None = None
        self.depth = self.number_depth = 0
        self.effort = effort

    def flush(self) -> None:
        """Ends the block in progress; blocks without text are not recorded."""
        text = tidy("".join(self.pieces)) if self.pieces else ""
        if text:
            lead = tidy(self.lead)
            first, *others = _parted(text) if "\n" in text else [text]
            lead = lead if first.startswith(lead) else ""
            depth = self.number_depth if self.number else self.depth
            self.page.blocks.append(Block(first, self.kind, self.level, lead, self.number, depth))
            self.page.blocks += [Block(other, "paragraph", depth=depth) for other in others]
            if self.kind == "item":
                self.kind = "paragraph"
            self.number = ""
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
        if name == "table" and not is_layout(element):
            self.table(element)
            return
        if name == "pre":
            self.typed(element)
            return
        kept = self.kind, self.level, self.number, self.depth
        self.kind, self.level = KINDS.get(name, "paragraph"), HEADINGS.get(name, 0)
        if self.level:
            self.kind = "heading"
        self.depth = depth
        if name == "li":
            self.number, self.number_depth = self.ordinal(element), depth
        outer, self.next_ordinal = self.next_ordinal, first_ordinal(element) if name == "ol" else None
        start = len(self.page.blocks)
        self.inline(element, depth + 1)
        self.flush()
        self.close(element, name, start)
        self.next_ordinal = outer
        self.kind, self.level, self.number, self.depth = kept
        if len(self.page.blocks) > start:
            self.number = ""

    def typed(self, element: _Element) -> None:
        """Preformatted text is read as a text page when it has labels, and is one block of code else."""
        text = "".join(element.itertext())
        start = len(self.page.blocks)
        typed = read_text(text)
        if any(map(find_label, typed.blocks)):
            self.page.blocks += typed.blocks
            self.page.quoted.update(start + index for index in typed.quoted)
        elif text.strip():
            self.page.blocks.append(Block("\n".join(map(str.rstrip, text.strip("\n").split("\n"))), "code"))
        self.page.close_container(start)

    def ordinal(self, item: _Element) -> str:
        """The number that a browser shows before an item of an ordered list, empty in other lists."""
        value = item.get("value") or ""
        if self.next_ordinal is None:
            return ""
        number = int(value) if value.isdecimal() and len(value) <= 6 else self.next_ordinal
        self.next_ordinal = number + 1
        return str(number)

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
                self.page.marks[start] = Mark(said[0], end, said[1])

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
            self.line_break()
        elif name == "img":
            self.add(image_text(element))
        elif name in DROPPED or self.is_noise(element, name):
            if name in BLOCKS:
                self.flush()
        elif name in BLOCKS:
            if name != "button" or not self.toggle(element, name):
                (self.inline if self.is_in_sentence(element) else self.container)(element, depth)
        else:
            self.inline_child(element, name, depth)

    def line_break(self) -> None:
        """The second of two in a row ends the paragraph."""
        if not self.is_blank and self.pieces[-1] == "\n":
            self.flush()
        self.add("\n")

    def inline_child(self, element: _Element, name: str, depth: int) -> None:
        """An element within a line of text."""
        if is_rendering(element) or (name in TRIGGERS and self.toggle(element, name)):
            return
        if name in ("sup", "sub"):
            self.script_text(element, "^" if name == "sup" else "_", depth)
        elif is_emphasis(element, name) and self.is_blank:
            first = len(self.pieces)
            self.inline(element, depth + 1)
            self.lead = "".join(self.pieces[first:])
        else:
            self.inline(element, depth + 1)

    def is_noise(self, element: _Element, name: str) -> bool:
        """True for site furniture by class, id or role, and for blocks made of several links and little else."""
        if name != "body" and is_marked_noise(element):
            return True
        if name not in LINK_BOXES or self.effort <= 0 or element.find(".//a") is None:
            return False
        links = [link for link in element.iter("a") if link.get("href")]
        if len(links) < 3:
            return False
        linked = sum(len("".join(link.itertext()).strip()) for link in links)
        text = "".join(element.itertext()).strip()
        self.effort -= len(text) + len(links)
        return linked > BOX_OF_LINKS_SHARE * len(text)

    def toggle(self, element: _Element, name: str) -> bool:
        """A link or button that opens a part becomes a label of its own; other buttons are left out."""
        if not is_toggle(element, name) or self.is_in_sentence(element):
            return False
        text = tidy("".join(element.itertext())) if len(element) < 10 else ""
        is_label = len(text) <= MAX_LEAD_CHARACTERS and is_toggle_label(text)
        if not is_label and name != "button":
            return False
        self.flush()
        if is_label and not (HIDES.match(text) and "show" not in text.lower()):
            self.page.blocks.append(Block(text, "toggle", 0, text))
        return True

    def is_in_sentence(self, element: _Element) -> bool:
        """True for a reference: the sentence begins before it and goes on after it."""
        before = next((piece.rstrip() for piece in reversed(self.pieces) if piece.strip()), "")
        return before[-1:].isalpha() and bool(_GOES_ON.match(element.tail or ""))

    def script_text(self, element: _Element, mark: str, depth: int) -> None:
        """x<sup>2</sup> as x^2: without the mark it would read x2."""
        text = tidy("".join(element.itertext()))
        if re.fullmatch(r"[\w+\-−*/().]{1,12}", text) and self.pieces and self.pieces[-1][-1:].strip():
            self.add(mark + (text if len(text) == 1 else "{" + text.replace("−", "-") + "}"))
        else:
            self.inline(element, depth + 1)

    def table(self, table: _Element) -> None:
        """A table whose first row names the parts of exercises is read row by row; any other is one block of lines."""
        rows = rows_of(table)
        names = column_names(rows)
        start = len(self.page.blocks)
        for row in rows[1:] if names else ():
            first = len(self.page.blocks)
            for name, cell in zip(names or (), row, strict=False):
                if name:
                    self.page.blocks.append(Block(name, "cell", 0, name))
                    self.container(cell, 0)
            self.page.close_container(first)
        if not names:
            lines = [" | ".join(_cell_text(cell) for cell in row) for row in rows]
            captions = [tidy(" ".join(caption.itertext())) for caption in table.iter("caption")]
            self.page.blocks.append(Block("\n".join(filter(None, captions + lines)), "table"))
        self.page.close_container(start)


def _cell_text(cell: _Element) -> str:
    page = Page()
    walk = _Walk(page, 0)
    walk.inline(cell, MAX_DEPTH // 2)
    walk.flush()
    return " ".join(block.text.replace("\n", " ") for block in page.blocks)


def _parted(text: str) -> list[str]:
    """The text, parted before each line that begins with a label: pages that break lines, not paragraphs."""
    first, *lines = text.split("\n")
    pieces = [first]
    for line in lines:
        if is_whole_label(line) or prefix_label(line):
            pieces.append(line)
        else:
            pieces[-1] += f"\n{line}"
    return pieces
