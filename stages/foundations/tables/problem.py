"""A problem with its gold answer, and a worked solution where there is one."""

from __future__ import annotations

from stages.foundations.tables.table import TEXT, TableSchema

COLUMNS = {
    "problem_id": TEXT,
    "source": TEXT,
    "problem": TEXT,
    "answer": TEXT,
    "solution": TEXT,
    "licence": TEXT,
}
PROBLEM = TableSchema("problem", COLUMNS)
