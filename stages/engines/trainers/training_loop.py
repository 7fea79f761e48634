"""The loop of a training stage: updates, validation, checkpoints that a killed run goes on from, the best weights kept.

Every update is a function of the step alone, so a run that goes on sees what an uninterrupted one sees. The best
weights lie inside the checkpoint that they were the best at: no crash can part them from the curve that says so.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.protocol import Trainer, replace_folder_together
from stages.engines.trainers.schedules import warmup_then_cosine
from stages.foundations.files import write_json
from stages.observe.progress import progress, say
from stages.observe.tracking import Run

Curve = list[dict[str, float]]
VALIDATION = "loss/validation"
BEST = "best"


@dataclass(frozen=True)
class Schedule:
    """How long to train, and how fast."""

    steps: int
    warmup_steps: int
    """Linear warm-up from 0."""
    final_learning_rate_fraction: float
    """Share of the peak learning rate that the cosine ends at."""
    validate_every_steps: int
    checkpoint_every_steps: int

    def learning_rate_scale(self, step: int) -> float:
        """Share of the peak learning rate at `step` (from 0)."""
        return warmup_then_cosine(step, self.steps, self.warmup_steps, self.final_learning_rate_fraction)


def train_and_keep_best(
    label: str,
    schedule: Schedule,
    trainer: Trainer,
    checkpoints: Checkpoints,
    run: Run,
    update: Callable[[int, float], Mapping[str, float]],
    validate: Callable[[], Mapping[str, float]],
) -> tuple[Curve, Path]:
    """Trains, and returns one row a step and the folder of the model that had the lowest validation loss.

    update: takes the step, from 0, and the share of the peak learning rate; makes one optimizer update and returns the
    numbers of its row. validate: returns numbers for the row, `loss/validation` among them; after the last step too.
    The folder is good until the checkpoints are cleared. Goes on from the last checkpoint, if any.
    """
    start, curve = _resume(label, trainer, checkpoints)
    for step in progress(
        range(start, schedule.steps), total=schedule.steps - start, label=label, unit="steps"
    ):
        scale, done = schedule.learning_rate_scale(step), step + 1
        with run.phase("train"):
            row = {"step": done, "optim/learning_rate_scale": scale, **update(step, scale)}
        if is_validated := done % schedule.validate_every_steps == 0 or done == schedule.steps:
            with run.phase("validate"):
                row |= validate()
        curve.append(row)
        run.log({name: value for name, value in row.items() if name != "step"}, step=done)
        if is_validated or done % schedule.checkpoint_every_steps == 0:
            with run.phase("checkpoint"):
                _save(trainer, checkpoints, curve)
    return curve, checkpoints.folder(schedule.steps) / BEST


def best_row(curve: Curve) -> dict[str, float]:
    """The row with the lowest validation loss, the first of equal ones; ValueError where none was validated."""
    return min((row for row in curve if VALIDATION in row), key=lambda row: row[VALIDATION])


def _save(trainer: Trainer, checkpoints: Checkpoints, curve: Curve) -> None:
    before = checkpoints.latest() if trainer.rank == 0 else None
    is_best = VALIDATION in curve[-1] and best_row(curve) is curve[-1]
    with replace_folder_together(trainer, checkpoints.folder(int(curve[-1]["step"]))) as folder:
        trainer.save_checkpoint(folder)
        if is_best:
            if trainer.rank == 0:
                (folder / BEST).mkdir()
            trainer.save_model(folder / BEST)
        elif before is not None and (before[1] / BEST).exists():
            shutil.copytree(before[1] / BEST, folder / BEST, copy_function=os.link)
        if trainer.rank == 0:
            write_json(folder / "curve.json", curve)
    if trainer.rank == 0:
        checkpoints.keep_last()


def _resume(label: str, trainer: Trainer, checkpoints: Checkpoints) -> tuple[int, Curve]:
    found = checkpoints.latest()
    if found is None:
        return 0, []
    step, folder = found
    say(f"{label}: going on from step {step}")
    trainer.load_checkpoint(folder)
    return step, json.loads((folder / "curve.json").read_text(encoding="utf-8"))
