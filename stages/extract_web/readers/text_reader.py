"""Markdown and plain text to blocks: headings, lists, quotations, tables, code and boxes, by their lines' marks."""

from __future__ import annotations

import re

from stages.extract_web.labels.blocks import Block, Page, tidy
from stages.extract_web.labels.labels import is_whole_label, prefix_label

_HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*$")
_ITEM = re.compile(r"(?:[-*+]|\d{1,3}[.)])\s+(?=\S)")
_RULE = re.compile(r"(?:[-*_]\s*){3,}")
_UNDERLINE = re.compile(r"={3,}|-{3,}")
_LEAD = re.compile(r"(?:\*\*|__)(.+?)(?:\*\*|__)")
_LIGHT_LEAD = re.compile(r"[*_](?![*_\s])([^*_\n]{1,60})[*_](?![*_])")
_DELIMITERS = re.compile(r"\\\(((?:[^\n]|\n(?!\s*\n)){1,4000}?)\\\)|\\\[((?:[^\n]|\n(?!\s*\n)){1,4000}?)\\\]")
"""No formula goes on behind a blank line."""
_DISPLAY = re.compile(r"(?<!\$)\$\$(?!\$)")
"""Begins or ends a formula on lines of its own; `$$$` is a price."""
_COMMENT = re.compile(r"<!--.*?(?:-->|$)", re.DOTALL)
_FRONT = re.compile(r"\A---\n(?:[^\n]*\n){0,60}?---\n")
_QUOTE = re.compile(r"\s{0,3}>!?\s?")
_FENCE = re.compile(r"\s*(?:```|~~~)")
_BOX = re.compile(
    r"\s*(?:\?\?\?\+?|!!!|:{3,})\s*(?:\{\.?([\w-]*)[^{}]*\}|([\w-]*))\s*[\"“]?([^\"”{}]*)[\"”]?\s*"
)
_SUMMARY = re.compile(r"<summary[^<>]{0,200}>(.{0,2000}?)</summary>", re.IGNORECASE | re.DOTALL)
_CODE = re.compile(r"</?(?:code|kbd|tt)>", re.IGNORECASE)
_END_OF_DETAILS = re.compile(r"</details\s*>", re.IGNORECASE)
_TAG = re.compile(
    r"</?(?:details|div|section|p|span|b|strong|em|i|summary|center|br)\b[^<>]*>", re.IGNORECASE
)
_LINK = re.compile(r"(?<!!)\[([^\[\]]*)\](?:\([^()\s]*\)|\{[.#][^{}]*\})")
"""A link, or a span with classes, which is read for its text."""
_CELL_RULE = re.compile(r"\|?[\s:|-]+\|[\s:|-]*")


def read_text(content: str) -> Page:
    """Blocks of a Markdown or plain text page; a flat page but for `details`, since such text shows no other boxes."""
    reader = _Lines()
    content = _COMMENT.sub("", _FRONT.sub("", content.replace("\r\n", "\n")))
    content = _END_OF_DETAILS.sub("\n\n\0\n\n", content) if "<summary" in content.lower() else content
    content = _SUMMARY.sub(_one_line, content)
    for line in [*_DELIMITERS.sub(_with_dollars, content).splitlines(), ""]:
        reader.line(line)
    reader.end()
    return reader.page.finish()


def _one_line(summary: re.Match[str]) -> str:
    text = _TAG.sub("", _CODE.sub("`", summary[1]))
    return "\n\n\0" + "\1".join(line.strip() for line in text.splitlines() if line.strip()) + "\n\n"


