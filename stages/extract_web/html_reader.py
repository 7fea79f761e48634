"""HTML to blocks: navigation, advertisements, scripts and comments left out, formulas as LaTeX.

What counts as noise is decided by what HTML says an element is (nav, footer, aside, script), by the words that sites
everywhere put into class, id and role ("sidebar", "share"), and by lists that consist of links. No rule names a site.
"""

from __future__ import annotations

import re

from lxml import html
from lxml.etree import ParserError, XMLSyntaxError, _Element

from stages.extract_web.blocks import Block, Page, tidy
from stages.extract_web.labels import is_whole_label, is_worded_label
from stages.extract_web.mathml import mathml_to_latex, name_of, names

DROPPED = names(
    "script style nav footer aside form noscript iframe svg select textarea input head template object "
    "embed canvas audio video map dialog"
)
HEADINGS = {f"h{level}": level for level in range(1, 7)}
BLOCKS = (
    names(
        "address article blockquote body button caption center dd details div dl dt fieldset figcaption "
        "figure header hgroup hr html legend li main menu ol p pre section summary table tbody td tfoot th "
        "thead tr ul"
    )
    | HEADINGS.keys()
)
EMPHASIS = frozenset(["b", "strong", "em", "i", "u"])
KINDS = {"li": "item", "dt": "term", "summary": "toggle", "button": "toggle", "th": "cell", "td": "cell"}
NOISE_WORDS = re.compile(
    r"(?:^|[\s_-])(?:nav|navbar|navigation|menu|breadcrumbs?|sidebar|site-?footer|footer|ads?|advert\w*|sponsor\w*"
    r"|promo\w*|cookies?|share|sharing|social|related|recommended|newsletter|subscribe|comments?|copyright|licen[cs]e"
    r"|banner|contentinfo|toolbar|vote|votes|upvotes?|pagination|pager)(?:$|[\s_-])",
    re.IGNORECASE,
)
LABEL_WORDS = re.compile(r"(?:^|[\s_-])(?:label|title|heading|number)(?:$|[\s_-])", re.IGNORECASE)
MATH_SCRIPT = re.compile(r"math/tex")
BOX_OF_LINKS_SHARE = 0.7
"""A block of three or more links is navigation when they hold more than this share of its characters."""
MAX_DEPTH = 150
"""Elements nested deeper are left out: three Python frames a level must stay under the interpreter's limit."""


class NotHtml(Exception):
    """The text has no element that an HTML page is made of."""


