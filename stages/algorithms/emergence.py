"""Marks of long reasoning in the text of a response: branching, program code, and words of reflection.

Source: Demystifying Long CoT (arXiv 2502.03373, sections 4.5 and 6, figures 7 and 8).
"""

from __future__ import annotations

import re
from collections.abc import Sequence


def emergence_measures(response: str, keywords: Sequence[str]) -> dict[str, float]:
    """Returns the number of "alternatively,", and 1 or 0 for Python code and for each keyword, in any case.

    A keyword is a word or phrase, and counts only between the borders of words. Means over responses are the paper's
    branching frequency, coding rate and keyword rates.
    """
    text = response.lower()
    found = {keyword: re.search(rf"\b{re.escape(keyword.lower())}\b", text) for keyword in keywords}
    return {
        "branching_frequency": float(text.count("alternatively,")),
        "coding_rate": float("```python" in text),
        **{keyword_measure(keyword): float(match is not None) for keyword, match in found.items()},
    }


def keyword_measure(keyword: str) -> str:
    """Returns the name of a keyword's measure: `keyword_rate_start_over` for "Start over"."""
    return f"keyword_rate_{re.sub('[^a-z0-9]+', '_', keyword.lower())}"
