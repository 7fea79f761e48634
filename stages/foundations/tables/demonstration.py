"""A problem and the response that supervised fine-tuning learns."""

from __future__ import annotations

from stages.foundations.tables.table import TEXT, TableSchema

DEMONSTRATION = TableSchema(
    "demonstration",
    dict.fromkeys(
        ("demonstration_id", "problem_id", "source", "kind", "problem", "response", "licence"), TEXT
    ),
)
