"""An HTML tree as boxes and lines: what the search for posts of threads reads.

A line is an element without blocks in it, or text between blocks; every other node is a box. A line is content unless
it is one of the things that sites put around posts: a score, a mark of acceptance, a title, a count, a byline, links.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from lxml import etree
from lxml.etree import _Element

from stages.extract_web.blocks import tidy
from stages.extract_web.furniture import is_byline, is_furniture
from stages.extract_web.html_elements import BLOCKS, DROPPED, HEADINGS
from stages.extract_web.markup import (
    is_beside_text,
    is_marked_noise,
    is_page_form,
    own_name,
    role,
    tokens,
    vote,
    written_vote,
)
from stages.extract_web.mathml import name_of, names
from stages.extract_web.thread_words import (
    is_badge,
    is_beside_posts,
    is_marked_accepted,
    is_over_posts,
    is_state,
    says_accepted,
)

Key = tuple[str, ...]
"""Tag and classes of a box, without what differs between boxes of one kind; of one without classes also its parent's.
"""
_ALNUM = re.compile(r"[^\W_]")
_DIGITS = re.compile(r"\d+")
_TITLES = names("title subject headline topic")
_LINKS = names("a button")
_BETWEEN = re.compile(r"\s*[•·|]\s*")
_NAME_OR_TIME = re.compile(r"(?:by\s+)?(?:@|/?u/)[\w.-]{1,40}|[^\n]{1,20}\bago", re.IGNORECASE)
_CELLS = names("td th")
_COMMENTS = names("comment comments")
_HOLDS_SCORE = re.compile(r"vot|scor|like|point|rat|karma|helpful", re.IGNORECASE)
MAX_INNER = 12
MAX_DEPTH = 150
"""Elements nested deeper are left out, as by the reader."""
MAX_LINE_CHARACTERS = 200
MAX_LINKS_CHARACTERS = 80
MAX_NAME_CHARACTERS = 40
MAX_HEADING_CHARACTERS = 150


@dataclass(slots=True)
class Outline:
    """Nodes in document order; lists by node."""

    elements: list[_Element | None] = field(default_factory=list)
    """None for text between blocks."""
    parents: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    """The node after the last one inside."""
    children: list[list[int]] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    """Empty for a box; of a line content, title, count, rule or beside."""
    texts: list[str] = field(default_factory=list)
    """Of lines."""
    scores: list[int | None] = field(default_factory=list)
    """Of a line that shows one."""
    scored: list[bool] = field(default_factory=list)
    """True for a line that shows a score."""
    accepted: list[bool] = field(default_factory=list)
    """True for what says that the post around it, or it, was chosen."""
    contents: list[int] = field(default_factory=list)
    """How many lines of content stand before each node; one entry more than nodes."""

    def add(self, element: _Element | None, parent: int) -> int:
        """A new node, a box until it is told otherwise."""
        node = len(self.elements)
        self.elements.append(element)
        self.parents.append(parent)
        self.children.append([])
        self.kinds.append("")
        self.texts.append("")
        self.scores.append(None)
        self.accepted.append(element is not None and is_marked_accepted(element))
        self.keys.append(self._key(element, parent))
        if parent >= 0:
            self.children[parent].append(node)
        return node

    def _key(self, element: _Element | None, parent: int) -> Key:
        if element is None:
            return ("",)
        kind = (element.get("itemtype") or "").rpartition("/")[2] or element.get("role") or own_name(element)
        given = (element.get("class") or kind).split()
        kept = sorted({_DIGITS.sub("", name) for name in given if not is_state(name)})
        return (
            (name_of(element), *kept)
            if kept or parent < 0
            else (name_of(element), "", *self.keys[parent][:4])
        )

    def finish(self) -> Outline:
        """Computes `ends`, `contents` and `scored` once all nodes are there."""
        self.scored = [score is not None for score in self.scores]
        self.ends = [node + 1 for node in range(len(self.elements))]
        for node in range(len(self.elements) - 1, 0, -1):
            parent = self.parents[node]
            self.ends[parent] = max(self.ends[parent], self.ends[node])
        self.contents = [0]
        for kind in self.kinds:
            self.contents.append(self.contents[-1] + (kind == "content"))
        return self

    def has_content(self, node: int) -> bool:
        """True where a line of the node is content."""
        return self.contents[self.ends[node]] > self.contents[node]

    def text(self, node: int) -> str:
        """The content lines of the node."""
        inside = range(node, self.ends[node])
        return "\n".join(self.texts[one] for one in inside if self.kinds[one] == "content")


def outline(root: _Element) -> Outline:
    """The outline of a page; what holds no text of its own (navigation, comments, forms) is left out."""
    holders, remarks = _holders(root), _remarks(root)
    found = Outline()
    stack: list[tuple[_Element | str, int, int]] = [(root, -1, 0)]
    while stack:
        item, parent, depth = stack.pop()
        if isinstance(item, str):
            node = found.add(None, parent)
            _classify(found, node, None, tidy(item))
            continue
        name = name_of(item)
        if name == "hr":
            found.kinds[found.add(item, parent)] = "rule"
            continue
        is_foot = (
            bool(name)
            and (name == "footer" or is_marked_noise(item))
            and name not in ("html", "body", "main")
        )
        score = _score_in_foot(item) if is_foot else None
        if score is None and (not name or (name in DROPPED and not is_page_form(item))):
            continue
        node = found.add(item, parent)
        if score is not None:
            found.kinds[node], found.scores[node] = "beside", score
        elif name in remarks:
            found.kinds[node] = "beside"
        elif item not in holders or _is_score(item):
            _classify(found, node, item, tidy(_text(item)))
        elif is_foot and not _may_hold_score(item):
            found.kinds[node] = "beside"
        else:
            stack += [(part, node, depth + 1) for part in reversed(_parts(item)) if depth < MAX_DEPTH]
    return found.finish()


def _text(element: _Element) -> str:
    """The element's text with its line breaks."""
    if element.find(".//br") is None:
        return "".join(element.itertext())
    pieces: list[str] = []
    for event, inner in etree.iterwalk(element, events=("start", "end")):
        if event == "start":
            pieces.append("\n" if inner.tag == "br" else inner.text or "")
        elif inner is not element:
            pieces.append(inner.tail or "")
    return "".join(pieces)


