"""Markdown and plain text to blocks: paragraphs, headings and list items by their marks at the beginning of a line."""

from __future__ import annotations

import re

from stages.extract_web.blocks import Block, Page, tidy

_HEADING = re.compile(r"(#{1,6})\s+(.*?)\s*#*$")
_ITEM = re.compile(r"(?:[-*+]|\d{1,3}[.)])\s+(?=\S)")
_RULE = re.compile(r"(?:[-*_]\s*){3,}")
_LEAD = re.compile(r"(?:\*\*|__)(.+?)(?:\*\*|__)")
_DELIMITERS = re.compile(r"\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)


def read_text(content: str) -> Page:
    """Blocks of a Markdown or plain text page; a flat page, since such text shows no boxes."""
    page = Page()
    lines: list[str] = []
    for line in [*_DELIMITERS.sub(_with_dollars, content).splitlines(), ""]:
        heading = _HEADING.fullmatch(line.strip())
        is_rule = bool(_RULE.fullmatch(line.strip()))
        if heading or is_rule or not line.strip() or (lines and _ITEM.match(line.lstrip())):
            _end_block(page, lines)
            lines = []
        if heading:
            page.blocks.append(Block(_plain(heading[2]), "heading", len(heading[1])))
        elif is_rule:
            page.blocks.append(Block("", "rule"))
        elif line.strip():
            lines.append(line)
    return page.finish()


def _with_dollars(found: re.Match[str]) -> str:
    return f"${(found[1] or found[2]).strip()}$"


def _end_block(page: Page, lines: list[str]) -> None:
    text = tidy("\n".join(lines))
    if not text:
        return
    item = _ITEM.match(text)
    if item and text[0] in "-*+":
        page.blocks.append(Block(_plain(text[item.end() :]), "item"))
        return
    lead = _LEAD.match(text)
    page.blocks.append(Block(_plain(text), "paragraph", 0, _plain(lead[1]) if lead else ""))


def _plain(text: str) -> str:
    return _LEAD.sub(r"\1", text).strip()
