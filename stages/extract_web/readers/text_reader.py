"""Reads Markdown and plain text: into blocks, and into exercises where the author marked them.

1. `read_text`: markdown-it-py finds headings, lists, quotations, tables and code; this module finds boxes and formulas.
2. `read_markdown`: HTML boxes (`<div class="problem">`, kramdown's `<div data-type="problem" markdown="1">`) are
   read as HTML. Python-Markdown renders them, and the HTML reader reads the result.
3. `read_marked_text`: fences that mark exercises, MyST's directives and Quarto's boxes. The name of a fence
   (`{exercise}`, `{#exr-one}`, a title "Solution") states its part; no label is read. A solution belongs to the
   exercise that it names, that it is in, or that it follows. A fenced container with text and one solution is an
   exercise, with any name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import markdown

from stages.extract_web.blocks import Block, Page, tidy
from stages.extract_web.exercises import Exercise
from stages.extract_web.labels import Part, is_problem_title, labelled_part, prefix_label
from stages.extract_web.readers.html_reader import part_of_words, read_html, tokens

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_ITEM = re.compile(r"(?:[-*+]|\d{1,3}[.)])\s+(?=\S)")
_LEAD = re.compile(r"(?:\*\*|__)(.+?)(?:\*\*|__)")
_LIGHT_LEAD = re.compile(r"[*_](?![*_\s])([^*_\n]{1,60})[*_](?![*_])")
_DELIMITERS = re.compile(r"\\\(((?:[^\n]|\n(?!\s*\n)){1,4000}?)\\\)|\\\[((?:[^\n]|\n(?!\s*\n)){1,4000}?)\\\]")
"""No formula continues after a blank line."""
_DISPLAY = re.compile(r"(?<!\$)\$\$(?!\$)")
"""Begins or ends a formula on separate lines; `$$$` is a price."""
_COMMENT = re.compile(r"<!--.*?(?:-->|$)", re.DOTALL)
_FRONT = re.compile(r"\A---\n(?:[^\n]*\n){0,60}?---\n")
_SPOILER = re.compile(r"^(\s{0,3}>)!", re.MULTILINE)
_QUOTE = re.compile(r"\A\s{0,3}>\s?")
_FENCE = re.compile(r"\s*(?:```|~~~)")
_BOX = re.compile(r"\s*(?:\?\?\?\+?|!!!|:{3,})\s*(?:\{\.?([\w-]*)[^{}]*\}|([\w-]*))\s*[\"“]?([^\"”{}]*)[\"”]?\s*")
_SUMMARY = re.compile(r"<summary[^<>]{0,200}>(.{0,2000}?)</summary>", re.IGNORECASE | re.DOTALL)
_CODE = re.compile(r"</?(?:code|kbd|tt)>", re.IGNORECASE)
_END_OF_DETAILS = re.compile(r"</details\s*>", re.IGNORECASE)
_TAG = re.compile(r"</?(?:details|div|section|p|span|b|strong|em|i|summary|center|br)\b[^<>]*>", re.IGNORECASE)
_LINK = re.compile(r"(?<!!)\[([^\[\]]*)\](?:\([^()\s]*\)|\{[.#][^{}]*\})")
"""A link, or a span with classes, of which only the text is read."""
# Control characters, because `collect_web` removes them from every page and no text needs them.
_MARK, _LINE = "\1", "\2"
"""Begins a line that opens or closes a box; replaces a line end where Markdown must see one line."""


@cache
def _parser() -> MarkdownIt:
    """HTML counts as text here. Indented lines are not code: many plain texts indent their paragraphs."""
    # Imported here, because commands that read no text would wait for it too.
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 100})
    parser = parser.enable("table").disable(["code", "reference"])
    # Labels and formulas are read from the unescaped text.
    parser.core.ruler.disable("inline")
    return parser


def read_text(content: str) -> Page:
    """Returns blocks of a Markdown or plain text page, flat apart from `details` and admonitions."""
    reader = _Reader()
    for token in _parser().parse("\n".join(_prepared(content))):
        if token.type == "inline":
            reader.text(token.content)
        else:
            reader.structure(token)
    return reader.page.finish()


class _Reader:
    """Turns the parser's tokens into blocks."""

    def __init__(self) -> None:
        self.page = Page()
        self.opened: list[int] = []
        """First blocks of the boxes that are open."""
        self.rows: list[list[str]] = []
        self.quotes = self.level = 0
        self.mark = ""
        """Mark of the list item whose text comes next."""

    def structure(self, token: Token) -> None:
        """Reads the tokens around texts, and code."""
        match token.type:
            case "blockquote_open" | "blockquote_close":
                self.quotes += token.nesting
            case "heading_open":
                self.level = int(token.tag[1])
            case "heading_close":
                self.level = 0
            case "list_item_open":
                self.mark = f"{token.info}{token.markup} "
            case "list_item_close":
                self.mark = ""
            case "hr":
                self.page.blocks.append(Block("", "rule"))
            case "fence":
                # Code keeps its fence. Without it the row would not show where the code ends.
                lines = [token.markup + token.info, *token.content.splitlines(), token.markup]
                self.add(Block("\n".join(map(str.rstrip, lines)), "code"))
            case "tr_open":
                self.rows.append([])
            case "table_close":
                self.add(Block("\n".join(map(" | ".join, self.rows)), "table"))
                self.rows = []

    def text(self, text: str) -> None:
        """Reads a heading, a cell, the beginning or end of a box, or a paragraph."""
        if self.rows:
            self.rows[-1].append(_plain(text))
        elif self.level:
            self.add(Block(_plain(text), "heading", self.level))
        elif text == _MARK:
            # A page may close more boxes than it has opened.
            if self.opened:
                self.page.close_container(self.opened.pop())
        elif text[0] == _MARK:
            # A fence of colons opens no container here: its end looks like the beginning of another one.
            if text[1] == ">":
                self.opened.append(len(self.page.blocks))
            title = _plain(text[2:].replace(_LINE, "\n"))
            self.add(Block(title, "toggle", 0, title))
        else:
            for part in _parts(self.mark + text):
                self.add(_text_block(part.replace(_LINE, "\n")))
            self.mark = ""

    def add(self, block: Block) -> None:
        """Records a block, within the quotation if there is one."""
        if block.text:
            if self.quotes:
                self.page.quoted.add(len(self.page.blocks))
            self.page.blocks.append(block)


