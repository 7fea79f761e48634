"""Definition of stage `report`: its inputs and outputs, and the data about it that other modules use."""

from __future__ import annotations

from pydantic import Field

from stages.foundations.params import StrictParams
from stages.foundations.stage import About, Sections, Stage


class PublishedFigure(StrictParams):
    """A published score of another model on a benchmark, shown next to ours."""

    name: str = Field(min_length=1)
    """The model's name, as in its paper."""
    metric: str = Field(min_length=1)
    """The metric, by this project's names: greedy, avg_at_32, pass_at_1, maj_at_64."""
    value: float = Field(ge=0, le=100)
    """In percent."""
    source: str = Field(min_length=1)
    """Paper and table."""


class ReportParams(StrictParams):
    """Section `report`."""

    title: str = Field(min_length=1)
    """Heading of the page."""
    notes: str
    """Notes for interpreting the scores, such as an overlap of the splits; empty for none. A blank line begins a new
    paragraph."""
    baseline_policy: str
    """Policy with which the others are compared."""
    example_problems: int = Field(ge=0)
    """Problems whose responses are shown, of all benchmarks together."""
    contamination_pairs: int = Field(ge=0)
    """Pairs of a training problem and a benchmark problem that are shown with both texts."""
    example_characters: int = Field(ge=1)
    """Longest text shown of a problem or a response; the rest is cut off, with a note."""
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
        "rollouts": "data/rollouts",
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
    description="The report: scores, curves, dropped rows and parameters on one page.",
    contradictions=_contradictions,
    is_varied=True,
)
