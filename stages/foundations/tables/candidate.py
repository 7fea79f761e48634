"""What extraction found on a page: problem, worked solution, short answer."""

from __future__ import annotations

import pyarrow

from stages.foundations.tables.table import TEXT, TableSchema

CANDIDATE = TableSchema(
    "candidate",
    {
        **dict.fromkeys(("candidate_id", "page_id", "url", "problem", "solution", "answer", "licence"), TEXT),
        "number": TEXT,  # the exercise's, as the page has it; empty without one
        "evidence": TEXT,  # the rule that found the pair, its labels, and the checks that it failed
        "confidence": pyarrow.float64(),  # share of pairs found in this way that are right
    },
)
