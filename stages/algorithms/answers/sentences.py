r"""Picks the answer out of a sentence: `Therefore $x \ge 5$ is the solution`, `Jane started 3 hours ago`.

The last formula between delimiters or number in the text counts. Candidates with only a comma, `and` or `or` between
them are one answer, a list: `5 or 7` does not answer 5. One after `not` is none. A bare name (`the largest $n$ is`)
counts only where there is nothing else. Inline formulas end with their line, as in Markdown.
"""

from __future__ import annotations

import re

from stages.algorithms.answers.extraction import is_prose
from stages.algorithms.answers.latex_parser import parse_answer
from stages.algorithms.answers.latex_tokens import UnreadableError
from stages.algorithms.answers.quantities import is_unit

_MAX_CHARACTERS = 1_000
_MAX_CANDIDATES = 40
_CANDIDATE = re.compile(
    r"(?<!\\)\$(?P<money>[0-9]+(?:[.,][0-9]+)*)(?=[.,;]?\s+[a-zA-Z]{2}|[.,;]?\s*\Z)"
    r"|\$\$(?P<display>[^$]{1,500})\$\$"
    r"|\\\[(?P<bracket>(?:(?!\\\]).){1,500})\\\]"
    r"|(?<![\\$])\$(?P<inline>(?:[^$\n\\]|\\.){1,500})\$"
    r"|\\\((?P<paren>(?:(?!\\\))[^\n]){1,500})\\\)"
    r"|(?<![\\$])(?P<broken>\$[^$]{1,500}\$|\\\((?:(?!\\\)).){1,500}\\\))"
    r"|(?<![A-Za-z0-9_.^\\{(/])(?P<number>[-−]?(?:\\?[$€£¥] ?)?[0-9]+(?:[,.:/][0-9]+)*(?: ?\\?%| ?[€£¥]"
    r"| ?[AaPp]\.?[Mm](?![A-Za-z])"
    r"|(?P<unit>(?:mm|cm|km|m|ft|in|kg|g)(?![A-Za-z]))(?P<power>²|³|\^[23])?)?)(?![0-9A-Za-z_^])",
    re.DOTALL,
)
_LABEL = re.compile(r"\s*[^\W\d_]{3,20} ?: ")
_LIST_GAP = re.compile(r"\s*(?:,|,?\s*\b(?:and|or)\b)\s*")
_CODE = re.compile(r"__|[A-Za-z]\(\)|[a-z]\.[a-z]+\(|[a-z]{4,}\(['\"]")
_AMOUNT_SIGN = re.compile(r"\$(?=[0-9])")
_UNIT_WORD = re.compile(r" (?:(?:square|cubic) )?([A-Za-z]{2,12})(?![A-Za-z])")
_NEGATION = re.compile(r"(?:\bnot|n't|\bno)\s*\Z")
_DENIAL = re.compile(
    r"\b(?:not|isn't|wrong|incorrect|false|invalid|impossible|never)\b|\\(?:neg|lnot)(?![a-z])"
)
_BARE_NAME = re.compile(r"\s*(?:[A-Za-z]|[A-Z]{2,8}|\\?[a-z]+_?\{?[0-9A-Za-z]?\}?|[a-zA-Z]\([a-z]\))\s*")


def is_labelled(text: str) -> bool:
    """True for a value after one word and a colon: `Total : 2,74`."""
    return _LABEL.match(text) is not None


def is_denied(text: str) -> bool:
    r"""True for a number with a word that takes it back: `4 \text{ is wrong}`."""
    return _DENIAL.search(text) is not None and any(map(str.isdigit, text))


def is_about_money(text: str) -> bool:
    """True for prose in which every dollar sign stands before an amount, and so delimits nothing."""
    return is_prose(text) and "$" in text and "$" not in _AMOUNT_SIGN.sub("", text)


def pick_answer(sentence: str) -> str | None:
    """The answer as written in a sentence; None where none can be read, empty where none may be: the last formula
    goes over several lines, braces are left open, or the text is code."""
    text = sentence[-_MAX_CHARACTERS:]
    if _CODE.search(text) or text.count("{") != text.count("}") or not "".join(text.split()).isprintable():
        return ""
    matches = list(_CANDIDATE.finditer(text))[-_MAX_CANDIDATES:]
    if matches and matches[-1].lastgroup == "broken":
        return ""
    readable = [match for match in matches if _is_answer(text, match)]
    if not readable:
        return "" if matches and all(_is_denied(text, match) for match in matches) else None
    values = [match for match in readable if not _BARE_NAME.fullmatch(_content(match))] or readable
    run = [values[-1]]
    for earlier in reversed(values[:-1]):
        if not _LIST_GAP.fullmatch(text[earlier.end() : run[0].start()]):
            break
        run.insert(0, earlier)
    return ", ".join(_content(match).strip() for match in run) + _unit_after(text[run[-1].end() :], run[-1])


def _content(match: re.Match[str]) -> str:
    """A candidate as an answer; letters that stick to a number in prose are a unit, not variables."""
    if match["unit"]:
        number = match["number"][: match.start("unit") - match.start()]
        return rf"{number}\text{{{match['unit']}}}{match['power'] or ''}"
    return match.group(match.lastgroup or 0)


def _unit_after(rest: str, match: re.Match[str]) -> str:
    """A known unit that stands behind a number in prose, so that 5 hours are not taken for 5 minutes."""
    found = _UNIT_WORD.match(rest) if match.lastgroup == "number" and not match["unit"] else None
    return rf"\text{{ {found[0].strip()}}}" if found is not None and is_unit(found[1]) else ""


def _is_denied(text: str, match: re.Match[str]) -> bool:
    return _NEGATION.search(text[max(0, match.start() - 10) : match.start()]) is not None


def _is_answer(text: str, match: re.Match[str]) -> bool:
    if _is_denied(text, match):
        return False
    if match.lastgroup in ("number", "money"):
        return True
    if match.lastgroup == "broken":
        return False
    try:
        parse_answer(_content(match).replace(r"\$", " "))
    except (UnreadableError, RecursionError):
        return False
    return True
