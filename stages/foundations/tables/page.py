"""A web page or document as it was collected."""

from __future__ import annotations

from stages.foundations.tables.table import TEXT, TableSchema

PAGE = TableSchema("page", dict.fromkeys(("page_id", "url", "format", "content", "licence"), TEXT))
