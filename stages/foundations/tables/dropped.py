"""A row that a stage left out, with the reason."""

from __future__ import annotations

from stages.foundations.tables.table import TEXT, TableSchema

DROPPED = TableSchema("dropped", dict.fromkeys(("row_id", "stage", "reason", "detail", "row"), TEXT))
