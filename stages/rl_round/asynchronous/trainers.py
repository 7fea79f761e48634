"""The trainer as the hub sees it: Ray actors that train the steps they are told to, and come back when they die.

A trainer that was lost starts at its last checkpoint and repeats the steps behind it in the same batches, so on a CPU a
version number means the same weights as before. The hub hears of each step once.
"""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stages.foundations.errors import UserError
from stages.observe.progress import say
from stages.rl_round.asynchronous.messages import Standing, Trained, TrainerTask
from stages.rl_round.rollouts.records import Batch

START_SECONDS = 900.0
"""A trainer that is not up after so long hangs: loading and compiling a large policy takes minutes."""
LEAST_STALL_SECONDS = 120.0
USUAL_STEPS = 20
"""A step that takes as many times the usual one hangs."""
MOST_DEATHS = 5
"""In a row, without a step in between."""


class TrainerActor:
    """One rank, in a process of its own; the hub does not import torch."""

    def __init__(self, task: TrainerTask) -> None:
        from stages.observe.quick_imports import quick_imports

        with quick_imports():
            from stages.rl_round.asynchronous.trainer import RoundTrainer

        self._trainer = RoundTrainer(task)

    def standing(self) -> Standing:
        """See `RoundTrainer`."""
        return self._trainer.standing()

    def train(self, step: int, batch: Batch, saves: bool) -> Trained:
        """See `RoundTrainer`."""
        return self._trainer.train(step, batch, saves)

    def save_model(self, folder: Path) -> None:
        """See `RoundTrainer`."""
        self._trainer.save_model(folder)

    def close(self) -> None:
        """See `RoundTrainer`."""
        self._trainer.close()

    def process(self) -> int:
        """Its number, for who wants to look at it."""
        return os.getpid()


class Trainers:
    """All ranks of the trainer."""

    def __init__(
        self,
        task: TrainerTask,
        ranks: int,
        steps_known: int,
        batch_of: Callable[[int], Batch],
        saves: Callable[[int], bool],
    ) -> None:
        """`steps_known`: steps that the hub has heard of in an earlier life. `batch_of` gives the batch of a step that
        was submitted since the last checkpoint; `saves` says whether a checkpoint follows a step."""
        self._task, self._ranks, self._batch_of, self._saves = task, ranks, batch_of, saves
        self._actors: list[Any] = []
        self._calls: list[Any] = []
        self._called_at = 0.0
        self._is_starting = True
        self._steps_done, self._told, self._target = 0, steps_known, -1
        self._usual: deque[float] = deque(maxlen=USUAL_STEPS)
        self._deaths_in_a_row = 0
        self.restarts = 0
        self.is_up = False
        """True once it has said where it stands."""
        self._start()

    @property
    def calls(self) -> list[Any]:
        """What to wait for."""
        return self._calls

    def submit(self, step: int) -> None:
        """It is to go on up to this step (from 0)."""
        self._target = step
        self._go_on()

    def poll(self) -> Trained | None:
        """A step that is done, once; None when there is none. Errors of the training itself are raised."""
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        if not self._calls:
            return None
        done, _ = ray.wait(self._calls, num_returns=len(self._calls), timeout=0)
        if len(done) < len(self._calls):
            # A rank that is gone leaves the others in a collective for ever.
            return self._look_after(done)
        try:
            result = ray.get(self._calls)[0]
        except RayTaskError as error:
            raise error.as_instanceof_cause() from None
        except RayActorError as error:
            return self._restart(f"it died: {_first_line(error)}")
        self._calls = []
        return self._take(result)

    def _look_after(self, done: list[Any]) -> None:
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        try:
            ray.get(done)
        except RayTaskError as error:
            raise error.as_instanceof_cause() from None
        except RayActorError as error:
            self._restart(f"a rank died: {_first_line(error)}")
            return
        seconds = time.monotonic() - self._called_at
        usual = statistics.median(self._usual) if self._usual else 0.0
        limit = (
            START_SECONDS if self._is_starting or not self._usual else max(LEAST_STALL_SECONDS, 20 * usual)
        )
        if seconds > limit:
            self._restart(f"it has said nothing for {seconds:.0f} s")

    def _take(self, result: Standing | Trained) -> Trained | None:
        if isinstance(result, Standing):
            self._is_starting, self.is_up = False, True
            self._steps_done = result.steps_done
            self._go_on()
            if result.steps_done <= self._told:
                return None
            # The hub, or this trainer, was killed between the checkpoint and the word of it.
            self._told = result.steps_done
            return Trained(result.steps_done - 1, result.last_row, ended_at=time.time())
        self._usual.append(time.monotonic() - self._called_at)
        self._deaths_in_a_row = 0
        self._steps_done = result.step + 1
        is_new = result.step >= self._told
        self._told = max(self._told, result.step + 1)
        self._go_on()
        return result if is_new else None

    def _go_on(self) -> None:
        if not self._calls and not self._is_starting and self._steps_done <= self._target:
            step = self._steps_done
            batch, saves = self._batch_of(step), self._saves(step)
            self._call(lambda actor: actor.train.remote(step, batch, saves))

    def _call(self, ask: Callable[[Any], Any]) -> None:
        self._called_at = time.monotonic()
        self._calls = [ask(actor) for actor in self._actors]

    def _start(self) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        params = self._task.trainer
        here = NodeAffinitySchedulingStrategy(this_node(), soft=False)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        common = {"OMP_NUM_THREADS": str(params.threads)}
        for rank in range(self._ranks):
            place = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(self._ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            actor = ray.remote(TrainerActor).options(
                num_cpus=0,
                num_gpus=0 if getattr(params, "device", "auto") == "cpu" else min(1, _gpus(ray)),
                scheduling_strategy=here,
                runtime_env={"env_vars": common | (place if self._ranks > 1 else {})},
            )
            self._actors.append(actor.remote(self._task))
        self._is_starting = True
        self._call(lambda actor: actor.standing.remote())

    def _restart(self, reason: str) -> None:
        import ray

        self.restarts += 1
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > MOST_DEATHS:
            raise UserError(
                f"{self._task.name}: the trainer was lost {self._deaths_in_a_row} times in a row, at last because "
                f"{reason}. Too little memory is the usual reason: lower trainer.micro_batch_tokens. The last "
                "checkpoint and every finished response are kept, the next run goes on from them"
            )
        say(f"{self._task.name}: the trainer starts again from its last checkpoint, because {reason}")
        for actor in self._actors:
            ray.kill(actor)
        self._actors, self._calls = [], []
        self._start()

    def save_model(self, folder: Path) -> None:
        """Writes the policy; waits for it."""
        self._finish(lambda actor: actor.save_model.remote(folder))

    def processes(self) -> list[int]:
        """Of the ranks; waits for them."""
        import ray

        return ray.get([actor.process.remote() for actor in self._actors])

    def _finish(self, ask: Callable[[Any], Any]) -> None:
        import ray
        from ray.exceptions import RayTaskError

        try:
            ray.get([ask(actor) for actor in self._actors])
        except RayTaskError as error:
            raise error.as_instanceof_cause() from None

    def close(self) -> None:
        """Ends the processes."""
        import ray

        for actor in self._actors:
            ray.kill(actor)
        self._actors = []


def this_node() -> str:
    """Ray's id of the node that this process runs on."""
    import ray

    return ray.get_runtime_context().get_node_id()


def _gpus(ray) -> int:
    return int(ray.cluster_resources().get("GPU", 0))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
