"""A round as all of its processes know it, and the messages between the asynchronous loop's hub and trainer.

No torch is imported here, because the hub of the asynchronous loop has none.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.engines.samplers.params import SamplerParams
from stages.engines.trainers.params import TrainerParams
from stages.engines.verifier.params import VerifierParams
from stages.foundations.job import Attempt
from stages.foundations.params import PromptParams
from stages.observe.tracking import Run
from stages.rl_round.params import RlParams, RoundParams
from stages.rl_round.records import Problem

if TYPE_CHECKING:  # both import torch
    from stages.engines.policies.language_model import ReferencePolicy
    from stages.engines.trainers.protocol import Trainer


@dataclass(frozen=True)
class Round:
    """What is the same on every rank and in both loops; then what this process trains with."""

    name: str
    """Of the round and of the policy that it makes."""
    seed: int
    params: RlParams
    """Section `rl`, as it holds for this round."""
    settings: RoundParams
    """Section `rl_rounds.<name>`."""
    trainer_params: TrainerParams
    sampler_params: SamplerParams
    verifier_params: VerifierParams
    prompt: PromptParams
    paths: Namespace
    """Of inputs and outputs; `policy` is the folder that the round starts from."""
    attempt: Attempt
    problems: Sequence[Problem]
    tokenizer: Any
    run: Run | None
    """None in a process that another one observes."""
    too_long: int = 0
    """Problems of the round's slice that were left out, as their prompts leave no room for a response."""
    held_out: Sequence[Problem] = ()
    """Problems of `rl.evaluation` whose prompts leave room for a response."""
    trainer: Trainer | None = None
    """None in the hub of the asynchronous loop."""
    reference: ReferencePolicy | None = None
    """The policy that the round starts from, for `rl.reference_kl`; None when that is off."""

    @property
    def scratch(self) -> Path:
        """Folder of the round's checkpoints, and of all else that an interrupted round goes on from."""
        return self.attempt.scratch

    def for_trainer(self) -> Round:
        """The part that the trainer's own processes need, and that can be sent to them."""
        # An actor has another working directory, so the path is absolute. A tracking run belongs to its process;
        # problems and tokenizer are the hub's alone, and would travel for nothing.
        paths = Namespace(policy=self.paths.policy.resolve())
        return replace(self, paths=paths, problems=(), tokenizer=None, run=None)

    def close(self) -> None:
        """Ends trainer and reference, which the other fields outlive."""
        if self.reference is not None:
            self.reference.close()
        # The trainer last: on several ranks closing it leaves the process group.
        if self.trainer is not None:
            self.trainer.close()


# Plain data from here on: it crosses between processes of which one has no torch.


@dataclass(frozen=True)
class TrainerProgress:
    """How far a trainer is."""

    steps_done: int
    """Steps that are in its weights: their version."""
    last_row: dict[str, float]
    """Of the last of them; empty before the first."""
    lines: Sequence[str] = ()
    """For who watches the log. What an actor prints itself is lost in Ray's."""


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
