r"""Solutions as responses: the text that a policy shall learn to write, ending in `The answer is \boxed{..}.`"""

from __future__ import annotations

import re

from stages.algorithms.answers.extraction import extract_answer

_CALCULATOR = re.compile(r"<<[^<>\n]*>>")
_FINAL_LINE = re.compile(r"\n?[ \t]*####[^\n]*\s*\Z")
_ONLY_ANSWER = re.compile(r"(?:the\s+)?(?:final\s+)?(?:answer|solution)?\s*(?:is|:)?\s*", re.IGNORECASE)
BOX = "\\boxed{"


def as_response(solution: str, answer: str) -> str:
    r"""The solution with its final answer in a box, exactly once at the end when it had none.

    GSM8K's calculator annotations (`<<48/2=24>>`) and `#### 24` line go. A solution that is nothing but the answer
    becomes the answer's sentence alone. An answer that holds a box already is not boxed twice.
    """
    text = _FINAL_LINE.sub("", _CALCULATOR.sub("", solution)).strip()
    if extract_answer(text).rule in ("box", "boxes"):
        return text
    closing = f"The answer is {BOX}{_bare(answer)}}}."
    if _same(_ONLY_ANSWER.sub("", text, count=1), answer) or _same(text, answer):
        return closing
    return f"{text}\n{closing}" if text else closing


def _bare(answer: str) -> str:
    return (
        answer.strip().removeprefix("$").removesuffix("$").strip()
        if answer.count("$") == 2
        else answer.strip()
    )


def _same(text: str, answer: str) -> bool:
    return re.sub(r"[\s$.]", "", text) == re.sub(r"[\s$.]", "", answer)
