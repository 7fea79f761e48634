"""Who decides in a round whether a response is correct."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stages.engines.verifier.judgement import Judgement


class RoundVerifier(Protocol):
    """What a round asks: `Verifier`, or `CheckedJudge` where `rl.verifier` is a model."""

    def judge(
        self,
        pairs: Sequence[tuple[str, str]],
        truncated: Sequence[bool] | None = None,
        require_marker: bool = False,
    ) -> list[Judgement]:
        """One judgement for each (gold answer, response), in order."""
