"""Parameters of stage extract_web."""

from __future__ import annotations

from pydantic import Field

from stages.foundations.params import StrictParams


class ExtractWebParams(StrictParams):
    """Section `extract_web`."""

    max_answer_characters: int = Field(ge=1)
    """Characters up to which a text counts as a short final answer."""
    processes: int = Field(ge=1)
    """Processes that read pages; the result is the same for any number."""
