"""Short texts that sites put around exercises: votes, dates, grades, share links, licences."""

from __future__ import annotations

import re

FURNITURE = re.compile(
    r"(?:share (?:this|on)|copyright|©|all rights reserved|this work is licen[sc]ed|licen[sc]ed under|advertisement"
    r"|sponsored|(?:posted|asked|answered|edited|replied) (?:by|on|\d)"
    r"|\d+ (?:votes?|upvotes?|comments?|views?|shares?)\b"
    r"|sign (?:in|up)\b|log in\b|subscribe\b|back to (?:the )?(?:top|exercises?|problems?|questions?)\b"
    r"|(?:jump|skip|go|scroll)(?: (?:down|up|straight|back))? to (?:the |my |its )?(?:answers?|solutions?|hints?"
    r"|problems?|exercises?|questions?)\W*$"
    r"|return to (?:the )?(?:top|exercises?|problems?|questions?)\b|(?:next|previous) (?:page|lesson|section)"
    r"|was this helpful|report (?:an? )?(?:error|problem|post)|read more\b|download\b.{0,40}$"
    r"|related (?:posts|articles|questions)|powered by|(?:posts|joined|location|reputation): \S|last edited\b"
    r"|(?:reply|quote|report|like|flag|edit|permalink)$|add a comment|score: [+−-]?\d+$|\S+ (?:wrote|said):"
    r"|(?:thanks?|helpful|likes?|reactions?)\W*\d+$|(?:expert[- ])?verified(?: answer)?$"
    r"|[\[(]\d{1,2} ?(?:marks?|pts?)[\])]$|(?:up-?)?votes?$|sort(?:ed)? by\b|flag question$"
    r"|#\d{1,5}$|(?:this |the )?(?:page|site) (?:is |was )?(?:maintained|created|designed|hosted)\b|also read\b.{0,60}$"
    r"|no (?:replies|comments|responses|answers)\b.{0,12}\byet\b|be the first to\b.{0,30}$"
    r"|mark(?:ed)? (?:[\d.]+ )?out of [\d.]+$|not (?:yet )?answered$|points?: [\d./]+$"
    r"|(?:your|the) (?:answer|response) (?:is|was) (?:partially )?(?:in)?correct\W*$"
    r"|(?:in|out) ?\[[\d ]{0,6}\]:?$|[–—-] ?\d{1,4} ?[–—-]$|step \d{1,2} of \d{1,2}$|(?:last )?(?:updated|modified)\b"
    r"|page \d{1,4}(?: of \d{1,4})?$|~ ?[A-Za-z][\w. -]{1,30}$"
    r"|(?:this )?(?:page|article|entry|post) (?:was |has been )?(?:last )?(?:edited|updated|modified|changed)\b"
    r"|(?:retrieved from|categor(?:y|ies): |see also:? |filed under\b)"
    r"|[\[(←↑^«‹⇑↩]{1,3} ?(?:back|top|up|return|home|next|prev(?:ious)?|contents|index)\b.{0,40}$|back to\b.{0,40}$"
    r"|\W*(?:accepted|chosen|verified|best|top) (?:answer|solution|reply|response)\W*$|[✓✔✅☑\uFE0F\s]+$"
    r"|(?:[\s*_~•·=.—–-]{3,}|[⁂~•—])$"
    r"|\W*(?:marked|chosen|selected|accepted) as (?:the |an? )?(?:best|correct|accepted|solution|answer)\b.{0,40}$"
    r"|(?:on )?\d{0,2} ?(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\.? \d{1,4}\b.{0,12} \d{1,2}:\d\d"
    r"\b.{0,12}$"
    r"|(?:posted|asked|answered|edited|replied|updated) [^.?!]{0,24}\d[^.?!]{0,12} by \S.{0,40}$"
    r"|[\w.@ -]{1,40} (?:replied|answered|posted|commented|asked|wrote)(?: (?:on|at) .{0,24}\d.{0,16}|.{0,24} ago\W*)$"
    r"|[^?!=$]{1,60}[·•|][^?!=$]{0,80}(?:\b[\d,.]+k? (?:views?|repl(?:y|ies)|posts?)|\b(?:19|20)\d\d|\bago)\W*$)",
    re.IGNORECASE,
)
MAX_FURNITURE_CHARACTERS = 200
_SEPARATORS = " |·•/"
"""What is left of a row of links before its last entry."""
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
    """True for a short text that sites put around their content: votes, dates, share links, licences."""
    return len(text) <= MAX_FURNITURE_CHARACTERS and bool(FURNITURE.match(text.lstrip(_SEPARATORS)))


def is_placeholder(text: str) -> bool:
    """True for what stands in a solution's place until somebody writes one."""
    if len(text) > MAX_PLACEHOLDER_CHARACTERS:
        return False
    return bool(_PLACEHOLDER.match(text.lstrip(" -–—[(*"))) or (bool(text) and _STROKES.issuperset(text))
