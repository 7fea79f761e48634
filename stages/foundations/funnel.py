"""Counts what goes in, what is kept and why the rest is dropped, and keeps the dropped rows."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pandas

from stages.foundations.tables.dropped import DROPPED

REASON = re.compile(r"[a-z][a-z0-9_]*")


class Funnel:
    """The drops of one stage. Every row that enters is either kept by the caller or dropped here, once."""

    def __init__(self, stage: str, rows_in: int) -> None:
        self.stage = stage
        self.rows_in = rows_in
        self._dropped: list[dict[str, str]] = []

    def drop(self, row: Mapping[str, Any], reason: str, detail: str = "", row_id: str = "") -> None:
        """Records one dropped row; `reason` is a snake_case word, `detail` a sentence for this row."""
        if not REASON.fullmatch(reason):
            raise ValueError(f"a reason is snake_case, not {reason!r}")
        self._dropped.append(
            {
                "row_id": row_id or _row_id(row),
                "stage": self.stage,
                "reason": reason,
                "detail": detail,
                "row": json.dumps(dict(row), sort_keys=True, default=str, ensure_ascii=False),
            }
        )

    def dropped_frame(self) -> pandas.DataFrame:
        """The dropped rows in the order they were dropped, in the `dropped` table's columns."""
        return pandas.DataFrame(self._dropped, columns=DROPPED.names)

    def metrics(self, kept: int) -> dict[str, int]:
        """`rows/in`, `rows/kept` and `dropped/<reason>`; ValueError when they do not add up."""
        if self.rows_in != kept + len(self._dropped):
            raise ValueError(
                f"{self.rows_in} rows in, {kept} kept, {len(self._dropped)} dropped: rows were lost"
            )
        reasons = Counter(row["reason"] for row in self._dropped)
        counts = {f"dropped/{reason}": count for reason, count in sorted(reasons.items())}
        return {"rows/in": self.rows_in, "rows/kept": kept, **counts}


def _row_id(row: Mapping[str, Any]) -> str:
    return next((str(row[name]) for name in row if name.endswith("_id") and row[name] is not None), "")
