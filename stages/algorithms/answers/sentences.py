r"""Picks the answer out of a sentence: `Therefore $x \ge 5$ is the solution`, `The area is 3 cm`.

After a marker a sentence must state the answer and nothing else (`value_after_marker`): "3 more than 12", "less than
42" and "see equation 42" give no answer. In a text without a marker, which earns no reward, the last formula or number
counts (`pick_answer`).

Candidates with only a comma, `and` or `or` between them are one answer, a list: `5 or 7` does not answer 5. A
candidate after `not` is not an answer. A bare name (`the largest $n$ is`) counts only if there is no other candidate.
Inline formulas end with their line, as in Markdown.

Read `value_after_marker` first: a reward may depend on it. `_leads` and `_trails` judge the words before and after.
"""

from __future__ import annotations

import re

from stages.algorithms.answers.extraction import OTHER_SCRIPT, Extraction, is_prose
from stages.algorithms.answers.latex import UnreadableError
from stages.algorithms.answers.latex_parser import parse_answer
from stages.algorithms.answers.quantities import OPERATIVE_WORD, is_unit

# Bounds for hostile text: a sentence that names its answer is shorter.
_MAX_CHARACTERS = 1_000
_MAX_CANDIDATES = 40
_CANDIDATE = re.compile(
    # The order matters. Money first: otherwise the signs in `she makes $18 every day, or $20` would delimit a formula.
    r"(?<!\\)\$(?P<money>[0-9]+(?:[.,][0-9]+)*)(?=[.,;]?\s+[a-zA-Z]{2}|[.,;]?\s*\Z)"
    r"|\$\$(?P<display>[^$]{1,500})\$\$"
    r"|\\\[(?P<bracket>(?:(?!\\\]).){1,500})\\\]"
    r"|(?<![\\$])\$(?P<inline>(?:[^$\n\\]|\\.){1,500})\$"
    r"|\\\((?P<paren>(?:(?!\\\))[^\n]){1,500})\\\)"
    # A formula over several lines, after the readable kinds: it is listed only so that no answer is picked from inside
    # it.
    r"|(?<![\\$])(?P<broken>\$[^$]{1,500}\$|\\\((?:(?!\\\)).){1,500}\\\))"
    # A number in prose, with its currency, percent sign, half of the day or a unit attached to it. Not a part of a
    # name, a power or a decimal.
    r"|(?<![A-Za-z0-9_.^\\{(/])(?P<number>[-−]?(?:\\?[$€£¥] ?)?[0-9]+(?:[,.:/][0-9]+)*(?: ?\\?%| ?[€£¥]"
    r"| ?[AaPp]\.?[Mm](?![A-Za-z])"
    r"|(?P<unit>(?:mm|cm|km|m|ft|in|kg|g)(?![A-Za-z]))(?P<power>²|³|\^[23])?)?)(?![0-9A-Za-z_^…])",
    re.DOTALL,
)
_LABEL = re.compile(r"\s*[^\W\d_]{3,20} ?: ")
_LIST_GAP = re.compile(r"\s*(?:,|,?\s*\b(?:and|or)\b)\s*")
# `the number is 9; import os; os.fork()`: a number in code is not an answer.
_CODE = re.compile(r"__|[A-Za-z]\(\)|[a-z]\.[a-z]+\(|[a-z]{4,}\(['\"]")
_AMOUNT_SIGN = re.compile(r"\$(?=[0-9])")
_UNIT_WORD = re.compile(r" (?:(?:square|cubic) )?([A-Za-z]{2,12})(?![A-Za-z])")
# Directly before a candidate, in the most common languages.
_NEGATION = re.compile(r"(?:\b(?:not?|nicht|pas|не)|n't|不是?|没有?|ليس)\s*\Z")
_OPERATIVE_ABROAD = re.compile(
    r"[不没非约倍万亿百或余几]|至[少多]|[大小]于|超过|以[上下]|左右|分之|一半|千(?![克米卡瓦])|ない|아니|이[상하]|नहीं|ليس|أو|أكثر|أقل"
    r"|\b(?:nicht|oder|mehr|weniger|mindestens|höchstens|über|unter|etwa|ungefähr|zum|zur|eller|mal|ou|pas|au|fois|moins|environ|veces|al|più|volte|vezes|meer|minder|menos|más|mais"
    r"|aproximadamente|não|non|niet|inte|ikke|nie|değil|không|bukan|не|или|больше|меньше|около)\b"
)
"""The same in other languages, their most common words."""
_MEASURE_ABROAD = re.compile(
    r"(?:[个個位名人元块円원角岁歲天日周月年秒点次本支枝只隻头匹条棵朵颗粒张件箱包袋瓶杯碗盒辆台层页頁道题种组对双份개명]"
    r"|小[时時]|分[钟鐘]|美元|(?:平方|立方)?(?:毫|厘|分|千|英)?[米里尺寸克升]|公[斤里]|吨|度)[\u4e00-\u9fff]{0,4}|кг|г|см|м|км|л|руб\w*"
)
"""Counted or measured things after a number in another script; any other word there may change the number."""
_DENIAL = re.compile(r"\b(?:not|isn't|wrong|incorrect|false|invalid|impossible|never)\b|\\(?:neg|lnot)(?![a-z])")
# x, AB, \theta_1, f(x): names that a sentence asks about, not answers.
_BARE_NAME = re.compile(r"\s*(?:[A-Za-z]|[A-Z]{2,8}|\\?[a-z]+_?\{?[0-9A-Za-z]?\}?|[a-zA-Z]\([a-z]\))\s*")
_FORMULA = re.compile(r"\$[^$]+\$|\$\$[^$]+\$\$|\\\([^$]+?\\\)|\\\[[^$]+?\\\]")
_MOST_WORDS_OF_A_CHOICE = 12
# fmt: off
_STATING = [
    "the", "a", "an", "our", "my", "this", "final", "correct", "answer", "value", "number", "result", "solution", "set",
    "option", "choice", "is", "are", "equals", "equal", "to", "it", "that", "we", "get", "have", "obtain", "find", "so",
    "gives", "therefore", "thus", "hence", "then", "exactly", "just", "simply", "clearly", "indeed", "either", "both",
    "and", "or", "there", "which", "finally", "total", "in", "of", "units", "ways",
]
# fmt: on
_LEADING = re.compile(rf"(?:(?:{'|'.join(sorted(_STATING))}|[=:,*\"'])(?![a-z])\s*)*")
"""Words that may stand between a marker and the answer, in any order."""
# `So the largest $n$ is`: up to 200 characters without a comma. `_operates` searches them for words that change a
# value.
_SUBJECT = re.compile(
    r"(?:(?:so|therefore|thus|hence|that|then),? )*(?:(?:the|its|this) ([^,;:?!]{1,200}) (?:is|are|equals|=)"
    # `le résultat est`, `die gesuchte Zahl ist`, `总数是`: a subject in another language.
    r"|([^,;:?!，。：]{1,200}?)(?: (?:est|sont|es|son|ist|sind|beträgt|é|è|são|sono|är|jest|это|равно?а?)|[是为]))\Z"
)
# `is equal to`, `is exactly`: removed, so that the sentence ends in its verb.
_COPULA = re.compile(r" (?:equal to|exactly|simply|then|therefore|thus)\Z")
# The text after these gives a reason or starts another sentence: `42, because there are two cases`.
_REASON = re.compile(r"[,;]? ?(?:because|since|as|which|achieved|obtained|so|thus|hence)\b|[.] ")
_BECAUSE = re.compile(r",? (?:because|since|as|due to)\b")
# `42 is the final answer`, `3 hours ago`, and the Hindi verb.
_CLOSING_WORDS = frozenset(
    ["is", "are", "the", "our", "final", "answer", "solution", "result", "correct", "ago", "है", "हैं"]
)
# `cubic meters of water per hour`; more words are a separate statement.
_MOST_UNIT_WORDS = 5
_CHOICE = re.compile(
    r"\(([A-J])\)"
    r"|(?:(?:\A|\b(?i:is|be|it's|its|option|choice|letter|answer|choose|pick|select|to|est|es|ist|lautet)\b|[:=]|[^\x00-\x7f])"
    r"[\s*\"'(:]{0,4})(?:([B-HJ])(?=[.,;:!?*\"'\)]{0,4}(?:\Z|(?<=[.,;:!?*\"'\)])\s)"
    r"|\s(?:is|are|because|since|as|which|due|so|for)\b|[^\x00-\x7f])|(A)(?=[.\s*]*\Z))"
)
"""A letter in brackets, or one that ends its clause after words that lead to it: not that of B12, B-tree, D major."""
# A text command directly before a value.
_WORDING = re.compile(r"\\(?:text|textbf|textrm|mathrm|mbox) ?\{([^{}]{1,60})\}[\s~]*(?=[-0-9\\(\[$a-zA-Z]|\.[0-9])")
_SHORT_LABEL = re.compile(r"[A-Za-z]{3,20}(?: [a-z]{2,20}){0,2} ?[:=]")


