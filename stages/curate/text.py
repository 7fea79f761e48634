"""Text in one form: what looks the same is the same."""

from __future__ import annotations

import re
import unicodedata

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ufeff\u200b\u2060]")
_BLANKS = re.compile(r"[^\S\n]+")
_EMPTY_LINES = re.compile(r"\n{3,}")


def normalise_text(text: str) -> str:
    """Unicode NFC, `\\n` line ends, single blanks, at most one empty line in a row, nothing invisible, no margins."""
    text = unicodedata.normalize("NFC", text).replace("\r\n", "\n").replace("\r", "\n").replace("\f", "\n")
    text = _BLANKS.sub(" ", _CONTROL.sub("", text))
    lines = "\n".join(line.strip() for line in text.split("\n"))
    return _EMPTY_LINES.sub("\n\n", lines).strip()
