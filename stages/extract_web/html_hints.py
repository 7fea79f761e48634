"""What the tree of an HTML page says about its parts beyond single elements: names of panels, records of two parts.

A panel of tabs or of an accordion is named by another element, by id (WAI-ARIA: `aria-labelledby`, `aria-controls`).
Records are boxes that repeat with the same two parts (a question in the head of an accordion, its answer in the body):
sites of this kind label nothing in words. Both are looked for only where the page's markup has such words at all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

from lxml.etree import _Element

from stages.extract_web.blocks import tidy
from stages.extract_web.html_openers import MAY_OPEN, MIN_OPENERS, opened_parts, openers
from stages.extract_web.html_threads import Posts, read_threads
from stages.extract_web.induced_labels import MIN_ASKING, asks
from stages.extract_web.instructions import ASKS
from stages.extract_web.label_words import WORDS
from stages.extract_web.labels import is_toggle_label, is_whole_label, is_worded_label
from stages.extract_web.markup import tokens
from stages.extract_web.mathml import name_of, names
from stages.extract_web.numbering import strip_number
from stages.extract_web.thread_words import may_hold_threads

_NAMES_PANELS = re.compile(
    r"aria-labelledby|role=[\"']?tab\b|aria-label=|data-(?:label|title|name|heading)="
    rf"|\s(?:title|label|heading|name)=(?i:[\"']?(?:[\w'’-]+\s+){{0,3}}"
    rf"(?:{WORDS['solution']}|{WORDS['answer']}|{WORDS['problem']}))"
)
_NAMES = (
    "aria-label",
    "data-label",
    "data-title",
    "data-name",
    "data-heading",
    "title",
    "label",
    "heading",
    "name",
)
_BOXES = names("div section article blockquote p")
_HAS_RECORDS = re.compile(
    r"aria-(?:controls|expanded)|data-(?:bs-)?(?:target|toggle)=|<summary"
    r"|(?:class|id)=[\"']?[^\"'<>]{0,200}?"
    r"(?:accordion|faq|qa\b|quiz|flash-?card|flip|collaps|toggle|term|reveal|spoiler|expand)",
    re.IGNORECASE,
)
_HAS_POSTS = re.compile(
    r"class=[\"']?[^\"'<>]{0,200}?(?:post|reply|response|message)|schema\.org/(?:Comment|Discussion)",
    re.IGNORECASE,
)
_RECORD_WORDS = names(
    "accordion faq faqs qa quiz flashcard flashcards flip flipcard collapse collapsed collapsible toggle toggler "
    "term terms definition reveal expand expandable disclosure details summary spoiler front back"
)
_OPENS = ("aria-controls", "aria-expanded", "data-target", "data-bs-target", "data-toggle", "data-bs-toggle")
_WITHOUT_TEXT = names("script style noscript iframe svg select textarea input head template nav footer aside")
_TRIGGERS = names("button a summary")
_ALNUM = re.compile(r"[^\W_]")
_DIGITS = re.compile(r"\d+")
MIN_RECORDS = 3
MIN_AGREEING = 0.7
"""Share of the records that split in two the same way, of those that split at all."""
MAX_TERMS = 8
"""Terms of a list that tell whether its terms are questions."""
MAX_DEPTH = 12
MAX_READ = 100
"""Elements and texts of a head that are looked at: heads may be nested."""
MAX_LABEL_CHARACTERS = 60


@dataclass(slots=True)
class Hints:
    """By element of the tree."""

    panels: dict[_Element, str] = field(default_factory=dict)
    """Container -> the label that another element or an attribute gives it."""
    records: dict[_Element, str] = field(default_factory=dict)
    """Container -> problem or solution."""
    openers: frozenset[_Element] = frozenset()
    """Buttons that open what stands after them."""
    opened: dict[_Element, _Element] = field(default_factory=dict)
    """Link or button -> the hidden part of the page that it opens."""
    has_posts: bool = False
    """True where the markup may name posts of a thread."""
    posts: Posts = field(default_factory=Posts)
    """The posts of threads that the page's structure shows."""
    layouts: set[_Element] = field(default_factory=set)
    """Tables around posts."""

    def is_part(self, link: _Element) -> bool:
        """True for a link that is an exercise, or opens a part of one."""
        return link in self.records or link in self.opened


def read_hints(root: _Element, content: str) -> Hints:
    """The hints of a page; `content` is its source, searched for words without which there are none."""
    hints = Hints()
    if _NAMES_PANELS.search(content):
        hints.panels = _panels(root)
    if _HAS_RECORDS.search(content):
        hints.records = _records([root])
    elif "<dt" in content:
        hints.records = _records(_lists_of_terms(root))
    if content.count("<button") >= MIN_OPENERS:
        hints.openers = openers(root)
    if MAY_OPEN.search(content):
        hints.opened = opened_parts(root)
    hints.has_posts = bool(_HAS_POSTS.search(content))
    if may_hold_threads(content):
        hints.posts = read_threads(root)
        hints.has_posts = hints.has_posts or bool(hints.posts.parts)
        hints.layouts.update(
            table for post in hints.posts.parts for table in (post, *post.iterancestors("table"))
        )
    return hints


