"""Writes two answers as math-verify wants to read them.

math-verify looks for mathematics between delimiters and falls back to picking numbers out of text. A bare formula
therefore gets delimiters, so that it is read as a whole or not at all; only a sentence is left to be searched.
"""

from __future__ import annotations

import re

from stages.algorithms.answers.equivalence import without_name
from stages.algorithms.answers.extraction import Extraction, is_prose
from stages.algorithms.answers.normalisation import clean

_FORMULA = re.compile(r"\$[^$]+\$|\$\$[^$]+\$\$|\\\([^$]+?\\\)|\\\[[^$]+?\\\]")
_BARE_PERCENT = re.compile(r"(?<!\\)%")
"""In LaTeX it starts a comment; in an answer it is a percent sign."""


def math_verify_texts(gold: Extraction, found: Extraction) -> tuple[str, str]:
    """The gold answer and the answer found, each as `$formula$` or as the sentence that holds it.

    Of two formulas a common `x =` is dropped: math-verify cannot read every name. Both must have a text.
    """
    texts = [gold.text or "", found.text or ""]
    are_sentences = [is_sentence(gold), is_sentence(found)]
    if not any(are_sentences):
        cleaned = clean(texts[0]), clean(texts[1])
        values = without_name(*cleaned)
        texts = [
            value if value != whole else text
            for value, whole, text in zip(values, cleaned, texts, strict=True)
        ]
    gold_text, text = [
        (side.context or text) if sentence else "$" + " ".join(text.replace("$", " ").split()) + "$"
        for side, sentence, text in zip((gold, found), are_sentences, texts, strict=True)
    ]
    return _BARE_PERCENT.sub(r"\\%", gold_text), _BARE_PERCENT.sub(r"\\%", text)


def is_sentence(found: Extraction) -> bool:
    """True for text around formulas. A lone `$` delimits nothing: a number would be picked out of the debris."""
    text = found.text or ""
    if found.rule.startswith("box"):
        return False
    has_formula = _FORMULA.search(text) is not None and _FORMULA.fullmatch(text) is None
    return has_formula or (is_prose(text) and text.count("$") % 2 == 0)