def without_wording(answer: str) -> str:
    r"""Returns a delimited answer without the words that lead to it: 5 of `\text{Total: }5`."""
    wording = _WORDING.match(answer)
    if wording is None:
        return answer
    words = " ".join(wording[1].split())
    is_label = _SHORT_LABEL.fullmatch(words) is not None and not _operates(words.lower())
    is_lead = _LEADING.fullmatch(words.lower()) is not None
    return answer[wording.end() :] if len(words) > 2 and (is_label or is_lead) else answer


def is_sentence(answer: Extraction) -> bool:
    """True for text around formulas. A lone `$` delimits nothing: a number would be picked out of the fragments."""
    text = answer.text or ""
    # A box is never searched: its whole content is the answer, or there is none.
    if answer.is_delimited:
        return False
    has_formula = _FORMULA.search(text) is not None and _FORMULA.fullmatch(text) is None
    return has_formula or (is_prose(text) and text.count("$") % 2 == 0)


def is_labelled(text: str) -> bool:
    """True for a value after one word and a colon: `Total : 2,74`."""
    return _LABEL.match(text) is not None


def is_denied(text: str) -> bool:
    r"""True for a number with a word that revokes it: `4 \text{ is wrong}`."""
    return _DENIAL.search(text) is not None and any(map(str.isdigit, text))