def _prepared(content: str) -> Iterator[str]:
    """Returns lines with boxes as marks, and each displayed formula as one line: Markdown knows neither."""
    content = _COMMENT.sub("", _FRONT.sub("", content.replace("\r\n", "\n")))
    # Blank lines around the mark make it a separate paragraph for the parser.
    content = _END_OF_DETAILS.sub(f"\n\n{_MARK}\n\n", content) if "<summary" in content.lower() else content
    content = _DELIMITERS.sub(lambda found: f"${(found[1] or found[2]).strip()}$", _SUMMARY.sub(_one_line, content))
    content = _SPOILER.sub(r"\1", content)
    indents: list[int] = []
    """Indentations of open admonitions: `!!! note` contains the lines that are indented further."""
    is_code = False
    for line in _joined_formulas(content.splitlines()):
        indent = len(line) - len(line.lstrip())
        while indents and line.strip() and not is_code and indent <= indents[-1]:
            indents.pop()
            yield from ("", _MARK, "")
        # The text of an admonition begins four spaces in. Further indentation is the text's own.
        line = line[min(indent, indents[-1] + 4) :] if indents else line
        is_code ^= bool(_FENCE.match(line))
        box = _BOX.fullmatch(line) if not is_code and line.lstrip()[:3] in ("???", "!!!", ":::") else None
        if not box:
            yield line
            continue
        name = box[1] or box[2] or ""
        title = box[3].strip() or (name if labelled_part(name) else "")
        sign = ":" if line.lstrip()[0] == ":" else ">"
        indents += [indent] if sign == ">" else []
        yield from ("", f"{_MARK}{sign}{title}", "")
    yield from ("", _MARK) * len(indents)


