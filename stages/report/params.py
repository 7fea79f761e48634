"""Parameters of the `report` stage."""

from __future__ import annotations

from pydantic import Field

from stages.foundations.params import StrictParams


class PublishedFigure(StrictParams):
    """A figure that somebody else reports for a benchmark, shown beside ours."""

    name: str = Field(min_length=1)
    """The model, as its authors call it."""
    metric: str = Field(min_length=1)
    """What was measured, in this project's words: greedy, avg_at_32, pass_at_1, maj_at_64."""
    value: float = Field(ge=0, le=100)
    """In percent."""
    source: str = Field(min_length=1)
    """Where it stands: paper and table."""


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
