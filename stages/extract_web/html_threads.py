"""Threads in the outline of a page, by its structure: which box asks, which boxes answer it.

Posts are the boxes that show a score each (html_posts.py), or that the markup names so. A thread's question is the
content that stands before its posts, where such content repeats; or it is the first post. Which posts are first is told
by the markup's words, by a kind of box that only first posts have, by the containers of threads, by titles, by the
scores that only answers have, or by what counts the answers. The way that holds for the page as a whole is taken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lxml.etree import _Element

from stages.extract_web.blocks import Post
from stages.extract_web.html_outline import Outline, outline
from stages.extract_web.html_posts import boxed_posts, line_kinds, named_posts, posts_beside_chosen
from stages.extract_web.induced_labels import MIN_ASKING, asks
from stages.extract_web.labels import is_solution_label
from stages.extract_web.post_slots import beside_text, repeated_mark
from stages.extract_web.thread_starts import (
    WAYS,
    Gaps,
    chosen_one,
    common_box,
    element_of,
    is_accepted,
    is_scored,
    own,
)
from stages.extract_web.thread_words import asks_a_forum, is_named_answering, is_named_asking, says_accepted

FLOW = frozenset(
    ["p", "ul", "ol", "pre", "table", "dl", "blockquote", "math", "img", "h4", "h5", "h6", "center"]
)
MIN_OUTSIDE = 0.7
"""Threads that begin with content outside the posts, as a share of those that begin with a post, where both are found:
fewer are remarks between threads."""
MIN_LABELLED = 0.25
MAX_TRIES, MAX_OTHER_TRIES = 5, 2
"""Sizes of boxes that are tried for scores, and for other lines."""
MAX_SIBLINGS = 60
MIN_CHOSEN, MIN_SHARE_CHOSEN = 3, 0.5
"""Threads with a chosen answer, and their share of those with answers, where what was not chosen answers nothing."""
MIN_ALIKE = 0.6
"""Share of the contents before posts that are of one kind where they ask."""
MIN_QUESTION_CHARACTERS = 60
"""Length from which a text before posts is taken for a question though it has no word that asks."""


@dataclass(slots=True)
class Thread:
    """Nodes of the outline."""

    asked: list[int]
    """The post that asks, or the siblings that do."""
    answers: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Posts:
    """Elements of the page by what they are; all empty where the page shows no threads."""

    parts: dict[_Element, Post] = field(default_factory=dict)
    beside: set[_Element] = field(default_factory=set)
    """Elements of posts that are no text of theirs: names, ranks, remarks under them."""


def read_threads(root: _Element) -> Posts:
    """The posts of the threads that the page shows."""
    found = outline(root)
    for posts in _candidates(found):
        threads = _threads(found, posts)
        if threads:
            return Posts() if _are_labelled(found, threads) else _told(found, threads)
    return Posts()


def _are_labelled(found: Outline, threads: Sequence[Thread]) -> bool:
    """True where words call at least half of the answers so, some of them otherwise than as the accepted one."""
    answers = [answer for thread in threads for answer in thread.answers]
    lines = [
        [
            found.texts[node]
            for node in range(answer, found.ends[answer])
            if says_accepted(found.texts[node]) or not found.accepted[node]
        ]
        for answer in answers
    ]
    labelled = [any(map(_is_label, texts)) for texts in lines]
    chosen = [any(map(says_accepted, texts)) for texts in lines]
    either = sum(map(any, zip(labelled, chosen, strict=True)))
    if not any(chosen) and _mark(found, threads):
        return False
    return sum(labelled) > MIN_LABELLED * len(answers) and 2 * either >= len(answers)


def _is_label(text: str) -> bool:
    """True for a line that is a label of a solution, or begins with one."""
    return bool(text) and not says_accepted(text) and is_solution_label(text.split(":", 1)[0])


def _candidates(found: Outline) -> Iterator[list[int]]:
    """Boxes that may be the page's posts, the most certain first, large ones before what they hold."""
    for marked in line_kinds(found):
        banned: set[tuple[str, ...]] = set()
        for _ in range(MAX_TRIES if marked is found.scored else MAX_OTHER_TRIES):
            posts = boxed_posts(found, marked, banned)
            if not posts:
                break
            yield posts
            banned |= {found.keys[post] for post in posts}
    yield posts_beside_chosen(found)
    yield named_posts(found)


