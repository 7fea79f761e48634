"""Short texts that sites put around exercises, and what stands in place of a solution."""

from __future__ import annotations

import re

FURNITURE = re.compile(
    r"(?:copyright|©|all rights reserved|(?:this work is )?licen[sc]ed under|[\s*_~•·=.—–-]{3,}$)",
    re.IGNORECASE,
)
MAX_FURNITURE_CHARACTERS = 200
_PLACEHOLDER = re.compile(
    r"(?:this|the) (?:problem|exercise|question|section|article)\b.{0,20}"
    r"\b(?:needs|has no|lacks|does not (?:yet )?have)\b.{0,40}\b(?:solutions?|answers?)\b"
    r"|no (?:solutions?|answers?)\b.{0,30}\b(?:yet|available|provided|posted|submitted)\b"
    r"|(?:the )?(?:solutions?|answers?)\b.{0,20}\b(?:coming|to be (?:added|posted|written|announced)"
    r"|not (?:yet )?(?:available|provided|posted|written)|will be (?:added|posted|available))\b"
    r"|coming soon\b|(?:tba|tbd|to ?do|n/a|removed)\W*$"
    r"|(?:(?:pdf|html|video|show|hide|view|open|here|link|click(?: here)?|download|youtube)(?:\b\W*|$)){1,4}$"
    r"|(?:(?:please )?(?:log|sign) ?in\b|subscribe\b|register\b|upgrade\b).{0,80}$"
    r"|(?:(?:see|is|are|on|at|in|refer to|turn to|given|found) ){1,3}(?:the )?(?:back of\b|end of\b|next page"
    r"|p(?:age|\.|p\.)? ?\d|appendix|answer key|solutions? (?:manual|section|page)|chapter \d|section \d)[^=$]{0,40}$",
    re.IGNORECASE,
)
_STROKES = frozenset(" -–—_.…*[]()")
MAX_PLACEHOLDER_CHARACTERS = 160


def is_furniture(text: str) -> bool:
    """True for a short text that sites put around their content: whose it is, strokes."""
    return len(text) <= MAX_FURNITURE_CHARACTERS and bool(FURNITURE.match(text))


def is_placeholder(text: str) -> bool:
    """True for what stands in a solution's place until somebody writes one."""
    if len(text) > MAX_PLACEHOLDER_CHARACTERS:
        return False
    return bool(_PLACEHOLDER.match(text.lstrip(" -–—[(*"))) or (bool(text) and _STROKES.issuperset(text))
