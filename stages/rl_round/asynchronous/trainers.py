"""The trainer as the hub sees it: it trains the submitted steps, and is restarted when it dies.

A lost trainer starts at its last checkpoint and repeats the later steps with the same batches. So on a CPU a version
number means the same weights as before. The hub is informed of each step once.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.engines.distributed.ranked_actors import RankedActors, RanksLost
from stages.foundations.errors import UserError
from stages.observe.progress import say
from stages.rl_round.asynchronous.coordinator import StepBatch
from stages.rl_round.loop.evaluation import is_due
from stages.rl_round.records import Batch
from stages.rl_round.round import Round, Trained, TrainerProgress

START_SECONDS = 900.0
"""A trainer that is not up after this long is considered hung: a large policy takes minutes to load and compile. So is
one that has not written the policy."""
SLOWEST_TOKEN_SECONDS = 5.0
"""Time for one token of every response of a batch, until an evaluation has shown how long it takes."""
# The steps of a tiny policy take milliseconds, and a busy machine may pause a process for longer than 20 of them.
LEAST_STALL_SECONDS = 120.0
USUAL_STEPS = 20
"""A step that takes this many times as long as the usual one is considered hung."""
MOST_DEATHS = 5
"""Losses in a row, without a step in between; the fleet allows a replica as many."""


class TrainerActor:
    """One rank, in a separate process; the hub does not import torch."""

    def __init__(self, this_round: Round, weights: Path) -> None:
        self._arguments = this_round, weights

    def start(self) -> TrainerProgress:
        """Loads the policy. Not in the constructor, whose errors have no class in Ray."""
        from stages.observe.quick_imports import quick_imports

        with quick_imports():
            from stages.rl_round.asynchronous.trainer import RoundTrainer

        self._trainer = RoundTrainer(*self._arguments)
        return self._trainer.standing()

    def train(self, step: int, batch: Batch, saves: bool) -> Trained:
        return self._trainer.train(step, batch, saves)

    def save_model(self, folder: Path) -> int:
        """See `RoundTrainer`; returns the process's number."""
        self._trainer.save_model(folder)
        return os.getpid()


