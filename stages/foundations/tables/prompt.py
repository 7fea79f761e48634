"""A prompt that images are made for."""

from __future__ import annotations

from stages.foundations.tables.table import TEXT, TableSchema

PROMPT = TableSchema("prompt", dict.fromkeys(("prompt_id", "prompt", "split", "source"), TEXT))
