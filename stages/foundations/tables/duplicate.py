"""A problem that was left out as the duplicate of another."""

from __future__ import annotations

import pyarrow

from stages.foundations.tables.table import TEXT, TableSchema

DUPLICATE = TableSchema(
    "duplicate",
    {
        "problem_id": TEXT,
        "source": TEXT,
        "problem": TEXT,
        "other_id": TEXT,
        "other_source": TEXT,
        "other_problem": TEXT,
        "scope": TEXT,
        "rule": TEXT,
        "similarity": pyarrow.float64(),
    },
)