def is_about_money(text: str) -> bool:
    """True for prose in which every dollar sign precedes an amount, and so delimits nothing."""
    return is_prose(text) and "$" in text and "$" not in _AMOUNT_SIGN.sub("", text)


def pick_answer(sentence: str) -> str | None:
    """Returns the answer as written in a sentence. None where no answer can be read. Empty where none may be read: the
    last formula spans several lines, braces are left open, or the text is code."""
    # Only the end, where a sentence without a marker states its answer.
    text = sentence[-_MAX_CHARACTERS:]
    if _is_unreadable(text):
        return ""
    matches = list(_CANDIDATE.finditer(text))[-_MAX_CANDIDATES:]
    if matches and matches[-1].lastgroup == "broken":
        return ""
    # A formula that the grammar cannot read is skipped, or its fragments would be compared.
    readable = [match for match in matches if _is_answer(text, match)]
    if not readable:
        # `it is not 7` says that there is no answer; a text without candidates says nothing.
        return "" if matches and all(_is_denied(text, match) for match in matches) else None
    # `The largest $n$ is 34`: n is a candidate too, but a bare name.
    values = [match for match in readable if not _BARE_NAME.fullmatch(_content(match))] or readable
    run = [values[-1]]
    for earlier in reversed(values[:-1]):
        if not _LIST_GAP.fullmatch(text[earlier.end() : run[0].start()]):
            break
        run.insert(0, earlier)
    return ", ".join(_content(match).strip() for match in run) + _unit_after(text[run[-1].end() :], run[-1])


