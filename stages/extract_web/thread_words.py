"""The words of threads: what counts posts, what chooses one, what the markup calls posts that ask or answer."""

from __future__ import annotations

import re

from lxml.etree import _Element

from stages.extract_web.instructions import ASKS
from stages.extract_web.markup import own_name, tokens
from stages.extract_web.mathml import names

_POSTS = r"(?:answers?|solutions?|repl(?:y|ies)|responses?)"
_COUNTED = re.compile(
    rf"\W*(?:(\d{{1,3}})\s+{_POSTS}\b.{{0,30}}|(?:answers?|solutions?|replies|responses?)\s*[:(]\s*(\d{{1,3}})\W*)",
    re.IGNORECASE,
)
_OVER_POSTS = re.compile(
    rf"\W*(?:\d{{1,3}}\s+{_POSTS}\b.{{0,30}}|{_POSTS}\s*[:(]?\s*\d{{1,4}}\b.{{0,30}}"
    rf"|(?:no\s+|all\s+|other\s+|more\s+|\d{{1,3}}\s+)*{_POSTS}(?:\s+(?:from|by|to|yet)\b.{{0,30}})?"
    r"|(?:[^\W\d]+\s+){1,3}(?:answers|replies|responses|replied|answered)|discussion"
    r"|(?:all\s+)?(?:\d{1,4}\s+)?comments)\W*",
    re.IGNORECASE,
)
_NO_POSTS = re.compile(
    rf"\W*(?:there\s+are\s+)?(?:no|0)\s+{_POSTS}(?:\s+(?:yet|so\s+far|posted|given))*\W*", re.IGNORECASE
)
_ACCEPTED = re.compile(
    r"[\W\d]*(?:(?:the\s+)?(?:accepted|best|chosen|verified|correct)(?:\s+(?:answer|solution|reply|response))?|solved)"
    r"(?:\W+(?:as\s+)?(?:chosen|selected|marked|picked|voted|accepted)\b.{0,30})?\W*"
    r"|\W*(?:marked|chosen|selected|accepted)\s+as\b.{0,40}|[✓✔✅☑\uFE0F\s]+"
    r"|\W*(?:(?:this\s+)?(?:answer|reply|solution|response|post)\s+(?:was|is|has\s+been)\s+)?"
    r"(?:accepted|chosen|selected|verified)\s+by\b.{0,30}",
    re.IGNORECASE,
)
_BESIDE = re.compile(
    r"was\s+this\b.{0,30}\bhelpful\b.{0,20}|viewed\s+[\d,.]+\s+times|(?:write|post|add|give)\s+(?:an?|your)\s+"
    r"(?:answer|reply|comment)\W*|(?:be\s+the\s+first|nobody\s+has)\b.{0,40}|[^\n?=]{1,40}\s(?:says|writes):"
    r"|(?:by\s+)?[^\n?=]{1,40},?\s+(?:an?|\d{1,3})\s+(?:second|minute|hour|day|week|month|year)s?\s+ago"
    r"|by\s+[^\n?=]{1,40}[»|,·-]\s*[^\n?=]{0,12}\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[^\n?=]{0,24}",
    re.IGNORECASE,
)
"""What stands in and between posts."""
_CHOSEN = re.compile(
    r"\b(?:accepted|(?:best|chosen|top|correct)\s+(?:answer|reply|solution|response)|verified)\b",
    re.IGNORECASE,
)
_OFFERS = re.compile(r"\W*(?:mark|choose|select|accept|click|report|not|un\w+)\b", re.IGNORECASE)
_MARKS = names("accepted best chosen selected correct verified solved")
_TRUE = names("true 1 yes")
_STATE = names(
    "accepted best chosen selected correct verified solved featured highlighted highlight active odd even last new "
    "unread read"
)
_BADGES = names("ribbon badge flag stamp label chip mark tick")
_NAMES_BEST = re.compile(r"\W*(?:(?:the\s+)?(?:solution|answer)|solved|top)\W*", re.IGNORECASE)
_IS_CHOSEN = re.compile(r"\b(?:is|has|marked)[-_]?(?:solution|answer)\b|\w--solution\b", re.IGNORECASE)
_NEGATED = names("not un no non in off")
_ASKS = names(
    "question questions op opening original starter opener asker root topic ask problem prompt first"
)
_ANSWERS = names("answer answers reply replies response responses comment comments solution suggestedanswer")
_WANTS = re.compile(
    r"\b(?:how|what|why|which|when|where|who|whose|can|could|help|define|identify|verify|convert|express|rewrite|compare"
    r"|discuss|choose|estimate|classify|differentiate|integrate|expand|divide|multiply|add|subtract|use|let|draw|plot)\b",
    re.IGNORECASE,
)
"""What a post says that asks, beside what exercises say."""
MAX_CHARACTERS = 60
_SURE = ("found this", "verified by", "\U0001f44d", "▲")
_TOLD = (
    "vot",
    "score",
    "like",
    "point",
    "thanks",
    "kudos",
    "rating",
    "helpful",
    "accepted",
    "best",
    "answers",
    "replies",
    "responses",
    "is-solution",
)
"""Words of threads in tags, beside numbers, or before what is chosen."""
_CHOSEN_AFTER = (" answer", " as", " by")
_COMMON = frozenset(["like", "point"])
"""Words that numbers stand before in any text."""
_ATTRIBUTES = ("class", "itemprop", "title", "aria-label", "data-accepted")
MAX_PLACES = 60
"""Places of a word in a page's source that are looked at."""
MAX_TAG_CHARACTERS = 200


