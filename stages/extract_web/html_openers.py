"""Buttons that open what stands right after them, in words that nobody foresaw: "Show me what you did"."""

from __future__ import annotations

import re
from collections import defaultdict

from lxml.etree import _Element

from stages.extract_web.blocks import tidy

_HIDDEN = re.compile(r"(?:^|[\s_-])(?:hidden|hide|collapse|collapsed|closed|none|invisible)(?:$|[\s_-])", re.IGNORECASE)
_DIGITS = re.compile(r"\d+")
MIN_OPENERS = 3
MAX_CHARACTERS = 60


def openers(root: _Element) -> frozenset[_Element]:
    """The buttons before a hidden box that come at least three times in the same words, numbers aside."""
    found: dict[str, list[_Element]] = defaultdict(list)
    for button in root.iter("button"):
        following = button.getnext()
        if following is not None and isinstance(following.tag, str) and len(button) < 10 and _is_hidden(following):
            text = tidy("".join(button.itertext()))
            if 0 < len(text) <= MAX_CHARACTERS:
                found[_DIGITS.sub("#", text)].append(button)
    return frozenset(button for buttons in found.values() if len(buttons) >= MIN_OPENERS for button in buttons)


def _is_hidden(element: _Element) -> bool:
    style = "".join((element.get("style") or "").lower().split())
    return (
        "display:none" in style or element.get("hidden") is not None or element.get("aria-hidden") == "true"
        or bool(_HIDDEN.search(element.get("class") or ""))
    )  # fmt: skip
