"""What a round is given: the whole task, what each training rank holds of it, and the messages between hub and trainer.

No torch is imported here, because the hub of the asynchronous loop has none.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.engines.trainers.params import TrainerParams
from stages.foundations.job import Attempt
from stages.observe.tracking import Run
from stages.rl_round.params import RlParams, RoundParams
from stages.rl_round.rollouts.records import Problem

if TYPE_CHECKING:  # both import torch
    from stages.engines.policies.language_model import ReferencePolicy
    from stages.engines.trainers.protocol import Trainer


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


@dataclass(frozen=True)
class RoundContext:
    """The settings of a round and the parts that train; what samples stands behind the round's batch source."""

    params: RlParams
    round: RoundParams
    name: str
    """Of the round and of the policy that it makes."""
    seed: int
    micro_batch_tokens: int
    trainer: Trainer
    reference: ReferencePolicy | None
    """The policy that the round starts from, for `rl.reference_kl`; None when that is off."""
    scratch: Path
    """Folder of the round's checkpoints."""
    run: Run | None
    """None in a process that another one observes."""


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
