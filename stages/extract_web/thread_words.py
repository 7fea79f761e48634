"""The words of threads: what counts posts, what chooses one, what the markup calls posts that ask or answer."""

from __future__ import annotations

import re

from lxml.etree import _Element

from stages.extract_web.instructions import ASKS
from stages.extract_web.markup import tokens
from stages.extract_web.mathml import names

_POSTS = r"(?:answers?|solutions?|repl(?:y|ies)|responses?)"
_COUNTED = re.compile(
    rf"\W*(?:(\d{{1,3}})\s+{_POSTS}\b.{{0,30}}|(?:answers?|solutions?|replies|responses?)\s*[:(]\s*(\d{{1,3}})\W*)",
    re.IGNORECASE,
)
_OVER_POSTS = re.compile(
    rf"\W*(?:\d{{1,3}}\s+{_POSTS}\b.{{0,30}}|{_POSTS}\s*[:(]?\s*\d{{1,4}}\b.{{0,30}}"
    rf"|(?:no\s+|all\s+|other\s+|more\s+|\d{{1,3}}\s+)*{_POSTS}(?:\s+(?:from|by|to|yet)\b.{{0,30}})?"
    r"|discussion|comments)\W*",
    re.IGNORECASE,
)
_ACCEPTED = re.compile(
    r"[\W\d]*(?:(?:the\s+)?(?:accepted|best|chosen|verified|correct)(?:\s+(?:answer|solution|reply|response))?|solved)\W*"
    r"|\W*(?:marked|chosen|selected|accepted)\s+as\b.{0,40}|[✓✔✅☑\uFE0F\s]+",
    re.IGNORECASE,
)
_CHOSEN = re.compile(
    r"\b(?:accepted|(?:best|chosen|top|correct)\s+(?:answer|reply|solution|response)|verified)\b", re.IGNORECASE
)
_OFFERS = re.compile(r"\W*(?:mark|choose|select|accept|click|report|not|un\w+)\b", re.IGNORECASE)
_MARKS = names("accepted best chosen selected correct verified solved")
_NEGATED = names("not un no non in off")
_ASKS = names("question questions op opening original starter opener asker root topic ask problem prompt first")
_ANSWERS = names("answer answers reply replies response responses comment comments solution suggestedanswer")
_WANTS = re.compile(
    r"\b(?:how|what|why|which|when|where|who|whose|can|could|help|define|identify|verify|convert|express|rewrite|compare"
    r"|discuss|choose|estimate|classify|differentiate|integrate|expand|divide|multiply|add|subtract|use|let|draw|plot)\b",
    re.IGNORECASE,
)
"""What a post says that asks, beside what exercises say."""
MAX_CHARACTERS = 60


def counted_posts(text: str) -> int:
    """The number of posts that a heading over them tells ("3 Answers", "Replies (3)"); 0 for other texts."""
    found = _COUNTED.fullmatch(text) if len(text) <= MAX_CHARACTERS else None
    return int(found[1] or found[2]) if found else 0


def is_over_posts(text: str) -> bool:
    """True for what stands over a thread's answers: their number, or "Answers"."""
    return len(text) <= MAX_CHARACTERS and bool(_OVER_POSTS.fullmatch(text))


def says_accepted(text: str) -> bool:
    """True for a text that says of the post around it that it was chosen, and nothing else."""
    return 0 < len(text) <= MAX_CHARACTERS and bool(_ACCEPTED.fullmatch(text))


def is_marked_accepted(element: _Element) -> bool:
    """True where class, microdata or a tooltip says that the element is the chosen post, or the mark of one."""
    words = tokens(f"{element.get('class') or ''} {element.get('itemprop') or ''}")
    if not _MARKS.isdisjoint(words) and _NEGATED.isdisjoint(words):
        return True
    for attribute in ("title", "aria-label", "alt"):
        told = element.get(attribute)
        if told and len(told) <= 2 * MAX_CHARACTERS and _CHOSEN.search(told) and not _OFFERS.match(told):
            return True
    return False


def asks_a_forum(text: str) -> bool:
    """True for a text that wants something done or told."""
    return bool(ASKS.search(text) or _WANTS.search(text))


def is_named_asking(element: _Element) -> bool:
    """True for a box that the markup names as the post that asks."""
    words = tokens(f"{element.get('class') or ''} {(element.get('itemtype') or '').rpartition('/')[2]}")
    return not _ASKS.isdisjoint(words) and _ANSWERS.isdisjoint(words)


def is_named_answering(element: _Element) -> bool:
    """True for a box that the markup names as a post that answers."""
    given = f"{element.get('class') or ''} {(element.get('itemtype') or '').rpartition('/')[2]}"
    return not _ANSWERS.isdisjoint(tokens(given))
