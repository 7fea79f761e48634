"""Which posts of a page begin a thread: the ways to tell, and what posts are asked for that.

By the markup's words, by a kind of box that only first posts have, by the containers of threads, by titles, by scores
that only answers have, by what counts the answers, by the one post of a list that was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from lxml.etree import _Element

from stages.extract_web.html_outline import Outline
from stages.extract_web.thread_words import are_asking, words_of_names


class Gaps:
    """What stands between posts, outside each."""

    def __init__(self, found: Outline, posts: Sequence[int]) -> None:
        self.found = found
        self.starts: list[int] = []
        """For each post the end of all before it, or itself where it stands in one of them."""
        last = 0
        for post in posts:
            self.starts.append(min(last, post))
            last = max(last, found.ends[post])
        self.posts = posts

    def kinds(self, place: int) -> set[str]:
        """The kinds of lines before the post at this place."""
        return set(self.found.kinds[self.starts[place] : self.posts[place]])


def own(found: Outline, post: int) -> range:
    """The nodes of a post before the first that replies to it in its box."""
    for node in range(post + 1, found.ends[post]):
        if found.keys[node] == found.keys[post]:
            return range(post, node)
    return range(post, found.ends[post])


def is_accepted(found: Outline, post: int) -> bool:
    """True where something in the post says that it was chosen."""
    return any(found.accepted[node] for node in own(found, post))


def is_scored(found: Outline, post: int) -> bool:
    """True where the post shows a score."""
    return any(found.scored[post : found.ends[post]])


def element_of(found: Outline, node: int) -> _Element:
    """The element of a node that is no text between blocks."""
    element = found.elements[node]
    assert element is not None
    return element


def common_box(found: Outline, before: int, after: int) -> int:
    """The smallest box that holds both."""
    node = before
    while node > 0 and found.ends[node] <= after:
        node = found.parents[node]
    return node


def _named(found: Outline, posts: Sequence[int], gaps: Gaps) -> list[int]:
    """Posts that the markup names as asking, by words that not all posts have."""
    named = [words_of_names(element_of(found, post)) for post in posts]
    shared = frozenset.intersection(*named)
    return [place for place, words in enumerate(named) if are_asking(words - shared) and are_asking(words)]


def _of_first_kind(found: Outline, posts: Sequence[int], gaps: Gaps) -> list[int]:
    kinds = [found.keys[post] for post in posts]
    if len(set(kinds)) == 1:
        kinds = [found.keys[found.parents[post]] for post in posts]
    return [place for place, kind in enumerate(kinds) if kind == kinds[0]] if len(set(kinds)) > 1 else []


def _contained(found: Outline, posts: Sequence[int], gaps: Gaps) -> list[int]:
    """Posts whose nearest common box with the one before is the largest of all."""
    depths = [_common_depth(found, before, after) for before, after in pairwise(posts)]
    if len(set(depths)) < 2:
        return []
    return [0, *(place for place, depth in enumerate(depths, 1) if depth == min(depths))]


def _common_depth(found: Outline, before: int, after: int) -> int:
    node, depth = common_box(found, before, after), 0
    while node > 0:
        node, depth = found.parents[node], depth + 1
    return depth


def _titled(found: Outline, posts: Sequence[int], gaps: Gaps) -> list[int]:
    starts = [0, *(place for place in range(1, len(posts)) if "title" in gaps.kinds(place))]
    return starts if len(starts) > 1 else []


def _titled_and_unscored(found: Outline, posts: Sequence[int], gaps: Gaps) -> list[int]:
    """Two signs that agree: after each title stands a post without a score, and nowhere else."""
    titled = _titled(found, posts, gaps)
    return titled if titled == _unscored(found, posts, gaps) else []


def _unscored(found: Outline, posts: Sequence[int], gaps: Gaps) -> list[int]:
    return [place for place, post in enumerate(posts) if not is_scored(found, post)]


def _counted(found: Outline, posts: Sequence[int], gaps: Gaps) -> list[int]:
    starts = [place - 1 for place in range(1, len(posts)) if "count" in gaps.kinds(place)]
    return starts


def chosen_one(found: Outline, posts: Sequence[int], gaps: Gaps) -> list[int]:
    """The first post of a list of which another one was chosen."""
    chosen = [place for place, post in enumerate(posts) if is_accepted(found, post)]
    is_list = len({found.parents[post] for post in posts}) == 1
    return [0] if is_list and len(chosen) == 1 and chosen[0] else []


Way = Callable[[Outline, Sequence[int], Gaps], list[int]]
"""Places of the posts that begin a thread."""
WAYS: tuple[Way, ...] = (
    _named,
    _titled_and_unscored,
    _of_first_kind,
    _contained,
    _titled,
    _unscored,
    _counted,
)
