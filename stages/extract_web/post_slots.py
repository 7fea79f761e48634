"""What stands in the posts of threads without being their text: names, ranks, links, remarks, quoted posts.

Posts of a page are filled forms: the same lines stand at the same places. A place whose lines are short in all posts,
beside one with more text, holds names where its lines read so, and furniture where they differ by numbers only.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence

from lxml.etree import _Element

from stages.extract_web.furniture import line_form
from stages.extract_web.html_elements import BLOCKS
from stages.extract_web.html_outline import Key, Outline
from stages.extract_web.instructions import ASKS
from stages.extract_web.markup import own_name, tokens
from stages.extract_web.mathml import names
from stages.extract_web.thread_words import is_beside_posts

Slot = tuple[tuple[Key, int], ...]
"""The way from a post to a line: kinds of boxes, each with its place among its like."""
_BYLINE = re.compile(
    r"(?:by\s+)?[@~]?[^\W\d_][\w.'’@-]{0,30}(?:[\s,:|·•#/()–-]+(?:\d[\d:.,/-]*(?:st|nd|rd|th|k)?|[ap]\.?m\.?"
    r"|[^\W\d_][\w.'’@-]{0,30}(?=(?:[\s,|·•#/()–-]|$)))){0,9}[\s.:|·•)]*"
)
_MAX_WORDS = 4
_TIME_WORDS = re.compile(
    r"\b(?:(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*|mon|tue|wed|thu|fri|sat|sun|[ap]m|at|on|ago|by"
    r"|(?:second|minute|min|hour|day|week|month|year|yr)s?|posted|wrote|said|asked|answered|replied|edited|member|joined"
    r"|reputation|rep|points?|posts?|messages?)\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d_]+")
_REMARKS = names(
    "comment comments replies discussion subthread children nested followup followups remarks notes"
)
_ABOUT = names(
    "who user username author poster member profile nick nickname handle name rep reputation karma rank badge badges "
    "meta date time stamp timestamp posted byline avatar signature sig flair views permalink actions tools controls"
)
_WRITTEN = names("content body")
_QUOTES = names("quote quoted quotation blockquote quotebox bbquote")
_CITES = re.compile(r"[^\n]{0,60}\b(?:wrote|said|posted|asked|originally|quote)\b", re.IGNORECASE)
_COMMENTED = re.compile(r"\W*comment(?:ed|\s+by)\b.{0,60}", re.IGNORECASE | re.DOTALL)
_NO_WORD = re.compile(r"\W+")
MIN_POSTS = 3
MIN_SHARE = 0.6
MAX_CHARACTERS = 60
MAX_DEPTH = 8
MIN_SEVERAL = 2
"""Threads of several answers without which nothing tells a mark of one answer from a line of every post."""
MAX_MARKS = 5
MAX_MARK_CHARACTERS = 40
MAX_QUOTES = 100
"""Quotations of a page that are looked up in their threads."""


def beside_text(
    found: Outline, asked: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], mark: str
) -> set[_Element]:
    """Elements of the posts that are no text of theirs.

    `asked` and `answers` are the posts of each thread, `mark` is the line that says which was chosen, or empty.
    """
    beside: set[int] = set()
    groups: dict[object, list[int]] = defaultdict(list)
    quotes = 0
    every = sorted(post for posts in answers for post in posts)
    for run, posts in zip(asked, answers, strict=True):
        said = _NO_WORD.sub("", "".join(map(found.text, run)))
        for post in (*(run if len(run) == 1 else ()), *posts):
            groups[found.keys[post]].append(post)
            groups[None].append(post)
        for node in run:
            beside.update(_around(found, node, node if len(run) > 1 else node + 1))
            beside.update(_titles(found, node))
        for post in posts:
            beside.update(_around(found, post, post + 1))
            inside = range(post + 1, found.ends[post]) if mark else range(0)
            beside.update(node for node in inside if found.texts[node] == mark)
            beside.update(_boxes(found, post, _REMARKS, every))
            beside.update(_commented(found, post, every))
            quoted = _quotes(found, post, said, every) if quotes < MAX_QUOTES else []
            quotes += len(quoted)
            beside.update(quoted)
    beside.update(_names_in_runs(found, [run for run in asked if len(run) > 1]))
    for posts in groups.values():
        beside.update(_filled(found, posts))
    beside |= {
        parent
        for node in beside
        if found.elements[node] is None
        and (parent := found.parents[node]) not in groups[None]
        and _is_all_beside(found, parent, beside)
    }
    return {element for node in beside if (element := found.elements[node]) is not None}


def _is_all_beside(found: Outline, box: int, beside: set[int]) -> bool:
    """True for a box whose texts are all no text of its post."""
    return all(found.kinds[node] in ("beside", "count") or node in beside for node in found.children[box])


def repeated_mark(threads: Sequence[Sequence[Sequence[str]]], asked: Collection[str]) -> str:
    """The short line that one answer in most threads has, never two of a thread and no question: it says which answer
    was chosen.

    `threads` are the lines of each answer of each thread, `asked` those of questions; empty where there is none.
    """
    answered = [thread for thread in threads if thread]
    counts: Counter[str] = Counter()
    twice: set[str] = set()
    for thread in answered:
        lines = Counter(line for answer in thread for line in set(answer) if _may_mark(line))
        counts.update(lines.keys())
        twice.update(line for line, count in lines.items() if count > 1)
    if sum(len(thread) > 1 for thread in answered) < MIN_SEVERAL:
        return ""
    for line, count in counts.most_common(MAX_MARKS):
        is_often = count >= max(MIN_POSTS, MIN_SHARE * len(answered))
        if is_often and line not in twice and line not in asked:
            return line
    return ""


def _may_mark(line: str) -> bool:
    return len(line) <= MAX_MARK_CHARACTERS and not any(map(str.isdecimal, line)) and bool(_WORD.search(line))


def _around(found: Outline, post: int, first: int) -> Iterator[int]:
    """Lines of links, dates and names by what they say, or by what the markup calls them, from node `first` on."""
    inside = 0
    for node in range(first, found.ends[post]):
        kind, element = found.kinds[node], found.elements[node]
        is_software = kind in ("beside", "count") or (kind == "title" and is_beside_posts(found.texts[node]))
        if is_software and _is_line_of_its_own(found, node):
            yield node
        given = element.get("class") if element is not None and node >= inside else None
        is_short = not kind or len(found.texts[node]) <= MAX_CHARACTERS
        if given and is_short and _is_about_writer(given) and len(found.text(node)) <= MAX_CHARACTERS:
            inside = found.ends[node]
            if found.contents[inside] - found.contents[node] <= 3:
                yield node


def _is_about_writer(given: str) -> bool:
    """True for names of what tells who wrote a post and when; "user-content" is what the user wrote."""
    said = tokens(given)
    return not _ABOUT.isdisjoint(said) and _WRITTEN.isdisjoint(said)


def _is_line_of_its_own(found: Outline, node: int) -> bool:
    """False for a link or date within a text that runs on beside it."""
    element = found.elements[node]
    if element is None or element.tag in BLOCKS:
        return True
    return not any(
        found.elements[other] is None and found.kinds[other] == "content"
        for other in (node - 1, node + 1)
        if 0 <= other < len(found.parents) and found.parents[other] == found.parents[node]
    )


def _are_named(given: Sequence[str], words: frozenset[str]) -> bool:
    return any(
        word in words or (words is _QUOTES and word.startswith(("quote", "quotation"))) for word in given
    )


def _boxes(found: Outline, post: int, words: frozenset[str], posts: Sequence[int]) -> list[int]:
    """Boxes inside a post that are named by one of these words and hold no post, where it has text outside them."""
    boxes: list[int] = []
    held, end = 0, 0
    for node in range(post + 1, found.ends[post]):
        element = found.elements[node]
        given = element.get("class") or own_name(element) if element is not None and node >= end else None
        is_named = bool(given) and _are_named(tokens(given or ""), words)
        is_named = is_named and bisect_left(posts, found.ends[node]) == bisect_left(posts, node)
        if is_named or (node >= end and words is _QUOTES and found.keys[node][0] == "blockquote"):
            boxes.append(node)
            end = found.ends[node]
            held += found.contents[end] - found.contents[node]
    return boxes if found.contents[found.ends[post]] - found.contents[post] > held else []


def _titles(found: Outline, post: int) -> list[int]:
    """Titles in a box with a text that ask for nothing ("Need help with this")."""
    titles = [node for node in range(post + 1, found.ends[post]) if found.kinds[node] == "title"]
    return [node for node in titles if not ASKS.search(found.texts[node])] if found.has_content(post) else []


def _commented(found: Outline, post: int, posts: Sequence[int]) -> Iterator[int]:
    """Boxes inside an answer that say of themselves that somebody "commented"."""
    for node in range(post + 1, found.ends[post]):
        box = found.parents[node]
        holds_post = bisect_left(posts, found.ends[box]) > bisect_left(posts, box)
        if box > post and not holds_post and _COMMENTED.match(found.texts[node]) and found.has_content(box):
            yield box


def _quotes(found: Outline, post: int, said: str, posts: Sequence[int]) -> list[int]:
    """Quotations in an answer that repeat what was asked, or name whom they quote."""
    return [
        box
        for box in _boxes(found, post, _QUOTES, posts)
        if _CITES.match(text := _all_text(found, box)) or _NO_WORD.sub("", text) in said
    ]


def _all_text(found: Outline, node: int) -> str:
    return "\n".join(filter(None, found.texts[node : found.ends[node]]))


def _filled(found: Outline, posts: Sequence[int]) -> list[int]:
    """The lines at the places of the posts that hold no text."""
    if len(posts) < MIN_POSTS:
        return []
    slots: dict[Slot, list[int]] = defaultdict(list)
    for post in posts:
        ways: dict[int, Slot] = {post: ()}
        placed: Counter[tuple[int, Key]] = Counter()
        for node in range(post + 1, found.ends[post]):
            parent, key = found.parents[node], found.keys[node]
            placed[parent, key] += 1
            way = ways.get(parent)
            if way is None or len(way) >= MAX_DEPTH:
                continue
            ways[node] = (*way, (key, placed[parent, key]))
            if found.kinds[node] in ("content", "title"):
                slots[ways[node]].append(node)
    short = [
        nodes
        for nodes in slots.values()
        if len(nodes) >= MIN_SHARE * len(posts) and _is_beside([found.texts[node] for node in nodes])
    ]
    short.sort(key=lambda nodes: sum(len(found.texts[node]) for node in nodes))
    while short and _empties(found, posts, short):
        short.pop()
    return [node for nodes in short for node in nodes]


def _names_in_runs(found: Outline, runs: Sequence[Sequence[int]]) -> list[int]:
    """The first lines of questions without a box that are names, thread after thread."""
    firsts = [run[0] for run in runs if found.kinds[run[0]] == "content"]
    is_most = len(firsts) >= MIN_POSTS and len(firsts) >= MIN_SHARE * len(runs)
    return firsts if is_most and _is_beside([found.texts[node] for node in firsts]) else []


def _empties(found: Outline, posts: Sequence[int], slots: Sequence[Sequence[int]]) -> bool:
    """True where a post has no content but in these slots."""
    inside = sorted(node for nodes in slots for node in nodes if found.kinds[node] == "content")
    return any(
        bisect_left(inside, found.ends[post]) - bisect_left(inside, post)
        >= found.contents[found.ends[post]] - found.contents[post]
        for post in posts
    )


def _is_beside(texts: Sequence[str]) -> bool:
    if any(len(text) > MAX_CHARACTERS for text in texts):
        return False
    forms = {line_form(text) for text in texts}
    if len(forms) == 1 and re.search("[a-z#]", next(iter(forms))):
        return True
    return all(map(_is_byline, texts))


def _is_byline(text: str) -> bool:
    """True for a name with what software writes behind it."""
    return bool(_BYLINE.fullmatch(text)) and len(_WORD.findall(_TIME_WORDS.sub("", text))) <= _MAX_WORDS
