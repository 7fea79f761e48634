"""Markdown in which the author marked the exercises by fences: MyST's directives, Quarto's boxes.

What a fence calls itself (`{exercise}`, `{#exr-one}`, a title "Solution") says what it holds; no
label is read. A solution belongs to the exercise that it names, that it stands in, or that it follows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from stages.extract_web.labels.labels import is_solution_label
from stages.extract_web.pairing.exercises import Exercise
from stages.extract_web.readers.markup import part_of_words, tokens
from stages.extract_web.readers.text_reader import read_text

_FENCE = re.compile(
    r"\s{0,3}(?P<sign>`{3,}|~{3,}|:{3,})\s*(?:\{(?P<given>[^{}]*)\}\s*(?P<name>\S*)|(?P<word>[\w-]*)).*"
)
_TITLE = re.compile(r"title=[\"']([^\"']*)")
_CLASS = re.compile(r"(?:class|data-type|itemprop|id)=[\"']?([^\"'>]*)|\.([\w-]+)|#([\w-]+)|^([\w-]+)")
_OPTION = re.compile(r":(\w[\w-]*):\s*(.*)")
_SHORT = {"exr": "problem", "exm": "problem", "sol": "solution"}
"""How Quarto's references begin."""
MAX_LINES = 200_000
MAX_DEPTH = 50
"""Containers in containers; deeper ones are text."""


@dataclass(slots=True)
class _Box:
    """An open or closed container."""

    part: str
    sign: str
    name: str = ""
    """The label of an exercise, or the one that a solution names."""
    lines: list[str] = field(default_factory=list)
    outer: _Box | None = None


def read_marked_text(content: str) -> list[Exercise]:
    """The exercises that the author marked, in order; none unless a solution or an answer is marked among them."""
    boxes: list[_Box] = []
    stack: list[_Box] = []
    for line in content.splitlines()[:MAX_LINES]:
        if not _open_or_close(line, stack, boxes):
            box = stack[-1] if stack else None
            option = _OPTION.fullmatch(line.strip()) if box and not any(map(str.strip, box.lines)) else None
            if option and option[1] == "label" and box:
                _with_text(box).name = option[2]
            elif box and not option:
                _with_text(box).lines.append(line)
    if not any(box.part in ("solution", "answer") for box in boxes):
        return []
    return _paired(boxes)


def _with_text(box: _Box) -> _Box:
    """The container that a line belongs to: of those that are no part, the part around them."""
    while not box.part and box.outer:
        box = box.outer
    return box


def _open_or_close(line: str, stack: list[_Box], boxes: list[_Box]) -> bool:
    """True for a line that begins or ends a container."""
    fence = _FENCE.fullmatch(line)
    if not fence:
        return False
    sign, given = fence["sign"], fence["given"] or fence["word"] or ""
    is_verbatim = bool(stack) and stack[-1].sign[0] in "`~" and not stack[-1].part
    if is_verbatim or not given.strip():
        return _close(sign, stack)
    if given.strip().endswith("-end"):
        return _close("start", stack)
    is_gated = given.strip().endswith("-start")
    if len(stack) >= MAX_DEPTH:
        return True
    part = part_of_attributes(given.strip().removesuffix("-start"))
    opened = _Box(part, "start" if is_gated else sign, fence["name"] or "")
    opened.outer = stack[-1] if stack else None
    stack.append(opened)
    if part:
        boxes.append(opened)
    if is_gated:  # the directive itself is closed by its own fence; its content follows
        stack.append(_Box("", sign, outer=opened))
    return True


def _close(sign: str, stack: list[_Box]) -> bool:
    """Ends the innermost container that such a line may end; False where there is none."""
    for place in range(len(stack) - 1, -1, -1):
        other = stack[place].sign
        if other[0] == sign[0] and len(sign) >= len(other):
            del stack[place:]
            if sign == "start":  # the fence of the directive that says so is still open
                stack.append(_Box("", "`"))
            return True
    return False


def part_of_attributes(given: str) -> str:
    """What a container is by its name, classes, identifier or title; empty for others."""
    title = _TITLE.search(given)
    if title:
        return "solution" if is_solution_label(title[1].strip()) else ""
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
        owner = named.get(box.name) or last
        if box.part in ("solution", "answer") and owner:
            texts[id(owner)].setdefault(box.part, _text(box))
    found = []
    for box in problems:
        own = texts[id(box)]
        answer = own.get("answer") or None
        solution = own.get("solution") or answer
        if problem := _text(box):
            found.append(Exercise(problem, solution, answer, ""))
    return found


def _text(box: _Box) -> str:
    blocks = read_text("\n".join(box.lines)).blocks
    return "\n".join(
        f"- {block.text}" if block.kind == "item" else block.text for block in blocks if block.text
    )