def _parts(element: _Element) -> list[_Element | str]:
    """Children and the texts between them that hold something."""
    parts: list[_Element | str] = []
    if element.text and element.text.strip():
        parts.append(element.text)
    for child in element:
        parts.append(child)
        if child.tail and child.tail.strip():
            parts.append(child.tail)
    return parts


def _holders(root: _Element) -> set[_Element]:
    """Elements with a block inside."""
    found = {root}
    for element in root.iter(*BLOCKS):
        parent = element.getparent()
        while parent is not None and parent not in found:
            found.add(parent)
            parent = parent.getparent()
    return found


def _remarks(root: _Element) -> frozenset[str]:
    """Names of the page's own elements that call themselves comments; none where nothing else on it answers."""
    own = {own_name(element) for element in root.iter(etree.Element)}
    remarks = frozenset(name for name in own if not _COMMENTS.isdisjoint(tokens(name)))
    said = map(role, root.iter(etree.Element)) if remarks else ()
    return remarks if any(one is not None and one[0] == "answer" for one in said) else frozenset()


def _is_score(element: _Element) -> bool:
    return bool(element.get("class") or element.get("itemprop")) and vote(element) is not None


def _score_in_foot(element: _Element) -> int | None:
    """The score that the foot of a post shows beside its links."""
    inner = [one for one in islice(element.iter(etree.Element), MAX_INNER) if one is not element]
    shown = [one for one in inner if _is_score(one) and not len(one)]
    return vote(shown[0]) if len(shown) == 1 and element.find(".//p") is None else None