def _panels(root: _Element) -> dict[_Element, str]:
    by_id: dict[str, _Element] = {}
    controlled: dict[str, str] = {}
    for element in root.iter():
        if not isinstance(element.tag, str):
            continue
        if element.get("id"):
            by_id.setdefault(element.get("id"), element)
        if element.get("role") == "tab":
            target = element.get("aria-controls") or (element.get("href") or "").removeprefix("#")
            controlled.setdefault(target, _short_text(element))
    panels: dict[_Element, str] = {}
    for element in root.iter():
        if not isinstance(element.tag, str) or (element.tag not in _BOXES and "-" not in element.tag):
            continue
        named = by_id.get((element.get("aria-labelledby") or "").strip())
        if named is not None and not _holds(element, named):
            name = _short_text(named)
        else:
            given = next(filter(None, map(element.get, _NAMES)), "")
            name = given or controlled.get(element.get("id") or "", "")
            name = name if name and _shows_text(element) else ""
        if name and (is_worded_label(name) or is_toggle_label(name)) and len(name) <= MAX_LABEL_CHARACTERS:
            panels[element] = name
    return panels


def _holds(element: _Element, inner: _Element) -> bool:
    steps = 0
    parent: _Element | None = inner
    while parent is not None and steps < 200:
        if parent is element:
            return True
        parent, steps = parent.getparent(), steps + 1
    return False


def _shows_text(element: _Element) -> bool:
    """True where one of the first elements within holds a letter or a digit."""
    inner = islice(element.iter(), MAX_READ)
    return any(
        _ALNUM.search(f"{one.text or ''} {one.tail or '' if one is not element else ''}") for one in inner
    )


def _short_text(element: _Element) -> str:
    return tidy("".join(element.itertext())) if len(element) < 10 else ""


def _lists_of_terms(root: _Element) -> list[_Element]:
    """The lists of terms that stand in no other and whose first terms ask."""
    found: list[_Element] = []
    inner: set[_Element] = set()
    for one in root.iter("dl"):
        if one in inner:
            continue
        inner.update(one.iter("dl"))
        texts = [tidy("".join(islice(term.itertext(), MAX_READ))) for term in one.iter("dt")]
        asking = list(map(_is_sentence, texts[:MAX_TERMS]))
        if len(texts) >= MIN_RECORDS and (2 * sum(asking) >= len(asking) or _are_numbered_tasks(texts)):
            found.append(one)
    return found


def _records(tops: Sequence[_Element]) -> dict[_Element, str]:
    elements = _outside_formulas(tops)
    holds_text = _texts(elements)
    found: dict[_Element, str] = {}
    for parent in elements:
        if len(parent) < MIN_RECORDS or parent not in holds_text or parent.tag == "math":
            continue
        children = [child for child in parent if child in holds_text]
        for pairs in (_alternating(children), _alike(children, holds_text)):
            if pairs and _are_exercises(pairs):
                for problem, solution in pairs:
                    found.setdefault(_trigger(problem, holds_text), "problem")
                    if solution is not None:
                        found.setdefault(solution, "solution")
                break
    return found


def _outside_formulas(tops: Sequence[_Element]) -> list[_Element]:
    """Elements that may show text, parents before children; formulas as one element."""
    found: list[_Element] = []
    stack = list(tops)
    while stack:
        element = stack.pop()
        if isinstance(element.tag, str) and element.tag not in _WITHOUT_TEXT:
            found.append(element)
            if element.tag != "math":
                stack.extend(element)
    return found


def _trigger(head: _Element, holds_text: set[_Element]) -> _Element:
    """The button or link that is all of a head's text, else the head: a reader drops buttons unless told otherwise."""
    inner = head
    for _ in range(MAX_DEPTH):
        parts = [child for child in inner if child in holds_text]
        if name_of(inner) in _TRIGGERS or len(parts) != 1:
            break
        inner = parts[0]
    return inner if name_of(inner) in _TRIGGERS else head


def _texts(elements: Sequence[_Element]) -> set[_Element]:
    """Those of the elements that show a letter or a digit; children stand after their parents."""
    found: set[_Element] = set()
    for element in reversed(elements):
        own = element.tag in ("img", "math") or _ALNUM.search(element.text or "")
        if own or any(child in found or _ALNUM.search(child.tail or "") for child in element):
            found.add(element)
    return found


