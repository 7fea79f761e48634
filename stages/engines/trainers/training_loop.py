"""The loop of a training stage: updates, validation, and checkpoints from which a killed run resumes.

Every update depends only on the step, so a resumed run trains on the same data as an uninterrupted one. Other data that
a stage keeps, such as its best weights, is inside the checkpoint, so that a crash cannot separate it from the curve.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol

from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.params import TrainingParams
from stages.engines.trainers.protocol import Trainer, replace_folder_together
from stages.foundations.files import write_json
from stages.observe.progress import progress, say
from stages.observe.tracking import Run

Curve = list[dict[str, float]]
VALIDATION = "loss/validation"
BEST = "best"


@dataclass(frozen=True)
class Schedule:
    """Number of steps and learning rates."""

    steps: int
    warmup_steps: int
    """Linear warm-up from 0."""
    final_learning_rate_fraction: float
    """Share of the peak learning rate at the end of the cosine."""
    validate_every_steps: int
    checkpoint_every_steps: int

    @classmethod
    def of(cls, params: TrainingParams) -> Schedule:
        """Returns the schedule of a section that counts in steps."""
        return cls(**{field.name: getattr(params, field.name) for field in fields(cls)})

    def learning_rate_scale(self, step: int) -> float:
        """Returns the share of the peak learning rate at `step` (from 0)."""
        return warmup_then_cosine(step, self.steps, self.warmup_steps, self.final_learning_rate_fraction)


class Kept(Protocol):
    """Data that a stage keeps in its checkpoints besides the trainer's state and the curve."""

    def save(self, folder: Path, curve: Curve, before: Path | None) -> None:
        """Writes it into `folder`, a new checkpoint; `before` is the last one, which exists until this one is complete.

        Collective: every rank calls it with the same folder.
        """

    def load(self, folder: Path) -> None:
        """Restores the data that `save` wrote; collective."""


def train(
    label: str,
    schedule: Schedule,
    trainer: Trainer,
    checkpoints: Checkpoints,
    run: Run,
    update: Callable[[int, float], Mapping[str, float]],
    validate: Callable[[], Mapping[str, float]],
    kept: Kept | None = None,
    first_rows: Callable[[], Curve] = list,
) -> Curve:
    """Trains and returns one row per step, after `first_rows`; resumes from the last checkpoint, if any.

    update: takes the step, from 0, and the share of the peak learning rate. It makes one optimizer update and returns
    the numbers of its row. validate: returns numbers for the row, also after the last step. With `kept`, a checkpoint
    follows every validation, which may have changed the data to keep.
    """
    start, curve, before = _resume(label, trainer, checkpoints, kept)
    curve = curve or first_rows()
    steps = range(start, schedule.steps)
    for step in progress(steps, schedule.steps, label, "steps", done=start, curve=curve):
        scale, done = schedule.learning_rate_scale(step), step + 1
        with run.phase("train"):
            row = {"step": done, "optim/learning_rate_scale": scale, **update(step, scale)}
        if is_validated := done % schedule.validate_every_steps == 0 or done == schedule.steps:
            with run.phase("validate"):
                row |= validate()
        # Before the checkpoint, which contains the curve up to its step.
        curve.append(row)
        run.log({name: value for name, value in row.items() if name != "step"}, step=done)
        # After every validation too: the kept data must never be older than the curve.
        if done % schedule.checkpoint_every_steps == 0 or (is_validated and kept is not None):
            with run.phase("checkpoint"):
                before = _save(trainer, checkpoints, curve, kept, before)
    return curve


def train_and_keep_best(
    label: str,
    schedule: Schedule,
    trainer: Trainer,
    checkpoints: Checkpoints,
    run: Run,
    update: Callable[[int, float], Mapping[str, float]],
    validate: Callable[[], Mapping[str, float]],
) -> tuple[Curve, Path]:
    """Calls `train`; returns the curve and the folder of the model with the lowest validation loss.

    `validate` must return `loss/validation`. The folder exists until the checkpoints are cleared.
    """
    curve = train(label, schedule, trainer, checkpoints, run, update, validate, BestModel(trainer))
    return curve, checkpoints.folder(schedule.steps) / BEST


class BestModel:
    """See `Kept`: the model with the lowest validation loss, saved once and linked in later checkpoints."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def save(self, folder: Path, curve: Curve, before: Path | None) -> None:
        keep_best(self.trainer, folder, before, VALIDATION in curve[-1] and best_row(curve) is curve[-1])

    def load(self, folder: Path) -> None:
        """Does nothing: the kept data is the folder itself."""


def keep_best(trainer: Trainer, folder: Path, before: Path | None, is_best: bool) -> None:
    """Puts the best model so far into `folder`: the trainer's, or the one in the checkpoint `before`; collective."""
    if is_best:
        if trainer.rank == 0:
            (folder / BEST).mkdir()
        trainer.save_model(folder / BEST)
    elif trainer.rank == 0 and before is not None and (before / BEST).exists():
        # A link, not a copy: the best weights may be gigabytes, and checkpoints are never changed.
        shutil.copytree(before / BEST, folder / BEST, copy_function=os.link)


def save_kept(trainer: Trainer, checkpoints: Checkpoints, folder: Path, is_current: bool) -> None:
    """Writes the model to keep into `folder`: the trainer's, or the best one in the last checkpoint; collective."""
    if is_current:
        trainer.save_model(folder)
    elif trainer.rank == 0:
        shutil.copytree(checkpoints.newest() / BEST, folder, dirs_exist_ok=True)


def best_row(curve: Curve) -> dict[str, float]:
    """Returns the row with the lowest validation loss, the first of equal ones; ValueError when none was validated."""
    return min((row for row in curve if VALIDATION in row), key=lambda row: row[VALIDATION])


def _save(trainer: Trainer, checkpoints: Checkpoints, curve: Curve, kept: Kept | None, before: Path | None) -> Path:
    place = checkpoints.folder(int(curve[-1]["step"]))
    with replace_folder_together(trainer, place) as folder:
        hashes = trainer.save_checkpoint(folder)
        if kept is not None:
            kept.save(folder, curve, before)
        if trainer.rank == 0:
            write_json(folder / "curve.json", curve)
    checkpoints.keep_last(hashes, trainer)
    return place


def _resume(
    label: str, trainer: Trainer, checkpoints: Checkpoints, kept: Kept | None
) -> tuple[int, Curve, Path | None]:
    latest = checkpoints.latest(trainer)
    if latest is None:
        return 0, [], None
    step, folder = latest
    say(f"{label}: resuming from step {step}")
    trainer.load_checkpoint(folder)
    if kept is not None:
        kept.load(folder)
    return step, json.loads((folder / "curve.json").read_text(encoding="utf-8")), folder


def warmup_then_cosine(step: int, steps: int, warmup_steps: int, final_fraction: float) -> float:
    """Returns the share of the peak learning rate at `step` (from 0): linear warm-up, then cosine to the final one."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    # The last step, not the one after it, has the final fraction.
    progressed = (step - warmup_steps) / max(1, steps - 1 - warmup_steps)
    return final_fraction + (1 - final_fraction) * 0.5 * (1 + math.cos(math.pi * min(1.0, progressed)))
