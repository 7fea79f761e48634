"""How often a policy solves a problem."""

from __future__ import annotations

import pyarrow

from stages.foundations.tables.table import TEXT, TableSchema

DIFFICULTY = TableSchema(
    "difficulty",
    {
        "problem_id": TEXT,
        "source": TEXT,
        "pass_rate": pyarrow.float64(),
        "samples": pyarrow.int32(),
        "band": TEXT,
    },
)
