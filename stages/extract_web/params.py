"""Parameters of stage extract_web."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.foundations.params import StrictParams


class LocalEngine(StrictParams):
    """Processes of this machine."""

    kind: Literal["local"]
    processes: int = Field(ge=1)
    """Processes that read pages; of a folder of shards, shards at once. The result is the same for any number."""


class RayEngine(StrictParams):
    """Ray Data, a row a shard: the cluster at RAY_ADDRESS, or Ray on this machine for as long as the stage runs."""

    kind: Literal["ray"]
    processes: int = Field(ge=1)
    """Shards at once; each takes one of Ray's CPUs."""
    pages_per_shard: int = Field(ge=1)
    """A single page table is cut into shards of that many pages; a folder of shards is taken as it is."""


class ExtractWebParams(StrictParams):
    """Section `extract_web`."""

    max_answer_characters: int = Field(ge=1)
    """Characters up to which a text counts as a short final answer."""
    shared_instructions: Literal["prepended", "left_out"]
    """What becomes of "For the following exercises, solve for x": put in front of each problem, or left out."""
    min_confidence: float = Field(ge=0, le=1)
    """Candidates below it are the drop `low_confidence` and go no further: docs/extraction.md has what rows of which
    evidence are worth."""
    page_timeout_seconds: float = Field(gt=0)
    """Wall-clock seconds that one page may take (a usual one takes 0.05); a slower one is the drop `timed_out`."""
    page_memory_mib: int = Field(ge=256)
    """Address space of a process that reads pages, in MiB; a page that needs more is the drop `out_of_memory`."""
    engine: Annotated[LocalEngine | RayEngine, Field(discriminator="kind")]
    """Where pages are read; every engine gives the same rows."""
