"""Parameters of the `sft` stage."""

from __future__ import annotations

from pydantic import Field

from stages.engines.trainers.params import TrainingParams


class SftParams(TrainingParams):
    """Section `sft`."""

    batch_demonstrations: int = Field(ge=1)
    """Demonstrations of one update, over all ranks."""
    max_sequence_tokens: int = Field(ge=8)
    """Prompt and response tokens; a longer demonstration is dropped and counted. Also the length of a packed row."""