def may_hold_threads(source: str) -> bool:
    """True where the source has words of threads where threads have them. Cheap: it is asked of every page."""
    source = source.lower()
    return any(word in source for word in _SURE) or any(_is_told(source, word) for word in _TOLD)


def _is_told(source: str, word: str) -> bool:
    place = 0
    for _ in range(MAX_PLACES):
        place = source.find(word, place + 1)
        if place < 0:
            return False
        before, after = source[max(0, place - 3) : place], source[place + len(word) : place + len(word) + 7]
        is_counted = before[-1:] in " p-" and any(map(str.isdigit, before))
        is_counted = is_counted and (word not in _COMMON or after.lstrip("s").startswith("<"))
        is_counted = is_counted or (word not in _COMMON and after.lstrip("se:( ·|")[:1].isdigit())
        is_chosen = word in ("accepted", "best") and after.startswith(_CHOSEN_AFTER)
        if is_counted or is_chosen or _is_in_tag(source, place):
            return True
    return False


def _is_in_tag(source: str, place: int) -> bool:
    """True for a word in a class or in another attribute that says what an element is."""
    first = max(0, place - MAX_TAG_CHARACTERS)
    opened = source.rfind("<", first, place)
    if opened <= source.rfind(">", first, place):
        return False
    return source[opened : max(opened, source.rfind("=", opened, place))].endswith(_ATTRIBUTES)


def counted_posts(text: str) -> int:
    """The number of posts that a heading over them tells ("3 Answers", "Replies (3)"); 0 for other texts."""
    found = _COUNTED.fullmatch(text) if len(text) <= MAX_CHARACTERS else None
    return int(found[1] or found[2]) if found else 0


def is_over_posts(text: str) -> bool:
    """True for what stands over a thread's answers: their number, or "Answers", or that there are none."""
    return (len(text) <= MAX_CHARACTERS and bool(_OVER_POSTS.fullmatch(text))) or tells_no_posts(text)


def tells_no_posts(text: str) -> bool:
    """True for a line that says that nobody has answered yet."""
    return len(text) <= MAX_CHARACTERS and bool(_NO_POSTS.fullmatch(text))


def is_badge(element: _Element) -> bool:
    """True for a badge that calls the post around it the solution."""
    given = element.get("class")
    if not given or _BADGES.isdisjoint(tokens(given)) or len(element) > 1:
        return False
    return bool(_NAMES_BEST.fullmatch("".join(element.itertext())[:MAX_CHARACTERS]))


def is_beside_posts(text: str) -> bool:
    """True for a line of a forum's software: who wrote a post and when, whether it helped, an invitation to answer."""
    return len(text) <= 2 * MAX_CHARACTERS and bool(_BESIDE.fullmatch(text))


def says_accepted(text: str) -> bool:
    """True for a text that says of the post around it that it was chosen, and nothing else."""
    return 0 < len(text) <= MAX_CHARACTERS and bool(_ACCEPTED.fullmatch(text))


def is_marked_accepted(element: _Element) -> bool:
    """True where class, microdata or a tooltip says that the element is the chosen post, or the mark of one."""
    words = tokens(f"{element.get('class') or ''} {element.get('itemprop') or ''}")
    if not _MARKS.isdisjoint(words) and _NEGATED.isdisjoint(words):
        return True
    if words and _IS_CHOSEN.search(element.get("class") or ""):
        return True
    if (element.get("data-accepted") or element.get("data-solution") or "").lower() in _TRUE:
        return True
    for attribute in ("title", "aria-label", "alt"):
        told = element.get(attribute)
        if told and len(told) <= 2 * MAX_CHARACTERS and _CHOSEN.search(told) and not _OFFERS.match(told):
            return True
    return False


def asks_a_forum(text: str) -> bool:
    """True for a text that wants something done or told."""
    return bool(ASKS.search(text) or _WANTS.search(text))


def is_state(name: str) -> bool:
    """True for a class that says what became of a box, not what kind of box it is."""
    return bool(_IS_CHOSEN.search(name)) or not _STATE.isdisjoint(tokens(name))


def is_named_asking(element: _Element) -> bool:
    """True for a box that the markup names as the post that asks."""
    return are_asking(words_of_names(element))


def are_asking(words: frozenset[str]) -> bool:
    """True for words of a box's names that call it the post that asks."""
    return not _ASKS.isdisjoint(words) and _ANSWERS.isdisjoint(words)


def words_of_names(element: _Element) -> frozenset[str]:
    """The words of what the markup calls an element: its classes, its type, its own name where the page made it."""
    kind = (element.get("itemtype") or "").rpartition("/")[2]
    return frozenset(tokens(f"{own_name(element)} {element.get('class') or ''} {kind}"))


def is_named_answering(element: _Element) -> bool:
    """True for a box that the markup names as a post that answers."""
    return not _ANSWERS.isdisjoint(words_of_names(element))
