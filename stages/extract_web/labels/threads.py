"""Threads whose posts the markup names (class words, schema.org): the first post asks, or what stands over them, and
the others answer.

Nothing is labelled unless the threads show that they are about questions (votes, an accepted post, replies named as
such) and most of them ask something.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stages.extract_web.labels.blocks import Mark, Page
from stages.extract_web.labels.furniture import is_furniture
from stages.extract_web.labels.instructions import asks
from stages.extract_web.labels.labels import Label, Part

NEAR = 4
"""Blocks from a post's beginning or end in which it is said to be accepted."""
MIN_ASKING = 0.5
MAX_CHARACTERS = 60
_COUNTED = re.compile(
    r"\W*\d{1,3}\s+(?:answers?|solutions?|repl(?:y|ies)|responses?)\b.{0,30}", re.IGNORECASE
)
_ACCEPTED = re.compile(
    r"[\W\d]*(?:(?:the\s+)?(?:accepted|best|chosen|verified|correct)(?:\s+(?:answer|solution|reply|response))?|solved)"
    r"(?:\W+(?:as\s+)?(?:chosen|selected|marked|picked|voted|accepted)\b.{0,30})?\W*"
    r"|\W*(?:marked|chosen|selected|accepted)\s+as\b.{0,40}|[✓✔✅☑\uFE0F\s]+"
    r"|\W*(?:(?:this\s+)?(?:answer|reply|solution|response|post)\s+(?:was|is|has\s+been)\s+)?"
    r"(?:accepted|chosen|selected|verified)\s+by\b.{0,30}",
    re.IGNORECASE,
)
_SOLVES = frozenset([Part.SOLUTION, Part.ANSWER])


@dataclass(slots=True)
class _Thread:
    start: int
    """First block of what asks."""
    asked_end: int
    answers: list[Mark]
    firsts: list[int]
    """First block of each answer."""


def add_threads(page: Page, labels: list[Label | None]) -> None:
    """Labels the posts of the page's threads, each as an answer to what asks; posts with labels stay as they are."""
    threads = _posted(page, labels)
    threads = [thread for thread in threads if thread.firsts]
    if not threads:
        return
    if _are_labelled(page, labels, threads):
        return
    if not any(_is_about_a_question(page, labels, thread) for thread in threads):
        return
    texts = ["\n".join(block.text for block in page.blocks[one.start : one.asked_end]) for one in threads]
    if sum(map(asks, texts)) < MIN_ASKING * len(texts):
        return
    for thread in threads:
        _label_question(page, labels, thread)
        _label_answers(page, labels, thread)


def _asking_start(page: Page, labels: Sequence[Label | None], end: int, last: int) -> int:
    """Where the question that ends before `end` begins: at an exercise's label, else with the box that goes on after
    it, else after the nearest heading."""
    for index in range(end - 1, last - 1, -1):
        label = labels[index]
        if label and label.part is Part.PROBLEM:
            return index
        if label and label.part in _SOLVES:
            return end
        if any(stop > end for stop in page.spans.get(index, ())) and index > last:
            return index
        if page.blocks[index].kind in ("heading", "rule"):
            return index + 1
    return last


def _posted(page: Page, labels: Sequence[Label | None]) -> list[_Thread]:
    """Threads of the posts that the markup names."""
    posts = _outermost(page)
    are_replies_named = {mark.part for _, mark in posts} == {"post", "reply"}
    threads: list[_Thread] = []
    last = 0
    for place, (start, mark) in enumerate(posts):
        previous = threads[-1] if threads else None
        begins_anew = are_replies_named and mark.part == "post"
        if previous and not begins_anew and _goes_on(page, labels, previous, last, start, mark):
            previous.answers.append(mark)
            previous.firsts.append(start)
        else:
            opens_box = begins_anew and any(
                mark.end < end < len(page.blocks) for end in page.spans.get(start, ())
            )
            asked = start if opens_box else _asking_start(page, labels, start, last)
            if any(
                _is_content(page, index) and not _is_title(page, labels, index)
                for index in range(asked, start)
            ):
                threads.append(_Thread(asked, start, [mark], [start]))
            elif place + 1 < len(posts):
                begins = asked if asked < start and labels[asked] else start
                threads.append(_Thread(begins, mark.end, [], []))
        last = mark.end
    return threads


def _goes_on(
    page: Page, labels: Sequence[Label | None], thread: _Thread, last: int, start: int, mark: Mark
) -> bool:
    """True where the post at `start` stands in the thread: in the same box, no exercise or heading between."""
    for index in range(last, min(start + 2, mark.end)):
        label, block = labels[index], page.blocks[index]
        if label and label.part is Part.PROBLEM:
            return False
        if block.kind == "heading" and not (label or _COUNTED.fullmatch(block.text)) and index < start:
            return False
        goes_beyond = index < start and any(end >= mark.end for end in page.spans.get(index, ()))
        if goes_beyond and asks("\n".join(one.text for one in page.blocks[index:start])):
            return False
    if thread.firsts and any(thread.firsts[0] < end <= last for end in page.spans.get(thread.start, ())):
        return False
    ends = [end for end in page.spans.get(thread.start, []) if end > last]
    holds_first = ends[0] if ends else page.outer_end[thread.start]
    return start < holds_first or not any(label for label in labels[last:start])


