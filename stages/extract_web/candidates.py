"""Turns exercises into rows of the candidate table, with a confidence and, if the page states it clearly, the answer.

The confidence says how reliable a pair of problem and solution is. It is the precision of the rule that produced
the pair, measured on two books and three collections of documents whose pairs are known (docs/explanation/extraction.md
has the table). Each failed check multiplies it by the check's cost. A rule without a measurement has `UNMEASURED`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stages.algorithms.answers.extraction import extract_answer, is_prose
from stages.extract_web.exercises import Exercise
from stages.extract_web.labels import ANSWER_NOUNS, Part, prefix_label


def candidate_rows(
    page: Mapping[str, str], exercises: Sequence[Exercise], max_answer_characters: int
) -> list[dict[str, Any]]:
    """Returns a row per exercise, in order; `instructions` is not a column of the table, but precedes the problem."""
    return [
        {
            "candidate_id": f"{page['page_id']}#{index}",
            "page_id": page["page_id"],
            "url": page["url"],
            "problem": exercise.problem,
            "solution": exercise.solution,
            # The letter counts before the text: the text of a choice is often too long for a short answer.
            "answer": chosen_letter(exercise.problem, exercise.answer or exercise.solution or "")
            or short_answer(exercise.solution, exercise.answer, max_answer_characters),
            "instructions": exercise.instructions,
            "number": exercise.number,
            "evidence": evidence(exercise),
            "confidence": confidence(exercise),
            "licence": page["licence"],
        }
        for index, exercise in enumerate(exercises)
    ]


MEASURED = {
    "marked": 0.97,
    "quote+quote": 0.97,
    "words+words": 0.97,
    "words+none": 0.97,
    "markup+markup": 0.9,
    "markup+words": 0.9,
    "number+key": 0.9,
    "number+words": 0.9,
    "words+key": 0.9,
    "words+markup": 0.75,
    "none+markup": 0.65,
    "none+words": 0.45,
}
"""Precision by how problem and solution are recognised. The first four are measured on books and documents as they are.
The others are measured on the books' exercises in other layouts. They are at most 0.9, because an invented layout is
not a real page. Boxes of class "answer" also occur in FAQs."""
# Below the recipes' threshold of 0.8: by default no policy is trained on rows of an unmeasured rule.
UNMEASURED = 0.5
# These factors were chosen, not measured: on books and documents only `text_after` and `same_solution` ever fail.
COSTS = {
    "other_section": 0.3,
    "numbers_restart": 0.7,
    "text_after": 0.85,
    "holds_next_label": 0.4,
    "problem_holds_part": 0.5,
    "number_out_of_order": 0.8,
    "same_solution": 0.2,
}
"""Check -> factor of the confidence where it fails."""
MIN_SAME = 3
MIN_SAME_SHARE = 1 / 3
"""Problems with exactly the same solution, and their share of the page's, that make it belong to none of them."""
MIN_HELD_CHARACTERS = 40
"""Characters of a solution, without spaces, that cannot be in the problem by chance; choices are shorter."""
# Pages leave exercises out. Neighbours that are further apart say nothing about the number between them.
MAX_STEP = 4
MAX_LINES = 200
"""Lines of a text that are checked."""


def judged(exercises: Sequence[Exercise]) -> list[Exercise]:
    """Returns the exercises of a page with the doubts that their texts, numbers and neighbours raise."""
    problems: dict[str, set[str]] = {}
    for one in exercises:
        if one.solution:
            problems.setdefault(one.solution, set()).add(one.problem)
    solved = sum(one.solution is not None for one in exercises)
    found = []
    neighbours = [None, *exercises, None]
    for before, one, after in zip(neighbours, exercises, neighbours[2:], strict=False):
        doubts = list(one.doubts)
        if one.solution:
            same = len(problems[one.solution])
            if same >= MIN_SAME and same >= MIN_SAME_SHARE * solved:
                doubts.append("same_solution")
            if after and after.number and _holds(one.solution, [Part.PROBLEM], after.number):
                doubts.append("holds_next_label")
        if _holds(one.problem, [Part.SOLUTION, Part.ANSWER, Part.ASIDE], "") or _holds_solution(one):
            doubts.append("problem_holds_part")
        if before and after and _is_out_of_order(before.number, one.number, after.number):
            doubts.append("number_out_of_order")
        found.append(replace(one, doubts=tuple(doubts)))
    return found


