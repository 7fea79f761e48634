"""Text of others as a page may show it, before it is escaped: hostile, endless, or with characters that nobody sees."""

from __future__ import annotations

import re

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Control characters, and those that turn the direction of text or take no room."""


def legible(text: str, characters: int) -> str:
    """At most `characters` of the text, with what cannot be seen named by its code point."""
    cut = text.replace("\r\n", "\n")[:characters]
    seen = _UNSEEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", cut)
    return (
        seen
        if len(cut) >= len(text.replace("\r\n", "\n"))
        else f"{seen} … [cut: {len(text):,} characters in all]"
    )
