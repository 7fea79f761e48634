"""Parameters of the `t2i_report` stage."""

from __future__ import annotations

from pydantic import Field

from stages.foundations.params import StrictParams


class T2iReportParams(StrictParams):
    """Section `t2i_report`."""

    title: str = Field(min_length=1)
    """Heading of the page."""
    notes: str
    """What a reader must know to read the page rightly; empty for none. A blank line begins a new paragraph."""
    shown_prompts: int = Field(ge=0)
    """Held-out prompts of each ranking round whose best and worst pictures are shown."""
    shown_disagreements: int = Field(ge=0)
    """Pairs of each ranking round on which the reward model is surest that people are wrong."""
    shown_changes: int = Field(ge=0)
    """Pictures before and after each round of feedback, of largest gain, middle and largest loss each."""
    picture_side: int = Field(ge=16)
    """Longest side of a picture on the page, in pixels; smaller pictures stay as they are."""
    max_pictures_mib: float = Field(gt=0)
    """Of all pictures of the page; where they would be more, all large ones are made smaller."""
