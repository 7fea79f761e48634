"""What opens hidden parts: buttons before them, in words that nobody foresaw ("Show me what you did"), and links and
buttons that name the identifier of one, wherever it stands."""

from __future__ import annotations

import re
from collections import defaultdict

from lxml import etree
from lxml.etree import _Element

from stages.extract_web.blocks import tidy
from stages.extract_web.labels import is_toggle_label
from stages.extract_web.markup import short_text
from stages.extract_web.mathml import names

MAY_OPEN = re.compile(r"display:\s*none|\shidden\b|aria-expanded=|[\"'\s]collaps", re.IGNORECASE)
"""What the source of a page with hidden parts has."""
_HIDDEN = re.compile(
    r"(?:^|[\s_-])(?:hidden|hide|collapse|collapsed|closed|none|invisible)(?:$|[\s_-])", re.IGNORECASE
)
_DIGITS = re.compile(r"\d+")
_QUOTED = re.compile(r"[\"'\s]#?([^\"'#\s]{1,80})[\"'\s]")
_NAME = re.compile(r"[\w-]{1,80}")
_NAMED = etree.XPath("//*[@id]")
_LINKS = etree.XPath(
    "//*[self::a or self::button or self::span or self::label]"
    "[@aria-controls or @data-target or @data-bs-target or @onclick or starts-with(@href, '#')"
    " or starts-with(@href, 'javascript:')]"
)
_PARTS = names("div p section article blockquote ul ol span")
_REFERENCES = ("aria-controls", "data-target", "data-bs-target", "href")
MIN_OPENERS = 3
MAX_CHARACTERS = 60
MAX_SCRIPT_CHARACTERS = 300


def openers(root: _Element) -> frozenset[_Element]:
    """The buttons before a hidden box that come at least three times in the same words, numbers aside."""
    found: dict[str, list[_Element]] = defaultdict(list)
    for button in root.iter("button"):
        following = button.getnext()
        if (
            following is not None
            and isinstance(following.tag, str)
            and len(button) < 10
            and _is_hidden(following)
        ):
            text = tidy("".join(button.itertext()))
            if 0 < len(text) <= MAX_CHARACTERS:
                found[_DIGITS.sub("#", text)].append(button)
    return frozenset(
        button for buttons in found.values() if len(buttons) >= MIN_OPENERS for button in buttons
    )


def opened_parts(root: _Element) -> dict[_Element, _Element]:
    """Link or button -> the hidden box after it that it opens: it names the box, and its words are a label, or come at
    least three times, numbers aside."""
    by_id: dict[str, _Element] = {}
    links = _LINKS(root)
    for element in _NAMED(root) if links else ():
        by_id.setdefault(element.get("id"), element)
    by_id.pop("", None)
    found: dict[str, list[tuple[_Element, _Element]]] = defaultdict(list)
    for opener in links:
        part = _named(opener, by_id)
        if part is None or part.tag not in _PARTS or len(opener) >= 10 or opener.get("role") == "tab":
            continue
        if opener.get("aria-expanded") == "false" or _is_hidden(part):
            text = short_text(opener, MAX_CHARACTERS)
            if text:
                found[_DIGITS.sub("#", text)].append((opener, part))
    kept = [pairs for text, pairs in found.items() if len(pairs) >= MIN_OPENERS or is_toggle_label(text)]
    places = {element: place for place, element in enumerate(root.iter())} if kept else {}
    return {opener: part for pairs in kept for opener, part in pairs if places[opener] < places[part]}


def _named(opener: _Element, by_id: dict[str, _Element]) -> _Element | None:
    """The one element that a link or button names: by an attribute for it, or in its script."""
    for attribute in _REFERENCES:
        named = by_id.get((opener.get(attribute) or "").removeprefix("#"))
        if named is not None:
            return named
    href = opener.get("href") or ""
    script = f"{href if href.startswith('javascript:') else ''} {opener.get('onclick') or ''}"[
        :MAX_SCRIPT_CHARACTERS
    ]
    if len(script) < 3:
        return None
    for pattern in (_QUOTED, _NAME):
        known = {name for name in pattern.findall(script) if name in by_id}
        if known:
            return by_id[known.pop()] if len(known) == 1 else None
    return None


def _is_hidden(element: _Element) -> bool:
    style = "".join((element.get("style") or "").lower().split())
    return (
        "display:none" in style
        or element.get("hidden") is not None
        or element.get("aria-hidden") == "true"
        or bool(_HIDDEN.search(element.get("class") or ""))
    )
