"""A prompt that pictures are made of."""

from __future__ import annotations

import hashlib

from stages.foundations.tables.table import TEXT, TableSchema

PROMPT = TableSchema("prompt", dict.fromkeys(("prompt_id", "prompt", "split", "source"), TEXT))
"""`split` is train, validation or test."""


def prompt_id(prompt: str) -> str:
    """What names a prompt everywhere: the first 16 digits of the SHA-256 of its text, byte by byte as it is."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]