def value_after_marker(sentence: str) -> str | None:
    """Returns the answer in a sentence that states it; None where words around a value may change or deny it.

    Only filler words or the subject of the statement (`The largest $n$ is`) may stand before the value. The value may
    also be a measure in a separate sentence (`Jane began 3 hours ago`). The counted thing or a reason may follow.
    """
    # Only the beginning, since the marker precedes it.
    text = sentence[:_MAX_CHARACTERS].strip(" \"'*\\.!")
    if _is_unreadable(text):
        return None
    runs: list[list[re.Match[str]]] = []
    for match in list(_CANDIDATE.finditer(text))[:_MAX_CANDIDATES]:
        if match.lastgroup == "broken":
            return None
        if runs and _LIST_GAP.fullmatch(text[runs[-1][-1].end() : match.start()]):
            runs[-1].append(match)
        # A name neither ends nor begins a run: `$n$ is 34` has one run, 34.
        elif not _BARE_NAME.fullmatch(_content(match)):
            runs.append([match])
    # Only the first run counts: `42, not 43` must not be read as 43.
    if not runs or not all(_is_answer(text, match) for match in runs[0]):
        return None
    head, tail = text[: runs[0][0].start()].strip(), text[runs[0][-1].end() :]
    unit = _unit_after(tail, runs[0][-1])
    # `Jane began 3 hours ago`: a separate sentence, with a capital, one clause and a unit. Two capitals in a row are
    # a name.
    is_measure = bool(unit or runs[0][-1]["unit"]) and head[:1].isupper() and not re.search(r"[,;:?]|[A-Z]{2}", head)
    if not _leads(head.lower()) and not (is_measure and not _operates(head.lower())):
        return None
    return ", ".join(_content(match).strip() for match in runs[0]) + unit if _trails(tail) else None


def pick_choice(sentence: str) -> str | None:
    """Returns the letter that a sentence names without a second one: `I think it's (D)`; None where it is revoked."""
    text = _BECAUSE.split(sentence.strip(), maxsplit=1)[0]
    letters = {"".join(filter(None, match.groups())) for match in _CHOICE.finditer(text)}
    words = text.split()
    # With more words than a choice needs, the text may be about another letter: `A` begins sentences.
    if len(letters) != 1 or len(words) > _MOST_WORDS_OF_A_CHOICE or _operates(text.lower()):
        return None
    return letters.pop()


def _leads(head: str) -> bool:
    # Only filler words.
    if _LEADING.fullmatch(head):
        return True
    # Otherwise a subject without an operation and without digits, as in `the largest $n$ is`.
    subject = _SUBJECT.match(_COPULA.sub("", head))
    text = "" if subject is None else subject[1] or subject[2]
    return subject is not None and not _operates(text) and not any(map(str.isdigit, text))


def _trails(tail: str) -> bool:
    # `42 or more`, `42 might be right`, and the Chinese words of `half of 42` and `more than 42`.
    if _operates(tail.lower()) or re.match(r"\s*(?:(?:might|could)\b|[的多])", tail):
        return False
    if _REASON.match(tail):
        return True
    rest = tail.strip(" .,!$。，")
    if not rest.isascii() and OTHER_SCRIPT.search(rest) is not None:
        return _MEASURE_ABROAD.fullmatch(rest) is not None
    # After that only closing words, or a few words that say what is counted.
    words = tail.strip(" .!\"'").split()
    if all(word.lower() in _CLOSING_WORDS for word in words):
        return True
    return len(words) <= _MOST_UNIT_WORDS and not re.search(r"[0-9=<>?:;,$]", tail)


def _operates(words: str) -> bool:
    """True where a word compares, computes, conditions, denies or refers: then a number beside it is not the answer."""
    is_operative = OPERATIVE_WORD.search(words) or re.search(r"n't|squared|cubed", words)
    return is_operative is not None or _OPERATIVE_ABROAD.search(words) is not None


def _is_unreadable(text: str) -> bool:
    return bool(_CODE.search(text) or text.count("{") != text.count("}") or not "".join(text.split()).isprintable())


def _content(match: re.Match[str]) -> str:
    """Returns a candidate as an answer; letters attached to a number in prose are a unit, not variables."""
    if match["unit"]:
        # 1,000.99m² is 1,000.99 square metres: as math, m would be a variable.
        number = match["number"][: match.start("unit") - match.start()]
        return rf"{number}\text{{{match['unit']}}}{match['power'] or ''}"
    return match.group(match.lastgroup or 0)


def _unit_after(rest: str, match: re.Match[str]) -> str:
    """Returns a known unit that follows a number in prose, so that 5 hours are not taken for 5 minutes."""
    unit = _UNIT_WORD.match(rest) if match.lastgroup == "number" and not match["unit"] else None
    return rf"\text{{ {unit[0].strip()}}}" if unit is not None and is_unit(unit[1]) else ""


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
        # An escaped dollar sign inside a formula is money, for which the tree has no node.
        parse_answer(_content(match).replace(r"\$", " "))
    except (UnreadableError, RecursionError):
        return False
    return True
