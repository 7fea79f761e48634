"""Markdown in which the author marked the exercises by fences: MyST's directives, Quarto's boxes.

What a fence calls itself (`{exercise}`, `{#exr-one}`, a title "Solution") says what it holds; no
label is read. A solution belongs to the exercise that it names, that it stands in, or that it follows. A fenced
container with text and one solution in it is an exercise, whatever its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from stages.extract_web.labels.labels import (
    is_aside_label,
    is_problem_title,
    is_solution_label,
    is_whole_label,
)
from stages.extract_web.pairing.exercises import Exercise
from stages.extract_web.readers.markup import part_of_words, tokens
from stages.extract_web.readers.text_reader import read_text

_FENCE = re.compile(
    r"\s*(?P<sign>`{3,}|~{3,}|:{3,})\s*(?:\{(?P<given>[^{}]*)\}\s*(?P<name>\S*)|(?P<word>[\w-]*)).*"
)
_TITLE = re.compile(r"title=[\"']([^\"']*)")
_CLASS = re.compile(r"(?:class|data-type|itemprop|id)=[\"']?([^\"'>]*)|\.([\w-]+)|#([\w-]+)|^([\w-]+)")
_OPTION = re.compile(r":(\w[\w-]*):\s*(.*)")
_TEXT_DIRECTIVE = re.compile(
    r"admonition|note|tip|warning|important|attention|caution|danger|seealso|dropdown|tab|group-tab|sidebar|margin"
    r"|topic|figure|image|prf:|proof"
)
"""Directives of MyST that hold text; other backtick fences hold code."""
_HEADING = re.compile(r"\s{0,3}#{1,6}\s")
_SHORT = {"exr": "problem", "exm": "problem", "sol": "solution"}
"""How Quarto's references begin."""
_SOLVES = ("solution", "answer")
MAX_LINES = 200_000
MAX_DEPTH = 50
"""Containers in containers; deeper ones are text."""


@dataclass(slots=True)
class _Box:
    """An open or closed container."""

    part: str
    sign: str
    outer: _Box | None
    name: str = ""
    """The label of an exercise, or the one that a solution names."""
    content: list[str | _Box] = field(default_factory=list)
    is_code: bool = False
    has_text: bool = False
    """True with a line of its own that is not blank."""


def read_marked_text(content: str) -> list[Exercise]:
    """The exercises that the author marked, in order; none unless a solution or an answer is marked among them."""
    page = _Box("", "", None)
    stack = [page]
    for line in content.splitlines()[:MAX_LINES]:
        if _open_or_close(line, stack):
            continue
        box = stack[-1]
        is_first = box is not page and len(box.content) == box.is_code
        option = _OPTION.fullmatch(line.strip()) if is_first else None
        if option and option[1] == "label":
            _part_around(box).name = option[2]
        elif not option and (line.strip() or box.content):
            box.content.append(line)
            box.has_text |= bool(line.strip())
    boxes = list(_inner(page))
    for box in boxes:
        if box.part in _SOLVES and is_aside_label(_heading(box)):
            box.part = "aside"
        elif not box.part and not box.is_code and box.sign:
            box.part = _part_of_title(_heading(box))
    around = {id(box.outer): box.outer for box in boxes if box.part in _SOLVES and box.outer}
    for box in around.values():  # each once: it may hold thousands of solutions
        if _asks(box) and not any(isinstance(one, _Box) and one.part == "problem" for one in box.content):
            box.part = "problem"
            box.content = _first_question(box)
    if not any(box.part in _SOLVES for box in boxes):
        return []
    return _paired([box for box in boxes if box.part])


def _inner(outer: _Box) -> Iterator[_Box]:
    for box in outer.content:
        if isinstance(box, _Box):
            yield box
            yield from _inner(box)


def _part_around(box: _Box) -> _Box:
    """The container itself, or of those that are no part, the part around them."""
    while not box.part and box.outer:
        box = box.outer
    return box


def _heading(box: _Box) -> str:
    """The text of the heading that a container begins with; Carpentries write `::: solution` and `## Hint`."""
    first = next((line for line in box.content if isinstance(line, str) and line.strip()), "")
    return first.strip(" #") if _HEADING.match(first) else ""


def _part_of_title(title: str) -> str:
    """What a box that its class says nothing about is by its title: Quarto's callouts have them."""
    if is_solution_label(title):
        return "solution"
    return "problem" if is_problem_title(title) else ""


def _first_question(box: _Box) -> list[str | _Box]:
    """The content up to the first solutions, where text follows these: an afterword, or another question."""
    solved = False
    for place, one in enumerate(box.content):
        part = one.part if isinstance(one, _Box) else "" if one.strip() else "aside"
        if solved and part not in (*_SOLVES, "aside"):
            return box.content[:place]
        solved |= part in _SOLVES
    return box.content