def _may_hold_score(element: _Element) -> bool:
    given = element.get("class")
    return bool(given and _HOLDS_SCORE.search(given))


def _classify(found: Outline, node: int, element: _Element | None, text: str) -> None:
    """Says what a line is."""
    is_short = len(text) <= MAX_LINE_CHARACTERS
    inner = list(islice(element.iter(), MAX_INNER)) if element is not None and is_short else []
    found.texts[node] = text
    found.scores[node] = _score(text, inner) if is_short else None
    found.accepted[node] = found.accepted[node] or (
        is_short and (says_accepted(text) or any(isinstance(one.tag, str) and _accepts(one) for one in inner))
    )
    found.kinds[node] = _line_kind(found, node, element, text)


def _score(text: str, inner: Sequence[_Element]) -> int | None:
    """The score that a line is, or that an element in it is named for or told to show."""
    written = written_vote(text)
    written = _score_beside_name(text) if written is None else written
    if written is not None:
        return written
    for one in inner if len(text) <= MAX_LINKS_CHARACTERS else ():
        if isinstance(one.tag, str):
            said = vote(one) if one.get("class") or one.get("itemprop") else None
            said = written_vote(one.get("aria-label") or "") if said is None else said
            if said is not None:
                return said
    return None


def _score_beside_name(text: str) -> int | None:
    """The score in a line of an account or a time and a score."""
    parts = _BETWEEN.split(text) if len(text) <= MAX_LINKS_CHARACTERS else []
    if len(parts) < 2 or not any(map(_NAME_OR_TIME.fullmatch, parts)):
        return None
    return next((score for part in parts if (score := written_vote(part)) is not None), None)


def _accepts(element: _Element) -> bool:
    return is_marked_accepted(element) or is_badge(element) or says_accepted(tidy(element.text or ""))


def _line_kind(found: Outline, node: int, element: _Element | None, text: str) -> str:
    if not _ALNUM.search(text):
        return "content" if not text and _has_image(element) else "beside"
    if len(text) > MAX_LINE_CHARACTERS:
        return "content"
    if is_over_posts(text):
        return "count"
    if element is not None and _is_title(element) and len(text) <= MAX_HEADING_CHARACTERS:
        return "title"
    if found.scores[node] is not None or says_accepted(text) or is_furniture(text) or is_beside_posts(text):
        return "beside"
    if (
        "\n" in text
        and is_byline(text)
        and all(len(line) <= MAX_NAME_CHARACTERS for line in text.split("\n"))
    ):
        return "beside"
    if element is not None and (
        is_marked_noise(element) or is_beside_text(element) or _is_links(element, text)
    ):
        return "beside"
    return "content"


def _has_image(element: _Element | None) -> bool:
    if element is None or is_beside_text(element):
        return False
    return element.tag == "img" or element.find(".//img") is not None


def _is_title(element: _Element) -> bool:
    if element.tag in HEADINGS:
        return True
    given = element.get("class")
    return (bool(given) and not _TITLES.isdisjoint(tokens(given))) or _is_row_over_table(element)


def _is_row_over_table(element: _Element) -> bool:
    """True for the one cell of a table's first row that spans columns."""
    row = element.getparent() if element.tag in _CELLS and element.get("colspan", "1") != "1" else None
    return row is not None and row.tag == "tr" and len(row) == 1 and row.getprevious() is None


def _is_links(element: _Element, text: str) -> bool:
    """True for links and buttons with nothing but signs between them."""
    if len(text) > MAX_LINKS_CHARACTERS:
        return False
    if element.tag in _LINKS:
        return True
    linked = sum(len(_ALNUM.findall("".join(link.itertext()))) for link in element.iter(*_LINKS))
    return linked >= len(_ALNUM.findall(text))
