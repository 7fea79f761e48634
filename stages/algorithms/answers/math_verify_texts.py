"""Writes two answers as math-verify wants to read them: as formulas, which it reads as a whole or not at all.

Without delimiters it falls back to picking numbers out of text.
"""

from __future__ import annotations

import re

from stages.algorithms.answers.equivalence import without_name
from stages.algorithms.answers.normalisation import clean

_BARE_PERCENT = re.compile(r"(?<!\\)%")
"""In LaTeX it starts a comment; in an answer it is a percent sign."""


def math_verify_texts(gold: str, prediction: str) -> tuple[str, str]:
    """Both answers between `$`, without a common `x =`: math-verify cannot read every name."""
    texts = [gold, prediction]
    cleaned = clean(gold), clean(prediction)
    values = without_name(*cleaned)
    texts = [
        value if value != whole else text for value, whole, text in zip(values, cleaned, texts, strict=True)
    ]
    formulas = ["$" + " ".join(text.replace("$", " ").split()) + "$" for text in texts]
    return _BARE_PERCENT.sub(r"\\%", formulas[0]), _BARE_PERCENT.sub(r"\\%", formulas[1])