def _joined_formulas(lines: Iterable[str]) -> Iterator[str]:
    """Joins each displayed formula to one line; one without an end, or that leaves its quotation, is not a formula."""
    formula: list[str] = []
    is_code = False
    for line in lines:
        quote = _QUOTE.match(line)
        if formula and bool(quote) != bool(_QUOTE.match(formula[0])):
            yield from formula
            formula = []
        is_code ^= not formula and bool(_FENCE.match(line[quote.end() :] if quote else line))
        # Two signs in one line are a whole formula.
        is_edge = not is_code and len(_DISPLAY.findall(line)) % 2
        if not formula and not is_edge:
            yield line
            continue
        formula.append(line)
        if is_edge and len(formula) > 1:
            # The parser would read a `=` or `-` alone on a line as a heading or an item.
            yield _LINE.join([formula[0], *(_QUOTE.sub("", one, count=1) for one in formula[1:])])
            formula = []
    yield from formula


def _one_line(summary: re.Match[str]) -> str:
    text = _TAG.sub("", _CODE.sub("`", summary[1]))
    return f"\n\n{_MARK}>" + _LINE.join(line.strip() for line in text.splitlines() if line.strip()) + "\n\n"


def _parts(text: str) -> Iterator[str]:
    """Returns the paragraph, split before lines that begin an item or with a label."""
    lines: list[str] = []
    for line in text.split("\n"):
        stripped = line.strip()
        if lines and stripped and (_ITEM.match(stripped) or _begins_part(stripped, lines[-1])):
            yield "\n".join(lines)
            lines = []
        lines += [line] if stripped else []
    yield "\n".join(lines)


def _text_block(text: str) -> Block:
    text = tidy(_TAG.sub("", text))
    item = _ITEM.match(text)
    if item and text[0] in "-*+":
        return Block(_plain(text[item.end() :]), "item")
    lead, light = _LEAD.match(text), _LIGHT_LEAD.match(text)
    if lead and len(lead[1]) <= 60:
        return Block(_plain(text), "paragraph", 0, _plain(lead[1]))
    # Emphasis in italics is common within prose, so it counts only where it is a label.
    if light and not lead and text[0] != text[1:2] and labelled_part(light[1]):
        return Block(_plain(light[1] + text[light.end() :]), "paragraph", 0, _plain(light[1]))
    return Block(_plain(text), "paragraph")


def _begins_part(line: str, before: str) -> bool:
    """True for a line that begins with a label; not in lower case within a sentence ("see\\nexercise 2")."""
    if line[0].islower() and before.rstrip()[-1:] not in tuple(".:;!?"):
        return False
    return labelled_part(_plain(line)) is not None or prefix_label(_plain(line)) is not None


def _plain(text: str) -> str:
    return _LEAD.sub(r"\1", _LINK.sub(r"\1", text) if "](" in text or "]{" in text else text).strip()


_HTML_BOX = re.compile(r"^\s{0,3}<(?:div|section)\b([^<>]*)>", re.IGNORECASE | re.MULTILINE)
_NOT_RENDERED = re.compile(r"<(div|section)\b(?![^<>]*\bmarkdown=)", re.IGNORECASE)
_INDENTED_TAG = re.compile(r"^[ \t]+(?=</?[a-z])", re.IGNORECASE | re.MULTILINE)
_ATTRIBUTES = re.compile(r"\{:[^{}\n]{0,300}\}")
_CHUNK = re.compile(r"^(`{3,}|~{3,})[ \t]*\{([\w+-]*)[^{}\n]*\}[ \t]*$", re.MULTILINE)
"""How notebooks open code: a language with options, in braces."""
# Python-Markdown renders these boxes. With markdown-it-py no pair was gained, and items of lists lost their marks.
EXTENSIONS = ("md_in_html", "tables", "fenced_code")


