"""The short final answer of an exercise, where the page states one without doubt."""

from __future__ import annotations

import re

from stages.algorithms.answers.extraction import extract_answer, is_prose
from stages.extract_web.labels.label_words import ANSWER_NOUNS

_FORMULA = re.compile(r"\$\$?([^$]+)\$\$?")
_DELIMITERS = re.compile(r"\\[()]|\\([\[\]])")
"""Of formulas, as pages that MathJax sets have them."""
_CONCLUDES = re.compile(
    r"\b(?:so|then|thus|hence|therefore|gives|we get|we obtain|is|are|equals)\b", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n")
_BROKEN_LINE = re.compile(r"\n(?=[a-z])")
"""A page may end a line after a formula: a sentence that goes on in small letters is one."""
_SUM = re.compile(r"[-−\d+*/().,\s]*\d[-−\d+*/().,\s]*=\s*([-−+]?\d[\d,]*(?:\.\d+)?)")
"""An equation of numbers only, `9-4=5`: its right side is the answer."""
MAX_AFTER = 20
"""Characters that may follow "the answer is x": a sign, a unit, a closing tag."""
_WORD = re.compile(r"[^\W\d_]{3,}")
_LABEL = re.compile(rf"(?:\A|[.!?;]\s|\n)\W*(?:{ANSWER_NOUNS})\s*[:：]\s*", re.IGNORECASE)
"""The label of an answer within a solution, in other languages than English."""
_REASON = re.compile(
    r"(?<=\S)(?:\s+\((?=[^()]*[^\W\d_]{3}).*\)"
    r"|[,;:]?\s+(?:because|since|т\.\s?к\.|так\s+как|потому|поскольку|weil|denn|da|car|parce|puisque|porque"
    r"|pues|perché|poiché|omdat|want|ponieważ|bo)\s.*|[,，]?\s*因为.*)\Z",
    re.IGNORECASE,
)
"""What follows a short answer and is none: a reason, words in parentheses."""
_CHOICE = re.compile(r"\(?([A-H])\s*[.:)]\s*\S[^\n]*")
_ABOUT = re.compile(r"(?:approximately|about|roughly|around)\s+(?=[$\d])", re.IGNORECASE)
_IN_MATRIX = re.compile(
    r"\\(?:boxed|fbox|framebox)\b(?:(?!\\begin|\\boxed|\\fbox)[^$])*\\end\{(?:[a-zA-Z]?matrix|smallmatrix|array)\}"
)
"""A box around an entry of a matrix: a pivot, not an answer."""
_NO_ANSWER = re.compile(
    r"\W*(?:fine|ok|okay|trivial|obvious|clear|immediate|easy|straightforward|omit(?:ted)?|removed|deleted|skip(?:ped)?"
    r"|unsolved|done|proof|graph|code|implementation|exercise|todo|tbd|n/?a)\W*"
    r"|(?:see|same as|similar to|as (?:above|in|before))\b.*"
    r"|(?:theorem|lemma|exercise|problem|section|figure|equation)\s+[\d(].*",
    re.IGNORECASE,
)
"""A remark or a pointer in place of a solution."""
_EXCLAMATION = re.compile(r"(?:(?<=[^\W\d_]{2})|(?<=\$))!+\Z")
"""Behind a word or a formula; behind a number or a letter it may be a factorial."""
_UNSPACED_PROSE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]{5}")
"""Chinese and Japanese have no spaces between words."""
_PARTS = re.compile(
    r"\A\W*(?:\(?a[.)]|a\.).*?\s\(?b[.)]\s|\Aⓐ.*?ⓑ|\A(?-i:[a-h])(?:\.[ivx]{1,4})?:\s",
    re.DOTALL | re.IGNORECASE,
)
"""An exercise of parts has an answer for each."""
_UNIT = (
    r"(?!(?:more|less|fewer|greater|larger|smaller|times|than|of|and|or|if|when|for|in|at|to|the|an?|as|by|with|from|on"
    r"|is|are|was|has|have|not|but|so|because|since|which|that|where|until|after|before|too|also)\b)"
    r"[A-Za-z°µΩ%][\w°µΩ%²³^{}/·.-]*"
)
_VALUE = rf"(?:[$€£]\s?)?[-+−]?\d[\d,]*(?:\.\d+)?(?:/\d+)?(?:\s?%)?(?:\s?{_UNIT}){{0,3}}"
_STATED = rf"(?P<answer>\$[^$]+\$(?:\s?%|(?:\s{_UNIT}){{1,3}})?|{_VALUE})"
_CLOSES = re.compile(
    rf"(?:\b(?:is|are|was|equals|gives|get|obtain|find|makes)\b(?:\s+(?:then|just|simply|only|exactly|equal\s+to))?\s*[:,]?"
    rf"|[^<>≤≥!]=)\s*{_STATED}\s*[.!]?\Z"
    rf"|\b(?:so|then|thus|hence|therefore)\b,?\s*(?P<equation>\$[^$]*[=<>≤≥\\][^$]*\$)\s*[.!]?\Z",
    re.IGNORECASE,
)
"""A sentence that ends in what it concludes: a formula, or a number with its unit."""
_ANOTHER = re.compile(
    rf"(?:\b(?:is|are)\b|=)\s*(?:\$[^$]+\$|{_VALUE})\s*(?:[,;]|\band\b)\s+(?:and\s+)?[^\W\d]", re.IGNORECASE
)
_CLAIMED = re.compile(r"\b(?:claim|hypothesis|evidence)\b", re.IGNORECASE)
"""Of a test: the value that such a sentence ends in was given."""
_FOLLOWS = re.compile(r"\b(?:so|then|thus|hence|therefore|since|because|as|if|when)\b", re.IGNORECASE)
_IS = re.compile(r"\b(?:is|are)\b", re.IGNORECASE)