def _told(found: Outline, threads: Sequence[Thread]) -> Posts:
    told = Posts()
    mark = _mark(found, threads)
    chosen = [_chosen(found, thread, mark) for thread in threads]
    if _are_told_by_choice(found, threads, chosen):
        for thread, marked in zip(threads, chosen, strict=True):
            unchosen = thread.answers if not marked else []
            told.beside.update(element_of(found, node) for node in unchosen)
            thread.answers = [] if unchosen else thread.answers
    for number, (thread, marked) in enumerate(zip(threads, chosen, strict=True)):
        for node in thread.asked:
            told.parts.setdefault(element_of(found, node), Post(number, False, False))
        for node in thread.answers:
            accepted = len(marked) == 1 and node == marked[0]
            told.parts.setdefault(element_of(found, node), Post(number, True, accepted, _score(found, node)))
    told.beside |= beside_text(found, [one.asked for one in threads], [one.answers for one in threads], mark)
    return told


def _chosen(found: Outline, thread: Thread, mark: str) -> list[int]:
    """The answers that were chosen, by the markup or the line that is the mark."""
    marked = [node for node in thread.answers if is_accepted(found, node)]
    return marked or [node for node in thread.answers if mark in _lines(found, node)]


def _are_told_by_choice(found: Outline, threads: Sequence[Thread], chosen: Sequence[Sequence[int]]) -> bool:
    """True where no answer has a score and most threads with answers have a chosen one: others wait for theirs."""
    answers = [thread.answers for thread in threads if thread.answers]
    if any(is_scored(found, node) for nodes in answers for node in nodes):
        return False
    return sum(map(bool, chosen)) >= max(MIN_CHOSEN, MIN_SHARE_CHOSEN * len(answers))


def _score(found: Outline, post: int) -> int | None:
    return next((score for node in own(found, post) if (score := found.scores[node]) is not None), None)


def _mark(found: Outline, threads: Sequence[Thread]) -> str:
    asked = {line for thread in threads for node in thread.asked for line in _lines(found, node)}
    mark = repeated_mark([[_lines(found, node) for node in thread.answers] for thread in threads], asked)
    inside = [node for thread in threads for post in thread.answers if mark for node in own(found, post)]
    kinds = {found.keys[node] for node in inside if found.texts[node] == mark}
    is_place_of_marks = all(found.texts[node] in ("", mark) for node in inside if found.keys[node] in kinds)
    return mark if is_place_of_marks else ""


def _lines(found: Outline, post: int) -> list[str]:
    return [found.texts[node] for node in own(found, post) if found.texts[node]]


def _threads(found: Outline, posts: Sequence[int]) -> list[Thread]:
    """The threads of these posts, by the first way that holds; empty where none does."""
    if not posts:
        return []
    gaps = Gaps(found, posts)
    outside = _asked_before(found, posts, gaps)
    outside = [] if _are_firsts_apart(found, outside) else outside
    for way in (*WAYS, *(() if outside else (chosen_one,))):
        starts = way(found, posts, gaps)
        threads = _grouped(posts, starts) if starts and starts[0] == 0 else []
        if _is_sound(found, threads):
            lists = _lists_of_firsts(found, threads)
            is_outside = len(outside) > 1 or (len(outside) == 1 and lists < len(threads))
            return outside if is_outside and len(outside) >= MIN_OUTSIDE * lists else threads
    return outside


def _lists_of_firsts(found: Outline, threads: Sequence[Thread]) -> int:
    """How many threads there are; where all answers stand in the boxes of first posts, those may be answers with
    replies: then how many lists they stand in."""
    are_nested = all(answer < found.ends[thread.asked[0]] for thread in threads for answer in thread.answers)
    return len({found.parents[thread.asked[0]] for thread in threads}) if are_nested else len(threads)


def _are_firsts_apart(found: Outline, threads: Sequence[Thread]) -> bool:
    """True where the first post of each thread alone has no score: it asks, not what stands before."""
    firsts = [thread.answers[0] for thread in threads if thread.answers]
    others = [answer for thread in threads for answer in thread.answers[1:]]
    return (
        bool(others)
        and all(is_scored(found, post) for post in others)
        and not any(is_scored(found, post) for post in firsts)
    )


def _grouped(posts: Sequence[int], starts: Sequence[int]) -> list[Thread]:
    limits = [*starts[1:], len(posts)]
    return [
        Thread([posts[start]], list(posts[start + 1 : end]))
        for start, end in zip(starts, limits, strict=True)
    ]


def _is_sound(found: Outline, threads: Sequence[Thread]) -> bool:
    """True for threads of which most ask, if their answers have scores, are chosen or are counted."""
    answered = [thread for thread in threads if thread.answers]
    if not answered:
        return False
    texts = ["\n".join(map(found.text, thread.asked)) for thread in threads]
    if not all(texts) or sum(asks(text) or asks_a_forum(text) for text in texts) < MIN_ASKING * len(texts):
        return False
    answers = [answer for thread in answered for answer in thread.answers]
    scored = sum(is_scored(found, answer) for answer in answers)
    chosen = sum(any(is_accepted(found, answer) for answer in thread.answers) for thread in answered)
    counts = sum(
        kind == "count" and any(map(str.isdigit, text))
        for kind, text in zip(found.kinds, found.texts, strict=True)
    )
    return 2 * max(chosen, counts) >= len(answered) or 2 * scored >= len(answers)


