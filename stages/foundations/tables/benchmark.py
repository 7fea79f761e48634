"""A benchmark problem."""

from __future__ import annotations

from stages.foundations.tables.problem import COLUMNS
from stages.foundations.tables.table import TEXT, TableSchema

BENCHMARK = TableSchema("benchmark", {**COLUMNS, "benchmark": TEXT})