def read_html(content: str) -> Page:
    """The page's blocks in reading order; NotHtml when there is nothing to parse."""
    try:
        root = html.document_fromstring(content.replace("\x00", ""))
    except (ParserError, XMLSyntaxError, ValueError) as error:
        raise NotHtml(str(error)) from error
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
        self.kind, self.level = "paragraph", 0

    def flush(self) -> None:
        """Ends the block in progress; blocks without text are not recorded."""
        text = tidy("".join(self.pieces)) if self.pieces else ""
        if text:
            lead = tidy(self.lead)
            self.page.blocks.append(Block(text, self.kind, self.level, lead if text.startswith(lead) else ""))
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
        if name == "table" and not _is_layout(element):
            self.table(element)
            return
        kept = self.kind, self.level
        self.kind, self.level = KINDS.get(name, "paragraph"), HEADINGS.get(name, 0)
        if self.level:
            self.kind = "heading"
        start = len(self.page.blocks)
        self.inline(element, depth + 1)
        self.flush()
        self.page.close_container(start)
        self.kind, self.level = kept

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
        elif name in DROPPED or _is_noise(element, name):
            if name in BLOCKS:
                self.flush()
        elif name == "img":
            self.add(_image(element))
        elif name == "br":
            self.add("\n")
        elif name == "button" and not is_whole_label(tidy("".join(element.itertext()))):
            self.flush()
        elif name in BLOCKS:
            self.container(element, depth)
        elif name in ("sup", "sub"):
            self.script_text(element, "^" if name == "sup" else "_", depth)
        elif self.is_blank and _is_emphasis(element, name):
            first = len(self.pieces)
            self.inline(element, depth + 1)
            self.lead = "".join(self.pieces[first:])
        else:
            self.inline(element, depth + 1)

    def script_text(self, element: _Element, mark: str, depth: int) -> None:
        """x<sup>2</sup> as x^2: without the mark it would read x2."""
        text = tidy("".join(element.itertext()))
        if re.fullmatch(r"[\w+\-−*/().]{1,12}", text) and self.pieces and self.pieces[-1][-1:].strip():
            self.add(mark + (text if len(text) == 1 else "{" + text.replace("−", "-") + "}"))
        else:
            self.inline(element, depth + 1)

    def table(self, table: _Element) -> None:
        """A table whose first row names the parts of exercises is read row by row; any other is one block of lines."""
        rows = [[cell for cell in row if name_of(cell) in ("td", "th")] for row in table.iter("tr")]
        rows = [row for row in rows if row]
        names = [tidy(" ".join(cell.itertext())) for cell in rows[0]] if rows else []
        start = len(self.page.blocks)
        if len(rows) > 1 and sum(map(is_worded_label, names)) >= 2:
            for row in rows[1:]:
                self.labelled_row(names, row)
        else:
            lines = [" | ".join(_cell_text(cell) for cell in row) for row in rows]
            captions = [tidy(" ".join(caption.itertext())) for caption in table.iter("caption")]
            self.page.blocks.append(Block("\n".join(filter(None, captions + lines)), "table"))
        self.page.close_container(start)

    def labelled_row(self, names: list[str], row: list[_Element]) -> None:
        """Each cell after its column's name, as if the page had written the name there."""
        start = len(self.page.blocks)
        for name, cell in zip(names, row, strict=False):
            if is_worded_label(name):
                self.page.blocks.append(Block(name, "cell", 0, name))
                self.container(cell, 0)
        self.page.close_container(start)


def _image(image: _Element) -> str:
    """An image as Markdown, so that later rules see that the text leans on one; counting pixels are left out."""
    if image.get("width") in ("0", "1") or image.get("height") in ("0", "1"):
        return ""
    source = (image.get("src") or "").strip()
    alternative = " ".join((image.get("alt") or "").split())
    return f"![{alternative}]({'' if source.startswith('data:') else source})"


def _cell_text(cell: _Element) -> str:
    page = Page()
    walk = _Walk(page)
    walk.inline(cell, MAX_DEPTH // 2)
    walk.flush()
    return " ".join(block.text.replace("\n", " ") for block in page.blocks)


def _is_emphasis(element: _Element, name: str) -> bool:
    return name in EMPHASIS or bool(LABEL_WORDS.search(element.get("class") or ""))


def _is_layout(table: _Element) -> bool:
    """True for a table that only places things: it holds headings, details or a cell that is a label by itself."""
    rows = [[cell for cell in row if name_of(cell) in ("td", "th")] for row in table.iter("tr")]
    rows = [row for row in rows if row]
    if len(rows) > 1 and sum(is_worded_label(tidy(" ".join(cell.itertext()))) for cell in rows[0]) >= 2:
        return False
    if any(name_of(element) in HEADINGS or name_of(element) == "details" for element in table.iter()):
        return True
    return any(is_worded_label(tidy(" ".join(row[0].itertext()))) for row in rows)


def _is_noise(element: _Element, name: str) -> bool:
    """True for site furniture by class, id or role, and for blocks made of several links and little else."""
    for attribute in ("class", "id", "role"):
        value = element.get(attribute)
        if value and name != "body" and NOISE_WORDS.search(value):
            return True
    if name not in ("ul", "ol", "div", "p", "section", "menu") or element.find(".//a") is None:
        return False
    links = [link for link in element.iter("a") if link.get("href")]
    linked = sum(len("".join(link.itertext()).strip()) for link in links)
    return len(links) >= 3 and linked > BOX_OF_LINKS_SHARE * len("".join(element.itertext()).strip())
