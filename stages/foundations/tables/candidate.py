"""What extraction found on a page: problem, worked solution, short answer."""

from __future__ import annotations

from stages.foundations.tables.table import TEXT, TableSchema

CANDIDATE = TableSchema(
    "candidate",
    dict.fromkeys(("candidate_id", "page_id", "url", "problem", "solution", "answer", "licence"), TEXT),
)