def _asked_before(found: Outline, posts: Sequence[int], gaps: Gaps) -> list[Thread]:
    """Threads whose questions are no posts: before the answers stands content of the same kind, thread after thread."""
    runs = {place: run for place in range(len(posts)) if (run := _run_before(found, posts, gaps, place))}
    asking = {place: run for place, run in runs.items() if _may_ask(found, run)}
    kinds = Counter(_kind(found, run) for run in asking.values())
    if not kinds:
        return []
    kind, count = kinds.most_common(1)[0]
    if count < MIN_ALIKE * len(asking) or (count == 1 and not _is_lone_question(found, posts, asking)):
        return []
    starts = [place for place, run in runs.items() if _kind(found, run) == kind]
    limits = [*starts[1:], len(posts)]
    threads = [Thread(runs[start], list(posts[start:end])) for start, end in zip(starts, limits, strict=True)]
    if not _is_sound(found, threads):
        return []
    return sorted(threads + list(_unanswered(found, threads)), key=lambda thread: thread.asked[0])


def _may_ask(found: Outline, run: Sequence[int]) -> bool:
    text = "\n".join(map(found.text, run))
    return asks_a_forum(text) or len(text) >= MIN_QUESTION_CHARACTERS or (asks(text) and len(run) == 1)


def _kind(found: Outline, run: Sequence[int]) -> tuple[str, ...]:
    """What the question is in the tree: a box of some kind, or text that runs on in some box."""
    first = found.keys[run[-1]]
    return ("", *found.keys[found.parents[run[-1]]]) if first[0] in FLOW or len(run) > 1 else first


def _is_lone_question(found: Outline, posts: Sequence[int], asking: dict[int, list[int]]) -> bool:
    """True where the only content that asks stands before the first post, which is like the posts after it."""
    if 0 not in asking:
        return False
    first = posts[0]
    scored = [is_scored(found, post) for post in posts]
    is_named = is_named_answering(element_of(found, first))
    if is_named_asking(element_of(found, first)) or (any(scored) and not scored[0]):
        return False
    shared = found.elements[common_box(found, asking[0][0], posts[-1])]
    is_thread = shared is not None and shared.tag not in ("html", "body", "main")
    is_told = is_named or is_thread or "count" in found.kinds[found.ends[asking[0][-1]] : first]
    return is_told and (is_named or len({found.keys[post] for post in posts}) == 1)


def _run_before(found: Outline, posts: Sequence[int], gaps: Gaps, place: int) -> list[int]:
    """The siblings with content right before a post, or before the list that begins with it, in order.

    Of boxes only the last, unless the siblings are all of the thread's container.
    """
    floor = gaps.starts[place]
    current = posts[place]
    while (parent := found.parents[current]) >= 0:
        run: list[int] = []
        siblings = found.children[parent]
        here = bisect_left(siblings, current)
        for node in reversed(siblings[max(0, here - MAX_SIBLINGS) : here]):
            if node < floor:
                break
            kind = found.kinds[node]
            if run and (kind in ("title", "rule") or _begins_with_title(found, node)):
                break
            if not found.has_content(node):
                continue
            is_box = found.kinds[node] == "" and found.keys[node][0] not in FLOW
            if run and is_box:
                break
            run.append(node)
            if is_box:
                break
        if run:
            return [node for node in reversed(run) if found.elements[node] is not None]
        if parent < floor:
            return []
        current = parent
    return []


def _begins_with_title(found: Outline, node: int) -> bool:
    return any(found.kinds[one] == "title" for one in range(node, min(node + 2, found.ends[node])))


def _unanswered(found: Outline, threads: Sequence[Thread]) -> Iterator[Thread]:
    """Boxes of the questions' kind that no post follows."""
    kinds = Counter(found.keys[thread.asked[0]] for thread in threads if len(thread.asked) == 1)
    if not kinds:
        return
    kind, count = kinds.most_common(1)[0]
    if kind[0] in FLOW or "" in kind or count < MIN_ALIKE * len(threads):
        return
    taken = sorted(
        (node, found.ends[node]) for thread in threads for node in (*thread.asked, *thread.answers)
    )
    starts = [start for start, _ in taken]
    for node, key in enumerate(found.keys):
        if key == kind:
            place = bisect_left(starts, node)
            is_taken = place < len(starts) and starts[place] < found.ends[node]
            if not is_taken and not (place and taken[place - 1][1] > node) and found.has_content(node):
                yield Thread([node])
