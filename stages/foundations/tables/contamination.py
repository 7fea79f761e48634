"""A problem that overlaps a benchmark problem."""

from __future__ import annotations

import pyarrow

from stages.foundations.tables.table import TEXT, TableSchema

CONTAMINATION = TableSchema(
    "contamination",
    {
        "problem_id": TEXT,
        "source": TEXT,
        "problem": TEXT,
        "benchmark": TEXT,
        "benchmark_problem_id": TEXT,
        "benchmark_problem": TEXT,
        "rule": TEXT,
        "overlap": pyarrow.float64(),
        "benchmark_revision": TEXT,
    },
)
