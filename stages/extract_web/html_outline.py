"""An HTML tree as boxes and lines: what the search for posts of threads reads.

A line is an element without blocks in it, or text between blocks; every other node is a box. A line is content unless
it is one of the things that sites put around posts: a score, a mark of acceptance, a title, a count, a byline, links.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice

from lxml.etree import _Element

from stages.extract_web.blocks import tidy
from stages.extract_web.furniture import is_furniture
from stages.extract_web.html_elements import BLOCKS, DROPPED
from stages.extract_web.html_tables import HEADINGS
from stages.extract_web.markup import (
    is_beside_text,
    is_marked_noise,
    is_page_form,
    tokens,
    vote,
    written_vote,
)
from stages.extract_web.mathml import name_of, names
from stages.extract_web.thread_words import is_marked_accepted, is_over_posts, says_accepted

Key = tuple[str, ...]
"""Tag and classes of a box, without what differs between boxes of one kind; of one without classes also its parent's.
"""
_ALNUM = re.compile(r"[^\W_]")
_DIGITS = re.compile(r"\d+")
_STATE = names(
    "accepted best chosen selected correct verified solved featured highlighted highlight active odd even last new "
    "unread read"
)
_TITLES = names("title subject headline topic")
_LINKS = names("a button")
_HOLDS_SCORE = re.compile(r"vot|scor|like|point|rat|karma|helpful", re.IGNORECASE)
MAX_INNER = 12
MAX_DEPTH = 150
"""Elements nested deeper are left out, as by the reader."""
MAX_LINE_CHARACTERS = 200
MAX_LINKS_CHARACTERS = 80
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
        self.scored.append(False)
        self.accepted.append(element is not None and is_marked_accepted(element))
        self.keys.append(self._key(element, parent))
        if parent >= 0:
            self.children[parent].append(node)
        return node

    def _key(self, element: _Element | None, parent: int) -> Key:
        if element is None:
            return ("",)
        given = (element.get("class") or (element.get("itemtype") or "").rpartition("/")[2]).split()
        kept = sorted({_DIGITS.sub("", name) for name in given if _STATE.isdisjoint(tokens(name))})
        return (name_of(element), *kept) if kept or parent < 0 else (name_of(element), "", *self.keys[parent][:4])

    def finish(self) -> Outline:
        """Computes `ends` and `contents` once all nodes are there."""
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
    holders = _holders(root)
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
        if not name or (name in DROPPED and not is_page_form(item)):
            continue
        node = found.add(item, parent)
        if item not in holders or _is_score(item):
            _classify(found, node, item, tidy("".join(item.itertext())))
        elif name not in ("html", "body", "main") and is_marked_noise(item) and not _may_hold_score(item):
            found.kinds[node] = "beside"
        else:
            stack += [(part, node, depth + 1) for part in reversed(_parts(item)) if depth < MAX_DEPTH]
    return found.finish()


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


def _is_score(element: _Element) -> bool:
    return bool(element.get("class")) and vote(element) is not None


def _may_hold_score(element: _Element) -> bool:
    given = element.get("class")
    return bool(given and _HOLDS_SCORE.search(given))


def _classify(found: Outline, node: int, element: _Element | None, text: str) -> None:
    """Says what a line is."""
    is_short = len(text) <= MAX_LINE_CHARACTERS
    inner = list(islice(element.iter(), MAX_INNER)) if element is not None and is_short else []
    found.texts[node] = text
    found.scored[node] = is_short and (
        written_vote(text) is not None or any(isinstance(one.tag, str) and _is_score(one) for one in inner)
    )
    found.accepted[node] = found.accepted[node] or (
        is_short and (says_accepted(text) or any(isinstance(one.tag, str) and _accepts(one) for one in inner))
    )
    found.kinds[node] = _line_kind(found, node, element, text)


def _accepts(element: _Element) -> bool:
    return is_marked_accepted(element) or says_accepted(tidy(element.text or ""))


def _line_kind(found: Outline, node: int, element: _Element | None, text: str) -> str:
    if not _ALNUM.search(text):
        return "content" if not text and _has_image(element) else "beside"
    if len(text) > MAX_LINE_CHARACTERS:
        return "content"
    if is_over_posts(text):
        return "count"
    if element is not None and _is_title(element) and len(text) <= MAX_HEADING_CHARACTERS:
        return "title"
    if found.scored[node] or says_accepted(text) or is_furniture(text):
        return "beside"
    if element is not None and (is_marked_noise(element) or is_beside_text(element) or _is_links(element, text)):
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
    return bool(given) and not _TITLES.isdisjoint(tokens(given))


def _is_links(element: _Element, text: str) -> bool:
    """True for links and buttons with nothing but signs between them."""
    if len(text) > MAX_LINKS_CHARACTERS:
        return False
    if element.tag in _LINKS:
        return True
    linked = sum(len(_ALNUM.findall("".join(link.itertext()))) for link in element.iter(*_LINKS))
    return linked >= len(_ALNUM.findall(text))
