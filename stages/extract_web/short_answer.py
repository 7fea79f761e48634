"""The short final answer of an exercise, where the page states one without doubt."""

from __future__ import annotations

import re

from stages.algorithms.answers.extraction import extract_answer, is_prose

_FORMULA = re.compile(r"\$([^$]+)\$")
_CONCLUDES = re.compile(
    r"\b(?:so|thus|hence|therefore|gives|we get|we obtain|is|are|equals)\b", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n")
_SUM = re.compile(r"[-\d+*/().,\s]*\d[-\d+*/().,\s]*=\s*([-+]?\d[\d,]*(?:\.\d+)?)")
"""An equation of numbers only, `9-4=5`: its right side is the answer."""
_VALUE = re.compile(r"(?<![\w.^_])[-+−]?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?(?![\w^])")


def short_answer(solution: str | None, labelled: str | None, max_characters: int) -> str | None:
    """The answer under the page's own answer label, or the one that the solution ends in; None when in doubt.

    A solution is in doubt when it is neither marked (a box, "the answer is"), nor short as a whole, nor closed by a
    sentence that concludes ("so x=5") and holds exactly one formula or number.
    """
    if labelled:
        answer = _stated(labelled, max_characters)
        if answer:
            return answer
    return _stated(solution, max_characters) if solution else None


def _stated(text: str, max_characters: int) -> str | None:
    found = extract_answer(text)
    if found.is_marked:
        answer = _bare(found.text or "")
    elif _is_answer_itself(text, max_characters):
        answer = _bare(text)
    else:
        answer = _conclusion(text)
    return answer if answer and len(answer) <= max_characters and "![" not in answer else None


def _is_answer_itself(text: str, max_characters: int) -> bool:
    """True for one short line that neither is a sentence nor draws a conclusion."""
    if len(text) > max_characters or "\n" in text.strip():
        return False
    return not _CONCLUDES.search(text) and not is_prose(_FORMULA.sub(" ", text))


def _conclusion(text: str) -> str | None:
    sentence = next((part for part in reversed(_SENTENCE_END.split(text.strip())) if part.strip()), "")
    if not _CONCLUDES.search(sentence):
        return None
    formulas = _FORMULA.findall(sentence)
    values = _VALUE.findall(_FORMULA.sub(" ", sentence))
    stated = formulas + values
    return _bare(stated[0]) if len(stated) == 1 else None


def _bare(answer: str) -> str:
    """The answer without the dollar signs of a single formula, the sentence's full stop and the left side of a sum."""
    answer = answer.strip().rstrip(".;,").strip()
    formula = _FORMULA.fullmatch(answer)
    answer = (formula[1] if formula else answer).strip().rstrip(".;,").strip()
    numbers = _SUM.fullmatch(answer)
    return numbers[1] if numbers else answer