def chosen_letter(problem: str, solution: str) -> str | None:
    """The letter of a solution that is one of the problem's choices with its text ("B. Two"); None for others."""
    choice = _CHOICE.fullmatch(solution.strip())
    listed = choice and re.search(rf"^[-\s]*{choice[1]}\s*[.:)]", problem, re.MULTILINE)
    return choice[1] if choice and listed else None


def short_answer(solution: str | None, labelled: str | None, max_characters: int) -> str | None:
    """The answer under the page's own answer label, or the one that the solution ends in; None when in doubt.

    A solution is in doubt when it is neither marked (a box, "the answer is"), nor short as a whole, nor closed by a
    sentence that ends in what it concludes ("so the speed is 12 m/s"); and where it has parts.
    """
    if labelled:
        answer = _stated(labelled, max_characters)
        if answer:
            return answer
    return _stated(solution, max_characters) if solution else None


def _stated(text: str, max_characters: int) -> str | None:
    if _PARTS.match(text):
        return None
    text = _DELIMITERS.sub(lambda found: "$$" if found[1] else "$", text)
    *_, label = [0, *(found.end() for found in _LABEL.finditer(text))]
    text = _ABOUT.sub("", text[label:], count=1) if len(text) <= max_characters else text[label:]
    found = extract_answer(text)
    if text.rpartition("\n")[2].startswith("- "):
        return None  # the last of several
    is_pivot = found.rule == "box" and _IN_MATRIX.search(text)
    if is_pivot or (found.rule == "marker" and not _ends_in(text, found.text or "")):
        answer = None
    elif found.rule == "marker" and is_prose(_FORMULA.sub(" ", found.text or "")):
        answer = _conclusion(_REASON.sub("", found.text or "")) or _bare(found.text or "")
    elif found.is_marked:
        answer = _bare(found.text or "")
    elif _is_answer_itself(text, max_characters):
        answer = _bare(_REASON.sub("", text.strip().rstrip(".")))
    else:
        answer = _conclusion(text)
    return answer if answer and len(answer) <= max_characters and "![" not in answer else None


def _is_answer_itself(text: str, max_characters: int) -> bool:
    """True for one short line that neither is a sentence nor draws a conclusion."""
    if len(text) > max_characters or "\n" in text.strip() or _NO_ANSWER.fullmatch(text.strip()):
        return False
    text = _REASON.sub("", text.strip().rstrip("."))
    words = _FORMULA.sub(" ", text)
    longer = _WORD.findall(words)
    is_foreign_prose = (len(longer) > 1 and not all(map(str.isascii, longer))) or _UNSPACED_PROSE.search(
        words
    )
    return not _CONCLUDES.search(text) and not is_prose(words) and not is_foreign_prose


def _ends_in(text: str, answer: str) -> bool:
    return len(text) - text.rfind(answer) - len(answer) <= MAX_AFTER


def _conclusion(text: str) -> str | None:
    whole = _BROKEN_LINE.sub(" ", text.strip())
    sentences = [f" {part}" for part in _SENTENCE_END.split(whole) if part.strip()]
    found = _CLOSES.search(sentences[-1]) if sentences else None
    if not found or _CLAIMED.search(sentences[-1]) or _is_one_of_several(sentences, found):
        return None
    return _bare(found["answer"] or found["equation"])


def _is_one_of_several(sentences: list[str], found: re.Match[str]) -> bool:
    """True where the last of several values was found: "mean = 25 and deviation = 7", "Domain is A. Range is B." """
    if found["answer"] is None or _FOLLOWS.search(sentences[-1]):
        return False
    *others, last = sentences
    states = [_CLOSES.search(one) and _IS.search(one) for one in sentences]
    goes_on = bool(others) and others[-1].rstrip().endswith((";", ","))
    return goes_on or bool(_ANOTHER.search(last[: found.start("answer")])) or bool(others and all(states))


def _bare(answer: str) -> str:
    """The answer without the dollar signs of a single formula, the sentence's full stop and the left sides of a chain
    of equations."""
    answer = _EXCLAMATION.sub("", answer.strip().rstrip(".;,").strip())
    formula = _FORMULA.fullmatch(answer)
    answer = (formula[1] if formula else answer).strip().rstrip(".;,").strip()
    numbers = _SUM.fullmatch(answer)
    if numbers:
        return numbers[1]
    last = answer.rpartition("=")[2].strip()
    is_chain = answer.count("=") > 1 and last and not re.search(r"[,;&<>$]|\\\\|\\[lg]eq?(?![a-z])", answer)
    return last if is_chain and last.count("{") == last.count("}") else answer
