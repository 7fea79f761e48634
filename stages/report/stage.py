"""What stage `report` runs with, and what others may ask of it."""

from __future__ import annotations

from pydantic import Field

from stages.foundations.params import StrictParams
from stages.foundations.stage import About, Sections, Stage


class PublishedFigure(StrictParams):
    """A figure that somebody else reports for a benchmark, shown beside ours."""

    name: str = Field(min_length=1)
    """The model, as its authors call it."""
    metric: str = Field(min_length=1)
    """What was measured, in this project's words: greedy, avg_at_32, pass_at_1, maj_at_64."""
    value: float = Field(ge=0, le=100)
    """In percent."""
    source: str = Field(min_length=1)
    """Paper and table."""


class ReportParams(StrictParams):
    """Section `report`."""

    title: str = Field(min_length=1)
    """Heading of the page."""
    notes: str
    """What a reader must know to read the scores rightly, such as what the splits share; empty for none.
    A blank line begins a new paragraph."""
    baseline_policy: str
    """Policy that the others are compared with."""
    example_problems: int = Field(ge=0)
    """Problems whose responses are shown, of all benchmarks together."""
    contamination_pairs: int = Field(ge=0)
    """Pairs of a training problem and a benchmark problem that are shown with both texts."""
    example_characters: int = Field(ge=1)
    """Longest text that is shown of a problem or a response; the rest is cut off, and said to be."""
    published: dict[str, list[PublishedFigure]]
    """Published figures of each benchmark; {} for none."""


STAGE = Stage(
    sections={"report": ReportParams},
    inputs={
        "metrics": "data/metrics",
        "curves": "data/curves",
        "verdicts": "data/verdicts",
        "responses": "data/responses",
        "problems": "data/problems",
        "web": "data/web",
        "demonstrations": "data/demonstrations",
        "schedules": "data/schedules",
    },
    outputs={"out": "reports/index.html", "result": "reports/result.json"},
    not_compared={"graph": "dvc.yaml"},
    also_depends_on=("params.yaml",),
)


def _contradictions(sections: Sections) -> list[str]:
    baseline, policies = sections["report"].baseline_policy, sections.get("policies")
    if not policies or baseline in policies:
        return []
    return [f"report.baseline_policy {baseline!r} must be one of policies"]


ABOUT = About(
    description="One page with curves, tables, drops and the parameters that made them.",
    contradictions=_contradictions,
    is_varied=True,
    lane="Evaluation",
)