class Trainers:
    def __init__(
        self,
        this_round: Round,
        weights: Path,
        ranks: int,
        gpus: float,
        batches: Mapping[int, StepBatch],
        steps_known: int,
    ) -> None:
        """`weights`: folder where versions are published. `gpus`: of each rank.

        `batches` must contain each step that was submitted since the last checkpoint. `steps_known`: steps that an
        earlier hub was informed of.
        """
        self._round, self._name, self._batches = this_round, this_round.name, batches
        self._every, self._last = this_round.params.checkpoint_every_steps, this_round.settings.steps
        arguments = this_round.for_trainer(), weights
        self._actors = RankedActors(TrainerActor, arguments, ranks, this_round.trainer_params.threads, gpus)
        self.steps_done = 0
        # It repeats the steps after its checkpoint at once: older weights cannot generate new groups.
        self._steps_known, self._target = steps_known, steps_known - 1
        self.evaluations: Sequence[dict[str, float]] = ()
        """Held-out accuracy of its weights and of those before them; the rows of repeated steps come again."""
        # The median of the last ones: the first step compiles, and lengths grow over a round.
        self._usual: dict[bool, deque[float]] = {True: deque(maxlen=USUAL_STEPS), False: deque(maxlen=USUAL_STEPS)}
        """Seconds of calls with an evaluation, and of those without."""
        self._evaluates = this_round.params.evaluation is not None
        """The outstanding call evaluates as well; a start may."""
        self._deaths_in_a_row = 0
        self._is_starting = True
        self._folder: Path | None = None
        self.has_saved = False
        self.is_up = False
        """True once it has reported its step."""
        self.restarts = 0
        self._actors.call("start")

    @property
    def calls(self) -> list[Any]:
        return self._actors.calls

    @property
    def activity(self) -> str:
        """Returns what it does, as a verb."""
        return "starts" if self._is_starting else "works" if self._actors.is_busy else "waits"

    def submit(self, step: int) -> None:
        """Orders training up to this step (from 0)."""
        self._target = step
        self._go_on()

    def poll(self) -> Trained | None:
        """Returns each finished step once; None when there is none. Raises errors of the training."""
        if not self._actors.is_busy:
            return None
        seconds = self._actors.seconds
        try:
            result = self._actors.result(self.patience)
        # Only lost processes: an error in the training would come again, and ends the round.
        except RanksLost as lost:
            self._start_again(lost)
            return None
        if result is None:
            return None
        trained = None
        match result:
            case TrainerProgress():
                trained = self._take_standing(result)
            case Trained():
                trained = self._take_step(result, seconds)
            case _:
                self.has_saved = True
        self._go_on()
        return trained

    def _take_standing(self, standing: TrainerProgress) -> Trained | None:
        self._is_starting, self.is_up = False, True
        self.steps_done, self.evaluations = standing.steps_done, standing.evaluations
        for line in standing.lines:
            say(line)
        if standing.steps_done <= self._steps_known:
            return None
        # The hub, or this trainer, was killed between the checkpoint and its report.
        self._steps_known = standing.steps_done
        return Trained(standing.steps_done - 1, standing.last_row, ended_at=time.time())

    def _take_step(self, trained: Trained, seconds: float) -> Trained | None:
        self._usual[self._evaluates].append(seconds)
        self._deaths_in_a_row = 0
        self.steps_done, self.evaluations = trained.step + 1, trained.evaluations
        # Steps repeated after a restart are not reported: the curve has their rows.
        is_new = trained.step >= self._steps_known
        self._steps_known = max(self._steps_known, trained.step + 1)
        return trained if is_new else None

    def _go_on(self) -> None:
        if self._actors.is_busy or self._is_starting:
            return
        if self.steps_done <= self._target:
            step = self.steps_done
            # Not after the last step: the policy itself is written then.
            saves = (step + 1) % self._every == 0 and step + 1 < self._last
            self._evaluates = is_due(self.evaluations, step + 1, self._round)
            self._actors.call("train", step, self._batches[step].batch, saves)
        elif self._folder and not self.has_saved:
            # Left by a trainer that died while it wrote.
            for left in self._folder.parent.glob(f".{self._folder.name}.*.partial"):
                shutil.rmtree(left, ignore_errors=True)
            self._evaluates = False
            self._actors.call("save_model", self._folder)

    @property
    def patience(self) -> float:
        """Returns the seconds after which the outstanding call counts as hung; 0 without a call."""
        if not self._actors.is_busy:
            return 0.0
        usual, is_saving = self._usual[self._evaluates], self._folder and self.steps_done > self._target
        # The first step after a start compiles as well, so it gets the time limit of a start. How long an evaluation
        # takes is known from the first one only.
        if self._is_starting or is_saving or not usual:
            return START_SECONDS + (self._slowest_evaluation() if self._evaluates else 0.0)
        return max(LEAST_STALL_SECONDS, USUAL_STEPS * statistics.median(usual))

    def _slowest_evaluation(self) -> float:
        params, settings = self._round.params, self._round.params.evaluation
        batches = math.ceil(settings.problems * settings.samples / self._round.sampler_params.max_sequences)
        return SLOWEST_TOKEN_SECONDS * batches * params.max_response_tokens

    def _start_again(self, lost: RanksLost) -> None:
        self.restarts += 1
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > MOST_DEATHS:
            raise UserError(
                f"{self._name}: the trainer was lost {self._deaths_in_a_row} times in a row, at last because {lost}. "
                "Too little memory is the usual reason: lower trainer.micro_batch_tokens. The last checkpoint and "
                "every finished response are kept, and the next run resumes from them"
            ) from lost
        say(f"{self._name}: the trainer starts again from its last checkpoint, because {lost}")
        self._actors.start_again()
        self._is_starting, self._evaluates = True, self._round.params.evaluation is not None
        self._actors.call("start")

    def save_model(self, folder: Path) -> None:
        """Orders that the policy be written after the submitted steps; `has_saved` says when it is."""
        self._folder = folder
        self._go_on()

    def close(self) -> None:
        self._actors.close()