def confidence(exercise: Exercise) -> float:
    """Returns the share of correct pairs among those with this rule and doubts: from 0 to 1, two digits."""
    value = MEASURED.get(exercise.rule, UNMEASURED)
    for doubt in exercise.doubts:
        value *= COSTS[doubt]
    return round(value, 2)


def evidence(exercise: Exercise) -> str:
    """Returns rule, labels as on the page, and failed checks: `words+words: Exercise 3. | Solution; text_after`."""
    labels = " | ".join(" ".join(label.split()) for label in exercise.labels)
    return "; ".join([f"{exercise.rule}: {labels}" if labels.strip(" |") else exercise.rule, *exercise.doubts])


def _holds(text: str, parts: Sequence[Part], number: str) -> bool:
    """True for a text with a line, not the first, that begins with such a label (and number, if one is given)."""
    for line in text.split("\n")[1:MAX_LINES]:
        label = prefix_label(line)
        if label and label.part in parts and (not number or label.number == number):
            return True
    return False


def _holds_solution(exercise: Exercise) -> bool:
    """True where the solution's text is in the problem, and not as one of its choices: the problem is too long then."""
    solution = "".join((exercise.solution or "").split())
    if len(solution) < MIN_HELD_CHARACTERS or solution not in "".join(exercise.problem.split()):
        return False
    return chosen_letter(exercise.problem, exercise.solution or "") is None


def _is_out_of_order(before: str, own: str, after: str) -> bool:
    """True for a number that is not between those of its neighbours, which follow each other."""
    if not (before.isdecimal() and own.isdecimal() and after.isdecimal()):
        return False
    return int(before) < int(after) <= int(before) + MAX_STEP and not int(before) < int(own) < int(after)


_FORMULA = re.compile(r"\$\$?([^$]+)\$\$?")
_DELIMITERS = re.compile(r"\\[()]|\\([\[\]])")
"""Formula delimiters on pages with MathJax."""
_CONCLUDES = re.compile(r"\b(?:so|then|thus|hence|therefore|gives|we get|we obtain|is|are|equals)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n")
_BROKEN_LINE = re.compile(r"\n(?=[a-z])")
"""A page may end a line after a formula: a sentence that continues in lower case is one."""
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
"""Text after a short answer that does not belong to it: a reason, words in parentheses."""
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
"""After a word or a formula; after a number or a letter it may be a factorial."""
_UNSPACED_PROSE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]{5}")
"""Chinese and Japanese have no spaces between words."""
_PARTS = re.compile(
    r"\A\W*(?:\(?a[.)]|a\.).*?\s\(?b[.)]\s|\Aⓐ.*?ⓑ|\A(?-i:[a-h])(?:\.[ivx]{1,4})?:\s", re.DOTALL | re.IGNORECASE
)
"""An exercise with parts has an answer for each."""
# Words that are not units: in "It is 3 more than twice the other" the number is not the answer.
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
"""A sentence that ends in its conclusion: a formula, or a number with its unit."""
_ANOTHER = re.compile(
    rf"(?:\b(?:is|are)\b|=)\s*(?:\$[^$]+\$|{_VALUE})\s*(?:[,;]|\band\b)\s+(?:and\s+)?[^\W\d]", re.IGNORECASE
)
_CLAIMED = re.compile(r"\b(?:claim|hypothesis|evidence)\b", re.IGNORECASE)
"""Words of a test: the value at the end of such a sentence was given."""
_FOLLOWS = re.compile(r"\b(?:so|then|thus|hence|therefore|since|because|as|if|when)\b", re.IGNORECASE)
_IS = re.compile(r"\b(?:is|are)\b", re.IGNORECASE)


def chosen_letter(problem: str, solution: str) -> str | None:
    """The letter of a solution that is one of the problem's choices with its text ("B. Two"); None for others."""
    choice = _CHOICE.fullmatch(solution.strip())
    listed = choice and re.search(rf"^[-\s]*{choice[1]}\s*[.:)]", problem, re.MULTILINE)
    return choice[1] if choice and listed else None


