"""Marks of long reasoning: words between their borders, in any case, and counts of branching."""

from __future__ import annotations

import pytest

from stages.algorithms.emergence import emergence_measures, keyword_measure

WORDS = ["wait", "Start over", "re-check"]


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("", [0, 0, 0, 0, 0]),
        ("Wait, alternatively, or ALTERNATIVELY, b.", [2, 0, 1, 0, 0]),
        # No border around `wait`, another spelling, no comma.
        ("awaiting waiter; recheck; alternatively b", [0, 0, 0, 0, 0]),
        ("I start over.\n```Python\nprint(1)\n```\nRe-check!", [0, 1, 0, 1, 1]),
        ("wait wait wait", [0, 0, 1, 0, 0]),
    ],
)
def test_each_mark_of_a_response(response, expected):
    names = ["branching_frequency", "coding_rate", *map(keyword_measure, WORDS)]
    assert emergence_measures(response, WORDS) == dict(zip(names, expected, strict=True))
    assert names[3] == "keyword_rate_start_over"
