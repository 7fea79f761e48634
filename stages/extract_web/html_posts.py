"""The boxes of posts in a page's outline: the largest that show one score each, or one line of another kind that sites
put into every post; those beside a chosen one; those that the markup names."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from stages.extract_web.html_outline import Key, Outline
from stages.extract_web.markup import post, role
from stages.extract_web.mathml import names

_NO_POSTS = names("html body main p h1 h2 h3 h4 h5 h6 ul ol dl form header footer thead tbody a span button")
MAX_LINE_KINDS = 3
MIN_LINES = 2
MAX_CLIMB = 12
"""Boxes around a score that are looked at."""
MAX_NESTED = 10
"""Posts in posts, replies to replies, that are told apart."""
MANY = 0.1
"""Share of the boxes of a kind that may show more than one score of their own: some hold a quoted post."""


def line_kinds(found: Outline) -> Iterator[Sequence[bool]]:
    """What may stand once in every post, as one truth value a node: scores, then the commonest lines that are no
    content, by kind of box."""
    if any(found.scored):
        yield found.scored
    kinds = Counter(
        found.keys[node]
        for node, kind in enumerate(found.kinds)
        if kind == "beside" and _may_repeat(found, node)
    )
    for common, count in kinds.most_common(MAX_LINE_KINDS):
        if count >= MIN_LINES:
            yield [
                key == common and found.kinds[node] == "beside" and _may_repeat(found, node)
                for node, key in enumerate(found.keys)
            ]


def _may_repeat(found: Outline, node: int) -> bool:
    return found.elements[node] is not None and not found.accepted[node]


def boxed_posts(found: Outline, marked: Sequence[bool], banned: set[Key]) -> list[int]:
    """The largest boxes with one of the marked lines each, and all boxes of their kinds; `banned` kinds and larger
    ones are left out."""
    single = _single_keys(found, marked)
    counted = [node for node, kind in enumerate(found.kinds) if kind == "count"]
    kinds: Counter[Key] = Counter()
    for node, is_marked in enumerate(marked):
        if not is_marked:
            continue
        best, current = -1, found.parents[node]
        for _ in range(MAX_CLIMB):
            if current < 0 or found.keys[current] not in single or found.keys[current] in banned:
                break
            if _is_divided(found, current, counted):
                break
            if found.keys[current][0] not in _NO_POSTS and found.has_content(current):
                best = current
            current = found.parents[current]
        if best >= 0:
            kinds[found.keys[best]] += 1
    return _outermost(found, (node for node, key in enumerate(found.keys) if key in kinds))


def _is_divided(found: Outline, box: int, counted: Sequence[int]) -> bool:
    """True for a box with content before and after what counts a thread's answers."""
    place = bisect_left(counted, box)
    if place == len(counted) or counted[place] >= found.ends[box]:
        return False
    contents = found.contents
    return contents[box] < contents[counted[place]] < contents[found.ends[box]]


def posts_beside_chosen(found: Outline) -> list[int]:
    """Boxes of the kinds of those that are chosen among boxes like them, or after what counts answers."""
    kinds = set()
    for node, is_accepted in enumerate(found.accepted):
        current = node if is_accepted else -1
        for _ in range(MAX_CLIMB):
            if current < 0 or found.keys[current] in kinds:
                break
            if (
                found.keys[current][0] not in _NO_POSTS
                and found.has_content(current)
                and _is_among(found, current)
            ):
                kinds.add(found.keys[current])
                break
            current = found.parents[current]
    return _outermost(found, (node for node, key in enumerate(found.keys) if key in kinds))


def _is_among(found: Outline, box: int) -> bool:
    """True for a box with one of its kind, or a count of answers, as a neighbour."""
    parent = found.parents[box]
    siblings = found.children[parent] if parent >= 0 else []
    place = bisect_left(siblings, box)
    near = siblings[max(0, place - 1) : place + 2]
    alike = [
        one for one in near if one != box and found.keys[one] == found.keys[box] and found.has_content(one)
    ]
    return bool(alike) or (place > 0 and found.kinds[found.ends[siblings[place - 1]] - 1] == "count")


def named_posts(found: Outline) -> list[int]:
    """Boxes that the markup calls posts, replies or answers."""
    kinds = set()
    for element, key in zip(found.elements, found.keys, strict=True):
        if element is not None and key[0] not in _NO_POSTS and key not in kinds:
            said = role(element)
            if (said and said[0] == "answer") or post(element):
                kinds.add(key)
    return _outermost(found, (node for node, key in enumerate(found.keys) if key in kinds))


def _single_keys(found: Outline, marked: Sequence[bool]) -> set[Key]:
    """Kinds of boxes with one marked line each, boxes of the same kind inside them not counted."""
    totals = [int(is_marked) for is_marked in marked]
    for node in range(len(totals) - 1, 0, -1):
        totals[found.parents[node]] += totals[node]
    own = list(totals)
    opened: dict[Key, list[int]] = {}
    for node, key in enumerate(found.keys):
        around = opened.setdefault(key, [])
        while around and found.ends[around[-1]] <= node:
            around.pop()
        if around:
            own[around[-1]] -= totals[node]
        around.append(node)
    once: Counter[Key] = Counter()
    often: Counter[Key] = Counter()
    for node, count in enumerate(own):
        if count:
            (once if count == 1 else often)[found.keys[node]] += 1
    return {key for key, count in once.items() if often[key] <= MANY * (count + often[key])}


def _outermost(found: Outline, nodes: Iterable[int]) -> list[int]:
    """Those with content that stand in no box of another kind."""
    kept: list[int] = []
    around: list[int] = []
    for node in nodes:
        while around and found.ends[around[-1]] <= node:
            around.pop()
        is_free = not around or found.keys[around[-1]] == found.keys[node]
        if is_free and found.has_content(node) and len(around) < MAX_NESTED:
            kept.append(node)
            around.append(node)
    return kept