def short_answer(solution: str | None, labelled: str | None, max_characters: int) -> str | None:
    """Returns the answer under the page's answer label, or the one that the solution ends in; None when in doubt.

    The answer of a solution is clear if it is marked (a box, "the answer is"), or if the whole solution is short. It is
    also clear if the last sentence ends in its conclusion ("so the speed is 12 m/s"). All others are in doubt, and so
    are solutions with parts.
    """
    found = (_stated(text, max_characters) for text in (labelled, solution) if text)
    return next(filter(None, found), None)


def _stated(text: str, max_characters: int) -> str | None:
    if _PARTS.match(text):
        return None
    text = _DELIMITERS.sub(lambda found: "$$" if found[1] else "$", text)
    *_, label = [0, *(found.end() for found in _LABEL.finditer(text))]
    # "Approximately 867 meters": the first word is not part of the answer.
    text = _ABOUT.sub("", text[label:], count=1) if len(text) <= max_characters else text[label:]
    found = extract_answer(text)
    if text.rpartition("\n")[2].startswith("- "):
        return None  # the last of several
    # The macro of one book boxes the pivots of its matrices: 55 answers were `1` before this check.
    is_pivot = found.rule == "box" and _IN_MATRIX.search(text)
    stated = found.text or ""
    is_early = found.rule == "marker" and len(text) - text.rfind(stated) - len(stated) > MAX_AFTER
    if is_pivot or is_early:
        answer = None
    elif found.rule == "marker" and is_prose(_FORMULA.sub(" ", stated)):
        # "Answer: The probability of a 2 is 1/6." The label introduces a sentence, which ends in the answer.
        answer = _conclusion(_REASON.sub("", stated)) or _bare(stated)
    elif found.is_marked:
        answer = _bare(stated)
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
    # `is_prose` knows English. Prose in other letters shows by two longer words, or by a run of characters.
    is_foreign_prose = (len(longer) > 1 and not all(map(str.isascii, longer))) or _UNSPACED_PROSE.search(words)
    return not _CONCLUDES.search(text) and not is_prose(words) and not is_foreign_prose


def _conclusion(text: str) -> str | None:
    whole = _BROKEN_LINE.sub(" ", text.strip())
    sentences = [f" {part}" for part in _SENTENCE_END.split(whole) if part.strip()]
    found = _CLOSES.search(sentences[-1]) if sentences else None
    # "We reject the claim that the mean is 30 minutes" ends in a value, and the value is not the answer.
    if not found or _CLAIMED.search(sentences[-1]) or _is_one_of_several(sentences, found):
        return None
    return _bare(found["answer"] or found["equation"])


def _is_one_of_several(sentences: list[str], found: re.Match[str]) -> bool:
    """True where the last of several values was taken: "mean = 25 and deviation = 7", "Domain is A. Range is B." """
    if found["answer"] is None or _FOLLOWS.search(sentences[-1]):
        return False
    *others, last = sentences
    states = [_CLOSES.search(one) and _IS.search(one) for one in sentences]
    goes_on = bool(others) and others[-1].rstrip().endswith((";", ","))
    return goes_on or bool(_ANOTHER.search(last[: found.start("answer")])) or bool(others and all(states))


def _bare(answer: str) -> str:
    """Returns the answer without the dollar signs of a single formula, the final full stop and the left sides of a
    chain of equations."""
    answer = _EXCLAMATION.sub("", answer.strip().rstrip(".;,").strip())
    formula = _FORMULA.fullmatch(answer)
    answer = (formula[1] if formula else answer).strip().rstrip(".;,").strip()
    numbers = _SUM.fullmatch(answer)
    if numbers:
        return numbers[1]
    last = answer.rpartition("=")[2].strip()
    # The last side of a chain of equations is the answer. With a comma, an alignment or an inequality it is several
    # statements, which stay unchanged.
    is_chain = answer.count("=") > 1 and last and not re.search(r"[,;&<>$]|\\\\|\\[lg]eq?(?![a-z])", answer)
    return last if is_chain and last.count("{") == last.count("}") else answer
