"""Parameters of section `verifier`."""

from __future__ import annotations

from pydantic import Field, model_validator

from stages.foundations.params import StrictParams


class ThoughtMarkers(StrictParams):
    """The texts that a model puts around a thought; an answer inside a thought is ignored."""

    open: str = Field(min_length=1)
    """May be missing in a response if the chat template opens the thought."""
    close: str = Field(min_length=1)

    @model_validator(mode="after")
    def _differ(self) -> ThoughtMarkers:
        if self.open in self.close or self.close in self.open:
            raise ValueError(f"open and close must not contain each other, and are {self.open} and {self.close}")
        return self


class VerifierParams(StrictParams):
    """Section `verifier`."""

    timeout_seconds: float = Field(gt=0)
    """Seconds of a worker's computing time for one comparison. A worker that makes no progress for 20 times as long is
    replaced once; the second time stops the stage."""
    memory_mib: int = Field(ge=256)
    """Address space of one worker, in MiB; math-verify itself needs about 100 MiB."""
    workers: int = Field(ge=1)
    """Worker processes, divided among the ranks of a node; they start when they are first needed."""
    abort_undecided_fraction: float = Field(ge=0, le=1)
    """A stage fails if the verifier's workers crashed on more than this share of its responses."""
    thought: ThoughtMarkers | None = None
    """Absent: `<think>` and `</think>`."""