def read_markdown(content: str) -> Page | list[Exercise]:
    """Returns the marked exercises, else the page's blocks; Unreadable when it has boxes and nothing to parse."""
    # The author's marks take precedence over the rules.
    fenced = read_marked_text(content)
    if fenced:
        return fenced
    parts = {part_of_attributes(box[1]) for box in _HTML_BOX.finditer(content)}
    # Boxes without a solution are layout, and the page is read as text.
    if parts.isdisjoint(("solution", "answer")):
        return read_text(content)
    # An indented tag would be code, and a box inside an unrendered one would stay raw, with any class.
    whole = _NOT_RENDERED.sub(
        r'<\1 markdown="1"', _INDENTED_TAG.sub("", _ATTRIBUTES.sub("", _CHUNK.sub(r"\1\2", content)))
    )
    return read_html(markdown.markdown(whole, extensions=EXTENSIONS))


# A scanner written here: markdown-it-py has no fences of colons, and found 382 of 511 marked exercises.
_DIRECTIVE = re.compile(
    r"\s*(?P<sign>`{3,}|~{3,}|:{3,})\s*(?:\{(?P<attributes>[^{}]*)\}\s*(?P<name>\S*)|(?P<word>[\w-]*)).*"
)
_TITLE = re.compile(r"title=[\"']([^\"']*)")
_CLASS = re.compile(r"(?:class|data-type|itemprop|id)=[\"']?([^\"'>]*)|\.([\w-]+)|#([\w-]+)|^([\w-]+)")
_OPTION = re.compile(r":(\w[\w-]*):\s*(.*)")
_TEXT_DIRECTIVE = re.compile(
    r"admonition|note|tip|warning|important|attention|caution|danger|seealso|dropdown|tab|group-tab|sidebar|margin"
    r"|topic|figure|image|prf:|proof"
)
"""Directives of MyST that contain text; other backtick fences contain code."""
_ANY_HEADING = re.compile(r"\s{0,3}#{1,6}\s")
_SHORT = {"exr": "problem", "exm": "problem", "sol": "solution"}
"""How Quarto's references begin."""
_SOLVES = ("solution", "answer")
MAX_LINES = 200_000
MAX_DEPTH = 50
"""Nesting of containers; deeper ones are text."""


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
    """True with a line that is not blank and not in an inner container."""


def read_marked_text(content: str) -> list[Exercise]:
    """Returns the author's marked exercises in order; none unless a solution or an answer is marked among them."""
    page = _Box("", "", None)
    stack = [page]
    for line in content.splitlines()[:MAX_LINES]:
        if _open_or_close(line, stack):
            continue
        box = stack[-1]
        # Options come at the very beginning. The content of code begins with its fence.
        is_first = box is not page and len(box.content) == box.is_code
        option = _OPTION.fullmatch(line.strip()) if is_first else None
        if option and option[1] == "label":
            _part_around(box).name = option[2]
        elif not option and (line.strip() or box.content):
            box.content.append(line)
            box.has_text |= bool(line.strip())
    boxes = list(_inner(page))
    for box in boxes:
        # Carpentries put hints into boxes of solutions, under a heading that says so.
        if box.part in _SOLVES and labelled_part(_heading(box)) is Part.ASIDE:
            box.part = "aside"
        elif not box.part and not box.is_code and box.sign:
            box.part = _part_of_title(_heading(box))
    around = {id(box.outer): box.outer for box in boxes if box.part in _SOLVES and box.outer}
    for box in around.values():  # each once: it may contain thousands of solutions
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
    """Yields the container itself, or for one that is not a part, the part around it."""
    while not box.part and box.outer:
        box = box.outer
    return box


def _heading(box: _Box) -> str:
    """The text of the heading that a container begins with; Carpentries write `::: solution` and `## Hint`."""
    first = next((line for line in box.content if isinstance(line, str) and line.strip()), "")
    return first.strip(" #") if _ANY_HEADING.match(first) else ""


def _part_of_title(title: str) -> str:
    """Returns the part that the title of a box names, if its class does not: Quarto's callouts have titles."""
    if labelled_part(title) in (Part.SOLUTION, Part.ANSWER):
        return "solution"
    return "problem" if is_problem_title(title) else ""


