"""What a round is asked to do: settings, inputs and places."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.foundations.attempt import Attempt
from stages.observe.tracking import Run
from stages.rl_round.params.rl import RlParams, RoundParams
from stages.rl_round.rollouts.records import Problem


@dataclass(frozen=True)
class RoundTask:
    """The same on every rank."""

    paths: Namespace
    params: RlParams
    round: RoundParams
    name: str
    """Of the round and of the policy that it makes."""
    seed: int
    sections: Mapping[str, Any]
    """The params of the other sections that a round reads, by name."""
    problems: Sequence[Problem]
    tokenizer: Any
    attempt: Attempt
    run: Run

    @property
    def scratch(self) -> Path:
        """Folder of the round's checkpoints, and of all else that an interrupted round goes on from."""
        return self.attempt.scratch
