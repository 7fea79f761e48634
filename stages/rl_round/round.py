"""The data of a round that all its processes share, and the messages between the asynchronous loop's hub and trainer.

This module imports no torch, because the hub of the asynchronous loop does not.
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
    """Data that is the same on every rank and in both loops; then trainer and reference of this process."""

    name: str
    """Name of the round and of the policy that it outputs."""
    seed: int
    params: RlParams
    """Section `rl`, with this round's reward."""
    settings: RoundParams
    """Section `rl_rounds.<name>`."""
    trainer_params: TrainerParams
    sampler_params: SamplerParams
    verifier_params: VerifierParams
    prompt: PromptParams
    paths: Namespace
    """Paths of inputs and outputs; `policy` is the folder of the policy that the round starts from."""
    attempt: Attempt
    problems: Sequence[Problem]
    tokenizer: Any
    run: Run | None
    """None in a process whose metrics another process logs."""
    too_long: int = 0
    """Problems of the round's slice that were left out because their prompts leave no room for a response."""
    held_out: Sequence[Problem] = ()
    """Problems of `rl.evaluation` whose prompts leave room for a response."""
    teacher_folder: Path | None = None
    """The policy that `distillation` learns from; None when that is off."""
    trainer: Trainer | None = None
    """None in the hub of the asynchronous loop."""
    reference: ReferencePolicy | None = None
    """The policy that `rl.reference_kl` stays close to; None when that is off."""
    teacher: ReferencePolicy | None = None
    critic: Trainer | None = None
    """A trainer of `rl.advantage.critic`; None when there is none."""

    @property
    def scratch(self) -> Path:
        """Returns the folder of the checkpoints and of everything else that an interrupted round resumes from."""
        return self.attempt.scratch

    def for_trainer(self) -> Round:
        """Returns the part that the trainer's processes need, and that can be sent to them."""
        # An actor has another working directory, so the path is absolute. A tracking run belongs to its process; only
        # the hub uses problems and tokenizer, so they are not sent.
        paths = Namespace(policy=self.paths.policy.resolve())
        teacher = self.teacher_folder and self.teacher_folder.resolve()
        return replace(self, paths=paths, teacher_folder=teacher, problems=(), tokenizer=None, run=None)

    def close(self) -> None:
        """Ends trainer, reference, teacher and critic; the other fields stay valid."""
        for other in (self.reference, self.teacher, self.critic):
            if other is not None:
                other.close()
        # The trainer last: on several ranks, closing it leaves the process group.
        if self.trainer is not None:
            self.trainer.close()


# Plain data from here on: it is sent between processes, one of which does not import torch.


@dataclass(frozen=True)
class TrainerProgress:
    steps_done: int
    """Steps in its weights, which is their version."""
    last_row: dict[str, float]
    """Row of the last step; empty before the first."""
    evaluations: Sequence[dict[str, float]] = ()
    """Held-out accuracy, from step 0 on."""
    lines: Sequence[str] = ()
    """Lines for the log. Lines that an actor prints itself are lost in Ray's log."""


@dataclass(frozen=True)
class Trained:
    """A step is done, and its version published."""

    step: int
    """From 0; the version is one more."""
    row: dict[str, float] = field(default_factory=dict)
    train_seconds: float = 0.0
    publish_seconds: float = 0.0
    """Time for which the trainer stood still to publish."""
    evaluate_seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    ended_at: float = 0.0
    """Time of day, seconds since 1970."""
    evaluations: Sequence[dict[str, float]] = ()
    """All until now, as in `TrainerProgress`."""