class _Lines:
    """Gathers the lines of a block; `is_verbatim` within code and displayed formulas."""

    def __init__(self) -> None:
        self.page = Page()
        self.lines: list[str] = []
        self.is_quoted = False
        self.is_code = self.is_formula = False
        self.open: list[tuple[int, int | None]] = []
        """First blocks of the `details` and admonitions that are open, with the latter's indentation."""

    def line(self, line: str) -> None:
        """One line of the page."""
        quote = _QUOTE.match(line) if not self.is_code or self.is_quoted else None
        if bool(quote) != self.is_quoted and (quote or not self.lines or not line.strip() or self.is_code):
            self.end()
            self.is_quoted = bool(quote)
        line = line[quote.end() :] if quote else line
        if _FENCE.match(line) and not self.is_formula:
            self.fence(line)
            return
        self.end_admonitions(line)
        if not self.is_code and len(_DISPLAY.findall(line)) % 2:
            self.is_formula = not self.is_formula
        elif not self.is_code and not self.is_formula:
            self.plain_line(line)
            return
        if line.strip() or self.lines:
            self.lines.append(line)

    def end_admonitions(self, line: str) -> None:
        """`!!! note` holds what is indented further than it is."""
        if self.is_code or self.is_formula or not line.strip():
            return
        indent = len(line) - len(line.lstrip())
        while self.open and self.open[-1][1] is not None and indent <= self.open[-1][1]:
            self.end()
            self.page.close_container(self.open.pop()[0])

    def fence(self, line: str) -> None:
        """A line that begins a block of code or ends it."""
        if self.is_code:
            self.lines.append(line)
            self.end()
        else:
            self.end()
            self.lines, self.is_code = [line], True

    def plain_line(self, line: str) -> None:
        """A line outside code and displayed formulas."""
        stripped = line.strip()
        heading = _HEADING.fullmatch(stripped)
        box = _BOX.fullmatch(line) if stripped[:3] in ("???", "!!!", ":::") else None
        if _UNDERLINE.fullmatch(stripped) and len(self.lines) == 1:
            text = tidy(self.lines.pop())
            self.add(Block(_plain(text), "heading", 1 if stripped[0] == "=" else 2))
        elif heading:
            self.end()
            self.add(Block(_plain(heading[2]), "heading", len(heading[1])))
        elif _RULE.fullmatch(stripped):
            self.end()
            self.page.blocks.append(Block("", "rule"))
        elif stripped == "\0":
            self.end()
            if self.open:
                self.page.close_container(self.open.pop()[0])
        elif box or stripped.startswith("\0"):
            self.end()
            if not stripped.startswith(":"):
                indent = len(line) - len(line.lstrip()) if box else None
                self.open.append((len(self.page.blocks), indent))
            name = (box[1] or box[2] or "") if box else ""
            title = (
                box[3].strip() or (name if is_whole_label(name) else "")
                if box
                else stripped[1:].replace("\1", "\n")
            )
            if title:
                self.add(Block(_plain(title), "toggle", 0, _plain(title)))
        elif not stripped:
            self.end()
        else:
            if self.lines and (_ITEM.match(stripped) or _begins_part(stripped, self.lines[-1])):
                self.end()
            self.lines.append(line)

    def add(self, block: Block) -> None:
        """Records a block, within the quotation when there is one."""
        if block.text:
            if self.is_quoted:
                self.page.quoted.add(len(self.page.blocks))
            self.page.blocks.append(block)

    def end(self) -> None:
        """Ends the block in progress."""
        lines, self.lines = self.lines, []
        is_code, self.is_code, self.is_formula = self.is_code, False, False
        if not lines:
            return
        if is_code:
            self.add(Block("\n".join(map(str.rstrip, lines)), "code"))
            return
        if len(lines) > 1 and lines[0].lstrip().startswith("|") and _CELL_RULE.fullmatch(lines[1].strip()):
            rows = (_cells(line) for line in [lines[0], *lines[2:]])
            self.add(Block("\n".join(" | ".join(map(_plain, row)) for row in rows), "table"))
            return
        text = tidy(_TAG.sub("", "\n".join(lines)))
        if not text:
            return
        item = _ITEM.match(text)
        if item and text[0] in "-*+":
            self.add(Block(_plain(text[item.end() :]), "item"))
            return
        lead = _LEAD.match(text) or _LIGHT_LEAD.match(text)
        is_lead = lead and (text[0] != text[1:2] or _LEAD.match(text)) and len(lead[1]) <= 60
        if lead and is_lead and not _LEAD.match(text) and not is_whole_label(lead[1]):
            is_lead = False
        text = text if not is_lead or _LEAD.match(text) else lead[1] + text[lead.end() :]
        self.add(Block(_plain(text), "paragraph", 0, _plain(lead[1]) if is_lead else ""))


def _begins_part(line: str, before: str) -> bool:
    """True for a line that begins with a label; in small letters within a sentence it is none ("see\\nexercise 2")."""
    if line[0].islower() and before.rstrip()[-1:] not in tuple(".:;!?"):
        return False
    return is_whole_label(_plain(line)) or prefix_label(_plain(line)) is not None


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def _with_dollars(found: re.Match[str]) -> str:
    return f"${(found[1] or found[2]).strip()}$"


def _plain(text: str) -> str:
    return _LEAD.sub(r"\1", _LINK.sub(r"\1", text) if "](" in text or "]{" in text else text).strip()
