"""Parameters of stage extract_web."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stages.foundations.params import StrictParams


class ExtractWebParams(StrictParams):
    """Section `extract_web`."""

    max_answer_characters: int = Field(ge=1)
    """Characters up to which a text counts as a short final answer."""
    shared_instructions: Literal["prepended", "left_out"]
    """What becomes of "For the following exercises, solve for x": put in front of each problem, or left out."""
    processes: int = Field(ge=1)
    """Processes that read pages; the result is the same for any number."""
