"""Parameters and paths of stage `extract_web`, and its description for other modules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.foundations.params import StrictParams
from stages.foundations.stage import About, Stage


class LocalEngine(StrictParams):
    """Processes of this machine."""

    kind: Literal["local"]
    processes: int = Field(ge=1)
    """Shards at once; a page table is cut into at least as many. The result is the same for any number."""


class RayEngine(StrictParams):
    """Ray Data, one row per shard: the cluster at RAY_ADDRESS, or Ray on this machine for as long as the stage runs."""

    kind: Literal["ray"]
    processes: int = Field(ge=1)
    """Shards at once; each takes one of Ray's CPUs."""
    pages_per_shard: int = Field(ge=1)
    """A single page table is cut into shards of that many pages; a folder of shards is used as it is."""


class ExtractWebParams(StrictParams):
    """Section `extract_web`."""

    max_answer_characters: int = Field(ge=1)
    """Most characters of a short final answer."""
    shared_instructions: Literal["prepended", "left_out"]
    """Treatment of "For the following exercises, solve for x": put in front of each problem, or left out."""
    min_confidence: float = Field(ge=0, le=1)
    """Candidates below it are the drop `low_confidence` and are not used further; docs/explanation/extraction.md has
    the precision of rows by evidence."""
    page_timeout_seconds: float = Field(gt=0)
    """Seconds of computing for one page (0.05 is usual); a slower one is the drop `timed_out`. If its process stalls
    for 20 times as long, the page is tried again, and the second time stops the stage."""
    page_memory_mib: int = Field(ge=256)
    """Address space of a process that reads pages, in MiB; a page that needs more is the drop `out_of_memory`."""
    engine: Annotated[LocalEngine | RayEngine, Field(discriminator="kind")]
    """Where pages are read; every engine gives the same rows."""


STAGE = Stage(
    sections={"extract_web": ExtractWebParams},
    inputs={"pages": "data/web/pages.parquet"},
    outputs={
        "candidates": "data/web/candidates.parquet",
        "dropped": "data/dropped/extract_web.parquet",
        "metrics": "data/metrics/extract_web.json",
        "headline": "data/headline/extract_web.json",
    },
)


ABOUT = About(
    description="Problems, worked solutions and short answers from each page.",
    headline=("candidates/all", "{:,.0f} candidates"),
)
