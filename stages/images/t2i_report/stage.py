"""Parameters and paths of stage `t2i_report`, and its description for other modules."""

from __future__ import annotations

from pydantic import Field

from stages.foundations.params import StrictParams
from stages.foundations.stage import About, Stage


class T2iReportParams(StrictParams):
    """Section `t2i_report`."""

    title: str = Field(min_length=1)
    """Heading of the page."""
    notes: str
    """Facts that a reader needs to interpret the page; empty for none. A blank line begins a new paragraph."""
    shown_prompts: int = Field(ge=0)
    """Held-out prompts of each ranking round whose best and worst pictures are shown."""
    shown_disagreements: int = Field(ge=0)
    """Pairs of each ranking round on which the reward model contradicts people with the widest margin."""
    shown_changes: int = Field(ge=0)
    """Pictures before and after each round of feedback, of largest gain, middle and largest loss each."""
    picture_side: int = Field(ge=16)
    """Longest side of a picture on the page, in pixels; smaller pictures stay as they are."""
    max_pictures_mib: float = Field(gt=0)
    """Total size of the page's pictures; if they exceed it, all large ones are made smaller."""


STAGE = Stage(
    sections={"t2i_report": T2iReportParams},
    inputs={
        "metrics": "data/metrics",
        "curves": "data/curves",
        "rankings": "data/preferences",
        "pool": "data/images/pool",
        "scores": "data/image_scores",
        "feedback": "data/images/feedback",
    },
    outputs={"out": "reports/text_to_image.html", "result": "reports/pictures.json"},
    not_compared={"graph": "dvc.yaml"},
    also_depends_on=("params.yaml",),
    foreach="t2i",
)
ABOUT = About(
    description="The text-to-image report: pictures, annotators, scorers and the effect of feedback.", is_varied=True
)