def _asks(box: _Box) -> bool:
    """True for a fenced container that is no part and has text of its own under one heading at most."""
    own = [line for line in box.content if isinstance(line, str) and line.strip()]
    is_fenced = box.sign[:1] in tuple("`~:") and not box.part
    return is_fenced and bool(own) and sum(map(bool, map(_HEADING.match, own))) < min(len(own), 2)


def _open_or_close(line: str, stack: list[_Box]) -> bool:
    """True for a line that begins or ends a container."""
    top = stack[-1]
    fence = _FENCE.fullmatch(line)
    sign = fence["sign"] if fence else ""
    given = ((fence["given"] or fence["word"] or "") if fence else "").strip()
    is_end = fence is not None and not given
    if top.is_code:
        if is_end and sign.startswith(top.sign):
            top.content.append("$$" if top.content[0] == "$$" else line)
            stack.pop()
        return is_end and top is not stack[-1]
    if not fence:
        return False
    if is_end and _close(sign, stack):
        return True
    is_backtick = sign[0] in "`~"
    if is_end and not is_backtick:
        return False
    if len(stack) >= MAX_DEPTH:
        return True
    if given.endswith("-end"):
        _close("start", stack)
        stack.append(_Box("", sign, stack[-1]))  # the fence of the directive that says so is still open
        return True
    is_gated = given.endswith("-start")
    part = part_of_attributes(given.removesuffix("-start"))
    is_text = fence["given"] and _TEXT_DIRECTIVE.match(given)
    if is_backtick and not part and not is_text:
        code = ["$$" if given == "math" else line]
        stack.append(_Box("", sign, stack[-1], content=code, is_code=True))  # type: ignore[arg-type]
        stack[-2].content.append(stack[-1])
        return True
    opened = _Box(part, "start" if is_gated else sign, top, fence["name"] or "")
    top.content.append(opened)
    stack.append(opened)
    if is_gated:  # the directive itself is closed by its own fence; its content follows
        stack.append(_Box("", sign, opened))
    return True


def _close(sign: str, stack: list[_Box]) -> bool:
    """Ends the innermost container that such a line may end, of colons whatever their number, as in Pandoc; False where
    there is none."""
    for place in range(len(stack) - 1, 0, -1):
        other = stack[place].sign
        if other[0] == sign[0] and (sign[0] == ":" or len(sign) >= len(other)):
            del stack[place:]
            return True
    return False


def part_of_attributes(given: str) -> str:
    """What a container is by its name, classes, identifier or title; empty for others."""
    title = _TITLE.search(given)
    if title:
        return _part_of_title(title[1].strip())
    for found in _CLASS.finditer(given):
        for name in next(filter(None, found.groups()), "").split():
            words = tokens(name)
            part = _SHORT.get(words[0]) if words and found[3] else part_of_words(words)
            if part:
                return part
    return ""


def _paired(boxes: list[_Box]) -> list[Exercise]:
    problems = [box for box in boxes if box.part == "problem"]
    texts: dict[int, dict[str, str]] = {id(box): {} for box in problems}
    named = {box.name: box for box in problems if box.name}
    last: _Box | None = None
    for box in boxes:
        last = box if box.part == "problem" else last
        if box.part not in _SOLVES:
            continue
        around = _part_around(box.outer) if box.outer else box
        owner = named.get(box.name) or (around if around.part == "problem" else None)
        owner = owner or (last if last and _follows(box, last) else None)
        if owner:
            texts[id(owner)].setdefault(box.part, _text(box))
    found = []
    for box in problems:
        own = texts[id(box)]
        answer = own.get("answer") or None
        solution = own.get("solution") or answer
        if problem := _text(box):
            found.append(Exercise(problem, solution, answer, ""))
    return found


def _follows(solution: _Box, last: _Box) -> bool:
    """True where the solution stands beside the exercise or outside of the containers around it, alone in a container
    of its own or not."""
    outer = solution.outer
    if outer and outer.outer is last.outer and not outer.has_text:
        return True
    around = last.outer
    while around and around is not outer:
        around = around.outer
    return around is outer


def _text(box: _Box) -> str:
    blocks = read_text("\n".join(_lines(box))).blocks
    if len(blocks) > 1 and blocks[0].kind == "heading" and is_whole_label(blocks[0].text):
        blocks = blocks[1:]
    return "\n".join(
        f"- {block.text}" if block.kind == "item" else block.text for block in blocks if block.text
    )


def _lines(box: _Box) -> Iterator[str]:
    """The lines of a container and of those in it that are no parts."""
    for one in box.content:
        if isinstance(one, str):
            yield one
        elif not one.part:
            yield from _lines(one)
