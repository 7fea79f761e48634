"""What hub and trainer say to each other. No torch: the hub has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stages.engines.trainers.params import TrainerParams
from stages.rl_round.params.rl import RlParams, RoundParams


@dataclass(frozen=True)
class TrainerTask:
    """All that a rank of the trainer needs to know."""

    rl: RlParams
    round: RoundParams
    name: str
    """Of the round."""
    seed: int
    trainer: TrainerParams
    policy: Path
    """Folder that the round starts from."""
    scratch: Path
    """Folder of the round's checkpoints."""
    weights: Path
    """Folder in this node's memory where versions are published."""


@dataclass(frozen=True)
class Standing:
    """How far a trainer is."""

    steps_done: int
    """Steps that are in its weights: their version."""
    last_row: dict[str, float]
    """Of the last of them; empty before the first."""
    told: Sequence[str] = ()
    """Lines for who watches the log. What an actor prints itself is lost in Ray's."""


@dataclass(frozen=True)
class Trained:
    """A step is done, and its version published."""

    step: int
    """From 0; the version is one more."""
    row: dict[str, float] = field(default_factory=dict)
    """Of the round's curve."""
    train_seconds: float = 0.0
    publish_seconds: float = 0.0
    """The trainer stood still for so long."""
    checkpoint_seconds: float = 0.0
    ended_at: float = 0.0
    """Time of day, seconds since 1970."""
