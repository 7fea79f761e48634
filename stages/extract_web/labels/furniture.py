"""Short texts that sites put around exercises: votes, dates, grades, share links, licences."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from stages.extract_web.labels.instructions import ASKS

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
_ABOUT_PROBLEM = re.compile(
    r"\W*(?:(?:in)?complete|finished|(?:partially |not )?(?:in)?correct|(?:not (?:yet )?)?(?:answered|attempted)"
    r"|answer saved|easy|medium|hard|difficult|moderate|challenging|basic|intermediate|advanced|optional"
    r"|(?:non-?)?calculator"
    r"|(?:difficulty|level|status|state|topics?|tags?|time|time limit|marks?|points?|grade|worth|type|source|skill"
    r"|category|standard|objective|lesson|chapter|section|submitted|posted|due)\s*[:=]\s*.{1,40}"
    r"|(?:added|written|posted|contributed|submitted|proposed|suggested|sent in|shared|created|edited|uploaded"
    r"|typed(?: up)?|set|checked|reviewed|asked) by:? @?[^\W\d][\w.’'-]*(?: [\w.’'-]+){0,3}"
    r"|(?:marks?|points?) \d{1,3}"
    r"|(?:worth )?\d{1,3}(?:\.\d+)? ?(?:points?|pts?|marks?|minutes?|mins?)(?: (?:possible|each|available|total))?"
    r"|(?:mark(?:ed)? |grade |score )?\d{1,3}(?:\.\d+)? ?(?:/|out of) ?\d{1,3}(?:\.\d+)?(?: (?:points?|pts?|marks?))?"
    r"|(?:marked|points?|marks?) out of \d{1,3}(?:\.\d+)?|[★☆⭐✩*•●○]{1,5})\W*",
    re.IGNORECASE,
)
"""What stands between an exercise's label and its text: grades, states, difficulty."""
MAX_ABOUT_CHARACTERS = 60
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
_STROKES = frozenset(" -–—_.…*")
MIN_OF_EVERY = 0.8
"""Share of the solved exercises that end in a line which is furniture although no unsolved one shows it."""
_WORD = re.compile("[a-z]{3,}")
_MAY_ANSWER = re.compile(
    r"[=$\\^<>≤≥≈∑√π%°]|\b(?:is|are|was|were|be|has|have|equals?|answers?|solutions?|therefore|thus|hence|so|true|false|yes|no|not"
    r"|choose|choice|option|round(?:ed)?|about|approximately|undefined)\b"
)
"""Signs and words of a result."""
_OPENS = re.compile(r"the\s+(?:correct|right)\s+answers?\s+(?:is|are|was)\s*:\s*", re.IGNORECASE)
MAX_PLACEHOLDER_CHARACTERS = 160
_DIFFERS = re.compile(
    r"\d+|\b(?:jan|feb|mar|apr|may|june?|july?|aug|sep|sept|oct|nov|dec)[a-z]{0,6}\b|\b[a-z]\b", re.IGNORECASE
)
_DIGIT = re.compile(r"\d")
_TAG_WORD = re.compile(r"[^\W\d_]{2,}|[★☆⭐✩]+")
_IS_VALUE = re.compile(r"[$\\=<>^√_%]|!\[|\d.*\||\|.*\d")
MIN_REPEATED = 3
MAX_REPEATED_CHARACTERS = 40
_HAS_VALUE = re.compile(r"[\d$\\=]|!\[")
_TELLS = re.compile(
    r"\W*(?:[a-e][.)]\W*)?(?:true|false|yes|no|none|all|undefined|fill|choose|select|match|circle|answers?|proof"
    r"|differentiate|integrate|expand|multiply|divide|add|subtract|round|convert|complete the|identify|use|express"
    r"|estimate|plot|draw|rewrite|reduce|decide|translate|combine|apply|rationali[sz]e|classify|order|arrange|assume"
    r"|approximate|justify|verify|interpret|construct|locate|label|count|measure|check all|mark all|let|given|if"
    r"|leave|include|do not|don['’]t|not)\b",
    re.IGNORECASE,
)
"""How lines begin that come again and again and are part of what is asked or answered."""


def is_furniture(text: str) -> bool:
    """True for a short text that sites put around their content: votes, dates, share links, licences."""
    return len(text) <= MAX_FURNITURE_CHARACTERS and bool(FURNITURE.match(text.lstrip(_SEPARATORS)))


