"""Reads HTML into blocks, without navigation, advertisements, scripts and comments, with formulas as LaTeX.

formulas.py has the forms in which pages write formulas.

Noise is recognised by the HTML element (nav, footer, aside, script), and by words that sites commonly use in class, id
and role ("sidebar", "share") where the content agrees. No rule names a site. Other such words show that an element
contains a part of an exercise or is a toggle.

`read_structured_data` reads the questions that a page declares to search engines: schema.org's QAPage, in JSON-LD (by
the JSON library) or in microdata (by the HTML parser). Their texts go through `read_html`. A FAQ is only read as
text: its questions are seldom exercises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lxml import etree
from lxml.etree import _Element

from stages.extract_web.blocks import Block, Mark, Page, Unreadable, decoded, tidy
from stages.extract_web.exercises import Exercise
from stages.extract_web.labels import HIDES, Label, Part, labelled_part, prefix_label
from stages.extract_web.page_labels import ASKS, section_text
from stages.extract_web.readers.formulas import FORMULA, settle, with_formulas
from stages.extract_web.readers.mathml import name_of, names

KINDS = {"li": "item", "dt": "term", "summary": "toggle", "button": "toggle"}
TRIGGERS = names("a span label")
_SLASHES = ("/", "\u2044")
"""Between numerator and denominator; the second is `&frasl;`."""
MAX_LEAD_CHARACTERS = 60
# Control characters, because `collect_web` removes them from every page and no text needs them.
_SHIELD = str.maketrans("\\$", "\1\2")
_UNSHIELD = str.maketrans("\1\2", "\\$")
"""Code is no formula, and a settled formula is none again: their signs are hidden until the block is whole."""
MAX_DEPTH = 150
"""Elements nested deeper are left out: three Python frames per level must stay below the interpreter's limit."""


def read_html_page(content: str) -> Page | list[Exercise]:
    """Returns the questions that the page declares, else its blocks; Unreadable when there is nothing to parse."""
    # Structured data first: there the author names the question and the accepted answer.
    return read_structured_data(content) or read_html(content)


def read_html(content: str) -> Page:
    """Returns the page's blocks in reading order; Unreadable when there is nothing to parse."""
    root = parse_html(content)
    settle(root)
    page = Page()
    _Walk(page).container(root, 0)
    return page.finish()


