"""A policy's response to a benchmark problem."""

from __future__ import annotations

import pyarrow

from stages.foundations.tables.table import TEXT, TableSchema

SAMPLED = {"problem_id": TEXT, "benchmark": TEXT, "mode": TEXT, "sample_index": pyarrow.int32()}
"""What names a response."""
RESPONSE = TableSchema(
    "response",
    {
        **SAMPLED,
        "problem": TEXT,
        "answer": TEXT,
        "response": TEXT,
        "response_tokens": pyarrow.int32(),
        "is_truncated": pyarrow.bool_(),
    },
)