def _outermost(page: Page) -> list[tuple[int, Mark]]:
    """Posts that stand in no other and hold one at most: those with more are lists of posts."""
    ordered = sorted(
        ((start, mark) for start, marks in page.posts.items() for mark in marks),
        key=lambda post: (post[0], -post[1].end),
    )
    held = [0] * len(ordered)
    above: list[int] = []
    parents: list[int | None] = []
    for place, (start, _) in enumerate(ordered):
        while above and ordered[above[-1]][1].end <= start:
            above.pop()
        parents.append(above[-1] if above else None)
        above.append(place)
    for place in range(len(ordered) - 1, -1, -1):
        parent = parents[place]
        if parent is not None:
            held[parent] += max(1, held[place])
    found: list[tuple[int, Mark]] = []
    for place, post in enumerate(ordered):
        inside = bool(found) and post[0] < found[-1][1].end
        if held[place] <= 1 and not inside:
            found.append(post)
    return found


def _is_content(page: Page, index: int) -> bool:
    block = page.blocks[index]
    return block.kind not in ("rule", "vote", "heading") and not is_furniture(block.text)


def _is_title(page: Page, labels: Sequence[Label | None], index: int) -> bool:
    label = labels[index]
    return bool(label) and not label.rest


def _are_labelled(page: Page, labels: Sequence[Label | None], threads: Sequence[_Thread]) -> bool:
    """True where words or markup call at least half of the posts answers, or as many other parts of the page."""
    solves = [label is not None and label.part in _SOLVES for label in labels]
    posts = [pair for thread in threads for pair in zip(thread.firsts, thread.answers, strict=True)]
    for first, mark in posts:
        end = _mark_at_end(page, labels, first, mark.end)
        if end is not None:
            solves[end] = False
    titled = [
        is_one and (page.blocks[index].kind == "heading" or not accepts(page, index))
        for index, is_one in enumerate(solves)
    ]
    named = sum(any(titled[first : min(first + NEAR, mark.end)]) for first, mark in posts)
    others = sum(is_one and not accepts(page, index) for index, is_one in enumerate(solves))
    return 2 * max(named, others) >= len(posts)


def _is_about_a_question(page: Page, labels: Sequence[Label | None], thread: _Thread) -> bool:
    if any(mark.part == "reply" or mark.is_accepted for mark in thread.answers):
        return True
    posts = zip(thread.firsts, thread.answers, strict=True)
    if any(_mark_at_end(page, labels, first, mark.end) is not None for first, mark in posts):
        return True
    return any(
        page.blocks[index].kind == "vote" or accepts(page, index)
        for first, mark in zip(thread.firsts, thread.answers, strict=True)
        for index in range(first, mark.end)
    )


def accepts(page: Page, index: int) -> bool:
    """True for a block that says of the post around it that it was chosen."""
    text = page.blocks[index].text
    return 0 < len(text) <= MAX_CHARACTERS and bool(_ACCEPTED.fullmatch(text))


def _mark_at_end(page: Page, labels: Sequence[Label | None], first: int, end: int) -> int | None:
    """The place of a label of a solution that ends the post: it says that the post is the solution."""
    for index in range(end - 1, max(first, end - 1 - NEAR), -1):
        label = labels[index]
        if label and label.part in _SOLVES and not label.rest:
            return index
        if _is_content(page, index):
            return None
    return None


def _label_question(page: Page, labels: list[Label | None], thread: _Thread) -> None:
    first = thread.start
    if not (labels[first] and labels[first].part is Part.PROBLEM):
        block = page.blocks[first]
        rest = "" if block.kind in ("vote", "heading", "rule") or is_furniture(block.text) else block.text
        labels[first] = Label(Part.PROBLEM, rest, "", end=thread.asked_end, rule="thread")
    labels[first + 1 : thread.asked_end] = [None] * (thread.asked_end - first - 1)


def _label_answers(page: Page, labels: list[Label | None], thread: _Thread) -> None:
    for start, mark in zip(thread.firsts, thread.answers, strict=True):
        ends = {*range(start, min(start + NEAR, mark.end)), *range(max(start, mark.end - NEAR), mark.end)}
        last = _mark_at_end(page, labels, start, mark.end)
        accepted = mark.is_accepted or last is not None or any(accepts(page, index) for index in ends)
        labels[start : mark.end] = [None] * (mark.end - start)
        block = page.blocks[start]
        is_text = block.kind not in ("vote", "heading", "rule") and not is_furniture(block.text)
        is_text = is_text and not accepts(page, start)
        end = mark.end if last is None else last
        answer = Label(Part.ANSWER, block.text if is_text else "", "", end=end, rule="thread")
        labels[start] = replace(answer, is_accepted=accepted)
        if last is not None and last > start:
            labels[last] = Label(Part.ASIDE, "", "", end=mark.end)
