"""A problem whose answer was made an integer, before and after."""

from __future__ import annotations

from stages.foundations.tables.table import TEXT, TableSchema

TRANSFORM = TableSchema(
    "transform",
    {
        "problem_id": TEXT,
        "source": TEXT,
        "original_problem": TEXT,
        "original_answer": TEXT,
        "problem": TEXT,
        "answer": TEXT,
        "form": TEXT,
        "parts": TEXT,
        "inverse": TEXT,
    },
)