def _first_question(box: _Box) -> list[str | _Box]:
    """Returns the content up to the first solutions, if text follows them: an afterword, or another question."""
    solved = False
    for place, one in enumerate(box.content):
        part = one.part if isinstance(one, _Box) else "" if one.strip() else "aside"
        if solved and part not in (*_SOLVES, "aside"):
            return box.content[:place]
        solved |= part in _SOLVES
    return box.content


def _asks(box: _Box) -> bool:
    """True for a fenced container that is not a part and has direct text under at most one heading."""
    own = [line for line in box.content if isinstance(line, str) and line.strip()]
    is_fenced = box.sign[:1] in tuple("`~:") and not box.part
    return is_fenced and bool(own) and sum(map(bool, map(_ANY_HEADING.match, own))) < min(len(own), 2)


def _open_or_close(line: str, stack: list[_Box]) -> bool:
    """True for a line that begins or ends a container."""
    top = stack[-1]
    fence = _DIRECTIVE.fullmatch(line)
    sign = fence["sign"] if fence else ""
    attributes = ((fence["attributes"] or fence["word"] or "") if fence else "").strip()
    is_end = fence is not None and not attributes
    if top.is_code:
        if is_end and sign.startswith(top.sign):
            # MyST's directive `math` is a displayed formula: its fences become dollar signs.
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
    if attributes.endswith("-end"):
        _close("start", stack)
        stack.append(_Box("", sign, stack[-1]))  # the fence of the directive is still open
        return True
    # MyST marks an exercise that contains code cells by `exercise-start` and `exercise-end`.
    is_gated = attributes.endswith("-start")
    part = part_of_attributes(attributes.removesuffix("-start"))
    is_text = fence["attributes"] and _TEXT_DIRECTIVE.match(attributes)
    if is_backtick and not part and not is_text:
        code = ["$$" if attributes == "math" else line]
        stack.append(_Box("", sign, stack[-1], content=code, is_code=True))  # type: ignore[arg-type]
        stack[-2].content.append(stack[-1])
        return True
    opened = _Box(part, "start" if is_gated else sign, top, fence["name"] or "")
    top.content.append(opened)
    stack.append(opened)
    if is_gated:  # the fence of the directive closes it; its content follows
        stack.append(_Box("", sign, opened))
    return True


def _close(sign: str, stack: list[_Box]) -> bool:
    """Ends the innermost container that such a line may end, for any number of colons, as in Pandoc; False where there
    is none."""
    for place in range(len(stack) - 1, 0, -1):
        other = stack[place].sign
        if other[0] == sign[0] and (sign[0] == ":" or len(sign) >= len(other)):
            del stack[place:]
            return True
    return False


def part_of_attributes(attributes: str) -> str:
    """Returns the part of a container by its name, classes, identifier or title; empty for others."""
    title = _TITLE.search(attributes)
    if title:
        return _part_of_title(title[1].strip())
    for found in _CLASS.finditer(attributes):
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
        # The exercise that the solution names, else the one around it, else the last one before.
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
    """True where the solution is beside the exercise or outside of its containers, maybe alone in another container."""
    outer = solution.outer
    if outer and outer.outer is last.outer and not outer.has_text:
        return True
    around = last.outer
    while around and around is not outer:
        around = around.outer
    return around is outer


def _text(box: _Box) -> str:
    blocks = read_text("\n".join(_lines(box))).blocks
    if len(blocks) > 1 and blocks[0].kind == "heading" and labelled_part(blocks[0].text):
        # A heading such as "Solution" only repeats what the box says.
        blocks = blocks[1:]
    return "\n".join(f"- {block.text}" if block.kind == "item" else block.text for block in blocks if block.text)


def _lines(box: _Box) -> Iterator[str]:
    """Returns the lines of a container, including inner containers that are not parts."""
    for one in box.content:
        if isinstance(one, str):
            yield one
        elif not one.part:
            yield from _lines(one)