class _Walk:
    """One pass over the tree; `pieces` is the text of the block in progress."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.pieces: list[str] = []
        self.is_blank = True
        self.lead = ""
        self.kind, self.level, self.depth = "paragraph", 0, 0
        self.judged: dict[_Element, bool] = {}
        """Boxes named like furniture -> whether their content is an exercise's."""

    def flush(self) -> None:
        """Ends the block in progress; blocks without text are not recorded."""
        text = _finished("".join(self.pieces)) if self.pieces else ""
        if text:
            lead = _finished(self.lead)
            # If tidying changed the beginning of the text, the emphasis no longer applies to it.
            lead = lead if text.startswith(lead) else ""
            self.page.blocks.append(Block(text, self.kind, self.level, lead, self.depth))
            # Only the first block of a list item has its mark. The following blocks of the item are paragraphs.
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
        """Reads a block-level element: its text becomes blocks, its extent a span."""
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
        # A button in a heading keeps its level, because its text is the heading's.
        self.level = HEADINGS.get(name, self.level if name == "button" else 0)
        self.kind = "heading" if name in HEADINGS else KINDS.get(name, "paragraph")
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
        """Records the container that began at `start` and the part that its markup names."""
        end = len(self.page.blocks)
        if end == start:
            return
        self.page.close_container(start)
        if name == "blockquote":
            self.page.quoted.update(range(start, end))
        # The class of a whole page describes its topic, not that all of it is one answer.
        elif name not in ("html", "body", "main"):
            said = role(element)
            if said:
                self.page.marks[start] = Mark(said, end)

    def inline(self, element: _Element, depth: int) -> None:
        """Reads the element's direct text and children, in order."""
        if element.text:
            # A line end in the source is a space, for which `\r` counts too; it also ends a comment of a formula.
            # Only `br` and block elements end lines.
            self.add(element.text.replace("\n", "\r"))
        for child in element:
            self.child(child, depth)
            if child.tail:
                self.add(child.tail.replace("\n", "\r"))

    def child(self, element: _Element, depth: int) -> None:
        """Reads one child by its kind: formula, noise, block or inline."""
        name = name_of(element)
        if name == FORMULA:
            self.add(" " + (element.text or "").translate(_SHIELD))
        elif not name or depth > MAX_DEPTH:
            return
        elif name == "br":
            self.add("\n")
        elif name == "img":
            self.add(image_text(element).translate(_SHIELD))
        # Not `body`: a class such as "has-sidebar" there would drop the whole page.
        elif name in DROPPED or (name != "body" and self.is_furniture(element)):
            if name in BLOCKS:
                self.flush()
        elif name in BLOCKS:
            if name != "button" or not self.toggle(element, name):
                self.container(element, depth)
        else:
            self.inline_child(element, name, depth)

    def is_furniture(self, element: _Element) -> bool:
        """True for a box that is left out by its name and its content; each is counted."""
        if not marked_noise(element):
            return False
        if element not in self.judged:
            self.judged |= judged_boxes(element)
        self.page.boxes_left_out += not self.judged[element]
        return not self.judged[element]

    def inline_child(self, element: _Element, name: str, depth: int) -> None:
        """Reads an element within a line of text."""
        if name in TRIGGERS and self.toggle(element, name):
            return
        if name in ("sup", "sub"):
            self.script_text(element, "^" if name == "sup" else "_", depth)
            return
        is_lead, first = name in EMPHASIS and self.is_blank, len(self.pieces)
        self.inline(element, depth + 1)
        if is_lead:
            self.lead = "".join(self.pieces[first:])
        elif name == "code":
            self.pieces[first:] = [piece.translate(_SHIELD) for piece in self.pieces[first:]]

    def toggle(self, element: _Element, name: str) -> bool:
        """A link or button that opens a part becomes a separate label; other buttons are left out.

        False for a button that is the text of a heading, as in an accordion: it may be a question.
        """
        if not is_toggle(element, name):
            return False
        # An element with that many children is a clickable box, not a label.
        text = tidy("".join(element.itertext())) if len(element) < 10 else ""
        is_label = len(text) <= MAX_LEAD_CHARACTERS and labelled_part(text) not in (None, Part.PROBLEM)
        if not is_label and (name != "button" or self.level):
            return False
        self.flush()
        # "Hide" closes a part that another button has opened, while "Hide/Show" is the only button of its part.
        if is_label and not (HIDES.match(text) and "show" not in text.lower()):
            self.page.blocks.append(Block(text, "toggle", 0, text))
        return True

    def script_text(self, element: _Element, mark: str, depth: int) -> None:
        """Writes x<sup>2</sup> as x^2, which would read x2 without the mark, and 3<sup>1</sup>/<sub>2</sub> as 3 1/2.

        A subscript right after a slash has no base, so it is the denominator below the superscript before the slash.
        """
        text = tidy("".join(element.itertext())).strip("$")
        following, before = element.getnext(), "".join(self.pieces[-2:]).rstrip()
        is_over = (element.tail or "").strip() in _SLASHES and following is not None and name_of(following) == "sub"
        if (mark == "^" and is_over) or (mark == "_" and before.endswith(_SLASHES)):
            # A blank, because 3 1/2 is not 31/2. Parentheses, because 1/1+x is not 1/(1+x).
            self.add(" " if mark == "^" and before[-1:].isalnum() else "")
            is_one = re.fullmatch(r"[\w.]*|\(.*\)", text)
            self.add("" if is_one else "(")
            self.inline(element, depth + 1)
            self.add("" if is_one else ")")
        elif re.fullmatch(r"[\w+\-−*/().]{1,12}", text) and self.pieces and self.pieces[-1][-1:].strip():
            self.add(mark + (text if len(text) == 1 else "{" + text.replace("−", "-") + "}"))
        else:
            self.inline(element, depth + 1)

    def table(self, table: _Element) -> None:
        """Reads one block, one line per row. Rows of nested tables are read with their cell: reading them again at each
        level would take exponential time."""
        start = len(self.page.blocks)
        own = (row for row in table.iter("tr") if next(row.iterancestors("table"), table) is table)
        rows = [[cell for cell in row if name_of(cell) in ("td", "th")] for row in own]
        lines = [" | ".join(self.cell_text(cell) for cell in row) for row in rows if row]
        captions = [tidy(" ".join(caption.itertext())) for caption in table.iter("caption")]
        self.page.blocks.append(Block("\n".join(filter(None, captions + lines)), "table"))
        self.page.close_container(start)

    def cell_text(self, cell: _Element) -> str:
        """Returns the text of a table's cell in one line."""
        walk = _Walk(Page())
        # As if at half the depth already, because the frames of the page around the table are still on the stack.
        walk.inline(cell, MAX_DEPTH // 2)
        walk.flush()
        self.page.boxes_left_out += walk.page.boxes_left_out
        return " ".join(block.text.replace("\n", " ") for block in walk.page.blocks)


def _finished(text: str) -> str:
    return tidy(with_formulas(text).translate(_UNSHIELD)).replace("\u2044", "/")


_LINK_WORDS = (
    r"nav|navbar|navigation|menu|breadcrumbs?|share|sharing|social|related|recommended|toolbar|tag-?list|tags"
    r"|pagination|pager|tablist|post-?menu"
)
# Without these words 40 false rows come from 11 of the pages that docs/explanation/extraction.md measures.
_TEXT_WORDS = (
    r"sidebar|site-?footer|footer|ads?|advert\w*|sponsor\w*|promo\w*|cookies?|newsletter|subscribe|comments?|copyright"
    r"|licen[cs]e|banner|contentinfo|vote|votes|upvotes?|editsection|byline|avatar|signature|timestamp|userinfo"
    r"|user-?info|user-?card|poster|postauthor|author-?info"
)
NOISE_WORDS = re.compile(rf"(?:^|[\s_-])(?:(?P<links>{_LINK_WORDS})|{_TEXT_WORDS})(?:$|[\s_-])", re.IGNORECASE)
"""Words of class, id or role of boxes that may be furniture. The first kind has links, the second also sentences."""
_CONTROLS = names("a button input select textarea iframe form img")
_SENTENCE = re.compile(r"(?:\S+\s+){2,}\S*[.?!]\s*\Z|=\s*[-−]?\w")
"""Three words with an end, or an equation."""


def judged_boxes(outer: _Element) -> dict[_Element, bool]:
    """Returns, for each box under `outer` that is named like furniture, whether its content is an exercise's.

    The name of a class is not enough: sites have `related-problem` and `share-text` around exercises. A box is kept if
    it holds a whole exercise: a problem's label and, later, a solution's. A box named for links is also kept if nothing
    in it can be clicked and it has a label, a formula or a sentence. One pass, so that nested boxes stay linear.
    """
    judged: dict[_Element, bool] = {}
    opened: list[_Evidence] = []
    unread = 0

    def read(text: str | None) -> None:
        if text and not unread and (text := text.strip()):
            label = prefix_label(text)
            opened[-1].see(label.part if label else labelled_part(text), text)

    for event, element in etree.iterwalk(outer, events=("start", "end")):
        name = name_of(element)
        is_unread = name in DROPPED or (name == "a" and not is_toggle(element, name))
        if event == "start":
            found = marked_noise(element)
            if found:
                opened.append(_Evidence(element, bool(found["links"])))
            unread += is_unread
            opened[-1].has_controls |= name in _CONTROLS
            opened[-1].has_text |= name == FORMULA and not unread
            read(element.text)
            continue
        unread -= is_unread
        if element is opened[-1].box:
            closed = opened.pop()
            judged[element] = closed.is_exercise()
            if opened:
                opened[-1].merge(closed)
        if element is not outer:
            read(element.tail)
    return judged


@dataclass(slots=True)
class _Evidence:
    """The parts of an exercise that a box holds."""

    box: _Element
    is_for_links: bool
    has_controls: bool = False
    has_text: bool = False
    has_problem: bool = False
    has_label: bool = False
    is_whole: bool = False

    def see(self, part: Part | None, text: str) -> None:
        """Counts a text outside of links, and its label."""
        self.has_label |= part in (Part.PROBLEM, Part.SOLUTION, Part.ANSWER)
        self.is_whole |= self.has_problem and part in (Part.SOLUTION, Part.ANSWER)
        self.has_problem |= part is Part.PROBLEM
        self.has_text |= bool(_SENTENCE.search(text) or (ASKS.search(text) and re.search(r"\d", text)))

    def merge(self, inner: _Evidence) -> None:
        """Adds what a box inside holds."""
        self.is_whole |= inner.is_whole or (self.has_problem and inner.has_label)
        self.has_controls |= inner.has_controls
        self.has_text |= inner.has_text
        self.has_problem |= inner.has_problem
        self.has_label |= inner.has_label

    def is_exercise(self) -> bool:
        """True if the box is content, whatever its class."""
        is_text = self.is_for_links and not self.has_controls and (self.has_label or self.has_text)
        return self.is_whole or is_text


EMPHASIS = names("b strong em i u")
"""Elements that emphasise the beginning of a text."""
# Words of quiz software are among them: Moodle writes `generalfeedback` and `rightanswer`.
_PARTS = {
    **dict.fromkeys(("question", "problem", "exercise"), "problem"),
    **dict.fromkeys(("solution", "soln", "sol", "explanation", "generalfeedback"), "solution"),
    **dict.fromkeys(("answer", "ans", "rightanswer", "correctanswer"), "answer"),
    **dict.fromkeys(("hint", "hints"), "aside"),
}
# A class such as "answer-list" or "question-title" wraps or names a part and is not one.
_WRAPS_OR_NAMES = names(
    "list container wrapper wrap section count counts title header heading nav link links btn button toggle toggler "
    "form input meta tags tag actions action controls number num label labels index menu page site set bank sheet "
    "grid group area more ask new write post-link status icon footer info summary tab tabs type id key block-list "
    "navigator asker owner author date time stats views choices options option choice"
)
_TOKEN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_OPENS = names("onclick aria-controls aria-expanded data-toggle data-bs-toggle data-target data-bs-target")


def tokens(value: str) -> list[str]:
    """Returns lower-case words of a class or id, split at hyphens, underscores and camel case."""
    return [word.lower() for word in _TOKEN.findall(value)]


def marked_noise(element: _Element) -> re.Match[str] | None:
    """Returns the word of class, id or role by which the element may be site furniture."""
    found = (NOISE_WORDS.search(element.get(attribute) or "") for attribute in ("class", "id", "role"))
    return next(filter(None, found), None)


def role(element: _Element) -> str | None:
    """Returns the part that data-type, class or id name; None for other elements."""
    values = [element.get("data-type") or "", *(element.get("class") or "").split(), element.get("id") or ""]
    return next(filter(None, (part_of_words(tokens(name)) for name in values if name)), None)


def part_of_words(words: list[str]) -> str | None:
    # Joined first, because camel case splits `rightAnswer`, which is one of the words.
    joined = _PARTS.get("".join(words))
    if joined:
        return joined
    if not words or not _WRAPS_OR_NAMES.isdisjoint(words) or len(words) > 4:
        return None
    parts = {_PARTS[word] for word in words if word in _PARTS}
    # "question-answer" names both parts, so it decides nothing.
    return parts.pop() if len(parts) == 1 else None


def is_toggle(element: _Element, name: str) -> bool:
    """True for a link or button that shows or hides a part of the same page."""
    return name == "button" or element.get("role") == "button" or any(element.get(attribute) for attribute in _OPENS)


def image_text(image: _Element) -> str:
    """Returns a picture as Markdown, so that later rules see that the text depends on one."""
    source = (image.get("src") or "").strip()
    alternative = " ".join((image.get("alt") or "").split())
    # A picture embedded in the page's source would put kilobytes of base64 into the text.
    return f"![{alternative}]({'' if source.startswith('data:') else source})"


HEADINGS = {f"h{level}": level for level in range(1, 7)}
# `form` is not included: quizzes show their reviews, with questions and feedback, in a form.
DROPPED = names(
    "script style nav footer aside noscript iframe svg select textarea input head template object "
    "embed canvas audio video map dialog"
)
BLOCKS = (
    names(
        "address article blockquote body button form caption center dd details div dl dt fieldset figcaption "
        "figure header hgroup hr html legend li main menu ol p pre section summary table tbody td tfoot th "
        "thead tr ul"
    )
    | HEADINGS.keys()
)


def parse_html(content: str) -> _Element:
    """Returns the root of the page's tree, without source comments; Unreadable when there is nothing to parse."""
    try:
        root = etree.fromstring(decoded(content), etree.HTMLParser(remove_comments=True, remove_pis=True))
    except (etree.ParserError, etree.XMLSyntaxError, ValueError) as error:
        raise Unreadable("not_html", str(error)) from error
    if root is None:
        raise Unreadable("not_html", "no element")
    return root


MAX_JSON_DEPTH = 20
_SCRIPTS = etree.XPath("//script[contains(@type, 'ld+json')]")
_TAG = re.compile(r"</?[a-z][a-z0-9]*(?:\s[^<>]*)?>", re.IGNORECASE)


def read_structured_data(content: str) -> list[Exercise]:
    """Returns the page's questions that have an answer; damaged data has none."""
    # Nearly no page has one, and this test is far cheaper than parsing the page twice.
    if "QAPage" not in content:
        return []
    root = parse_html(content)
    found = []
    for script in _SCRIPTS(root):
        try:
            data = json.loads(script.text or "")
        except (ValueError, RecursionError):
            continue
        found += [one for page in _of_type(data, "QAPage", 0) for one in _exercises(page)]
    if not found:
        # Only where JSON-LD has nothing, because sites write the same question in both forms.
        item = next((one for one in root.iter() if "schema.org/Question" in one.get("itemtype", "")), None)
        found = [] if item is None else [*_exercises({"mainEntity": _question(item)})]
    return found


def _question(item: _Element) -> dict[str, Any]:
    """Returns a question's microdata in the form of JSON-LD."""
    items: dict[_Element, dict[str, Any]] = {item: {"acceptedAnswer": [], "suggestedAnswer": []}}
    for one in item.iterdescendants():
        name = one.get("itemprop")
        if "schema.org/Answer" in one.get("itemtype", ""):
            items[one] = {}
            items[item]["acceptedAnswer" if name == "acceptedAnswer" else "suggestedAnswer"].append(items[one])
        elif name in ("text", "name", "upvoteCount"):
            # The name of an author or the text of a comment belongs to that item and not to the question.
            around = (outer for outer in one.iterancestors() if outer.get("itemscope") is not None)
            items.get(next(around, item), {}).setdefault(name, one)
    return items[item]


def _of_type(data: Any, kind: str, depth: int) -> Iterator[dict[str, Any]]:
    if depth > MAX_JSON_DEPTH:
        return
    if isinstance(data, dict) and kind in _several(data.get("@type")):
        yield data
        return
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    for one in inner:
        yield from _of_type(one, kind, depth + 1)


def _exercises(page: dict[str, Any]) -> Iterator[Exercise]:
    for question in _several(page.get("mainEntity")):
        if isinstance(question, dict):
            accepted = [one for one in _several(question.get("acceptedAnswer")) if isinstance(one, dict)]
            suggested = [one for one in _several(question.get("suggestedAnswer")) if isinstance(one, dict)]
            # An accepted answer beats any number of votes, because the author of the question has tried it.
            best = max(accepted or suggested, key=_votes, default={})
            problem = _text(question.get("text")) or _text(question.get("name"))
            solution = _text(best.get("text"))
            if problem and solution:
                yield Exercise(problem, solution, None, "")


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _votes(answer: dict[str, Any]) -> int:
    votes = answer.get("upvoteCount")
    if isinstance(votes, _Element):
        votes = votes.get("data-value") or votes.get("content") or (votes.text or "").strip()
    # Pages write "many" or endless numbers here; neither may end the reading.
    return int(votes) if re.fullmatch(r"-?[0-9]{1,9}", str(votes)) else 0


def _text(value: Any) -> str:
    """Returns the words of a field, an element or HTML; text without tags keeps its lines, because code needs them."""
    if isinstance(value, _Element):
        value = etree.tostring(value, encoding="unicode", method="html", with_tail=False)
    if not isinstance(value, str) or not _TAG.search(value):
        return value.strip() if isinstance(value, str) else ""
    try:
        page = read_html(value)
    except Unreadable:
        return ""
    return section_text(page, Label(Part.BOUNDARY, "", ""), -1, len(page.blocks))
