"""The verifier's verdict on a stored response."""

from __future__ import annotations

from stages.foundations.tables.response import SAMPLED
from stages.foundations.tables.table import TEXT, TableSchema

VERDICT = TableSchema(
    "verdict", {**SAMPLED, "verdict": TEXT, "extracted": TEXT, "path": TEXT, "reason": TEXT}
)