_Pairs = list[tuple[_Element, _Element | None]]


def _signature(element: _Element) -> tuple[str, str]:
    return name_of(element), _DIGITS.sub("", element.get("class") or "")


def _alternating(children: Sequence[_Element]) -> _Pairs:
    """Heads and bodies in turn under one parent; a head may lack its body."""
    kinds = [_signature(child) for child in children]
    common = [kind for kind, count in Counter(kinds).most_common(3) if count >= MIN_RECORDS]
    if len(common) < 2:
        return []
    head, body = sorted(common[:2], key=kinds.index)
    pairs: _Pairs = []
    for index, kind in enumerate(kinds):
        if kind == head:
            has_body = index + 1 < len(kinds) and kinds[index + 1] == body
            pairs.append((children[index], children[index + 1] if has_body else None))
    bodies = sum(body is not None for _, body in pairs)
    return pairs if bodies == kinds.count(body) else []


def _alike(children: Sequence[_Element], holds_text: set[_Element]) -> _Pairs:
    """Boxes of one kind, each with one part or the same two."""
    kind, count = Counter(map(_signature, children)).most_common(1)[0] if children else (("", ""), 0)
    if count < MIN_RECORDS:
        return []
    boxes = [child for child in children if _signature(child) == kind]
    splits = [(box, _split(box, holds_text)) for box in boxes]
    shapes = Counter((_signature(split[0]), _signature(split[1])) for _, split in splits if split)
    if not shapes:
        return []
    shape, agreeing = shapes.most_common(1)[0]
    if agreeing < MIN_RECORDS or agreeing < MIN_AGREEING * sum(shapes.values()):
        return []
    return [
        split if split and (_signature(split[0]), _signature(split[1])) == shape else (box, None)
        for box, split in splits
    ]


def _split(box: _Element, holds_text: set[_Element]) -> tuple[_Element, _Element] | None:
    """The two parts of a box, which wrappers may surround; None where there is only one, or text beside them.

    Of the parts that a summary opens the first: the box says how far they reach.
    """
    for _ in range(MAX_DEPTH):
        parts = [child for child in box if child in holds_text]
        if _ALNUM.search(box.text or "") or any(_ALNUM.search(child.tail or "") for child in box):
            return None
        if len(parts) == 2 or (len(parts) > 2 and parts[0].tag == "summary"):
            return parts[0], parts[1]
        if len(parts) != 1:
            return None
        box = parts[0]
    return None


def _are_exercises(pairs: _Pairs) -> bool:
    """True where the markup speaks of heads that open and the heads ask something, each something else."""
    if sum(solution is not None for _, solution in pairs) < MIN_RECORDS:
        return False
    first, opened = next(pair for pair in pairs if pair[1] is not None)
    texts = [tidy("".join(islice(problem.itertext(), MAX_READ))) for problem, _ in pairs]
    are_terms = first.tag == "dt" and sum(map(_is_sentence, texts)) > MIN_AGREEING * len(texts)
    are_terms = are_terms or (all(head.tag == "dt" for head, _ in pairs) and _are_numbered_tasks(texts))
    if not are_terms and not any(map(_speaks, (*islice(first.iter(), MAX_READ), opened, *_above(first)))):
        return False
    if any(map(is_whole_label, texts)) or len(set(texts)) <= len(texts) / 2:
        return False
    return sum(map(asks, texts)) >= MIN_ASKING * len(texts)


def _is_sentence(text: str) -> bool:
    """True for a question or an order of several words, unlike the name of what a list describes."""
    return " " in text and bool(ASKS.search(text)) and (text[-1:] in ".?!:" or "$" in text)


def _are_numbered_tasks(texts: Sequence[str]) -> bool:
    """True for texts whose numbers rise and most of which ask or calculate something."""
    numbered = list(map(strip_number, texts))
    if not all(number.isdecimal() for number, _ in numbered):
        return False
    if any(int(before) >= int(after) for (before, _), (after, _) in pairwise(numbered)):
        return False
    return 2 * sum(" " in text and ("=" in text or bool(ASKS.search(text))) for _, text in numbered) > len(
        texts
    )


def _above(element: _Element) -> list[_Element]:
    found = []
    while (parent := element.getparent()) is not None and len(found) < 4:
        found.append(parent)
        element = parent
    return found


def _speaks(element: _Element | None) -> bool:
    """True for markup of heads that open a body, and of cards with two sides."""
    if element is None or not isinstance(element.tag, str):
        return False
    if name_of(element) == "summary" or any(element.get(attribute) for attribute in _OPENS):
        return True
    return not _RECORD_WORDS.isdisjoint(tokens(f"{element.get('class') or ''} {element.get('id') or ''}"))