def is_about_problem(text: str) -> bool:
    """True for what a site says about an exercise before its text: points, state, difficulty."""
    return len(text) <= MAX_ABOUT_CHARACTERS and bool(_ABOUT_PROBLEM.fullmatch(text))


def is_placeholder(text: str) -> bool:
    """True for what stands in a solution's place until somebody writes one."""
    if len(text) > MAX_PLACEHOLDER_CHARACTERS:
        return False
    return bool(_PLACEHOLDER.match(text.lstrip(" -–—[(*"))) or (bool(text) and _STROKES.issuperset(text))


def repeated_first_lines(texts: Sequence[str]) -> frozenset[str]:
    """Lines that most of these problems begin with though they ask something after it."""
    pairs = [text.split("\n", 1) for text in texts if "\n" in text]
    lines = tag_lines([first for first, _ in pairs], len(texts))
    asking = sum(bool(ASKS.search(rest) or _DIGIT.search(first)) for first, rest in pairs if first in lines)
    return lines if 2 * asking > sum(first in lines for first, _ in pairs) else frozenset()


def repeated_problem_ends(texts: Sequence[str]) -> frozenset[str]:
    """Lines that most of these problems of several lines, and every third of all, end in though they ask nothing."""
    lines = [text.rpartition("\n")[2] for text in texts if "\n" in text]
    return tag_lines(lines, len(lines)) if MIN_REPEATED * len(lines) >= len(texts) else frozenset()


def tag_lines(lines: Sequence[str], total: int) -> frozenset[str]:
    """Those of the lines that are tags: short, without a value or a verb that asks, each word of theirs in several of
    the lines; none unless most of `total` have one."""
    if len(lines) < MIN_REPEATED:
        return frozenset()
    forms = {line: line_form(line) for line in set(lines) if _may_be_tag(line)}
    words = {line: frozenset(_TAG_WORD.findall(form)) for line, form in forms.items()}
    counts = Counter(word for line in lines for word in words.get(line, ()))
    tags = frozenset(line for line, own in words.items() if own and all(counts[word] > 1 for word in own))
    found = sum(line in tags for line in lines)
    is_most = found >= MIN_REPEATED and 2 * found > total
    return tags if is_most and 2 * len({forms[line] for line in tags}) <= found + 1 else frozenset()


def _may_be_tag(line: str) -> bool:
    return 0 < len(line) <= MAX_REPEATED_CHARACTERS and not (
        line[-1] in ".:?!" or line.startswith("- ") or _IS_VALUE.search(line) or tells(line)
    )


def tells(line: str) -> bool:
    """True for a line that asks or tells what to do, or begins as an answer does."""
    return bool(_TELLS.match(line) or ASKS.search(line))


def line_form(line: str) -> str:
    """A line without what may differ each time that a site writes it: digits, months, single letters, case."""
    return _DIFFERS.sub("#", line).lower() if len(line) <= MAX_FURNITURE_CHARACTERS else ""


def repeated_form(unsolved: Sequence[str], every: Sequence[str]) -> str | None:
    """The form of line in which most exercises end, the unsolved ones among them; None where there is none."""
    if len(every) < MIN_REPEATED:
        return None
    form, count = Counter(every).most_common(1)[0]
    if count < MIN_REPEATED or 2 * count <= len(every) or not re.search("[a-z]{3}", form):
        return None
    if unsolved.count(form) >= 2:
        return form
    solved = len(every) - len(unsolved)
    is_of_every = count - unsolved.count(form) >= MIN_OF_EVERY * solved > MIN_REPEATED
    is_told = len(_WORD.findall(form)) >= 2 or form.endswith("(#)")
    return form if is_of_every and is_told and not _MAY_ANSWER.search(form) else None


def repeated_last_line(texts: Sequence[str]) -> str | None:
    """The line that most of these solutions of several lines end in; None where there is none."""
    lasts = [text.rpartition("\n")[2] for text in texts if "\n" in text]
    return _most_common(lasts, len(lasts))


def _most_common(lines: Sequence[str], total: int) -> str | None:
    if len(lines) < MIN_REPEATED:
        return None
    line, count = Counter(lines).most_common(1)[0]
    is_long = not 0 < len(line) <= MAX_REPEATED_CHARACTERS
    if is_long or count < MIN_REPEATED or 2 * count <= total or _HAS_VALUE.search(line) or _TELLS.match(line):
        return None
    return line
