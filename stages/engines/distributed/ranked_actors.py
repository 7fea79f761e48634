"""The ranks of one program in Ray actors: they are called together, fail together and restart together."""

from __future__ import annotations

import socket
from typing import Any

from stages.engines.distributed.waiting import PatientClock


class RanksLost(RuntimeError):
    """A rank has died, or the ranks hang: their work is lost."""


class RankedActors:
    """`ranks` actors of one class on this process's node, each with the environment that `torchrun` would set."""

    def __init__(self, actor_class: type, arguments: tuple[Any, ...], ranks: int, threads: int, gpus: float) -> None:
        """Requires a running Ray. `threads` is for OpenMP; `gpus` of each rank may be a fraction."""
        self._class, self._arguments, self._ranks = actor_class, arguments, ranks
        self._threads, self._gpus = threads, gpus
        self._actors: list[Any] = []
        self._calls: list[Any] = []
        self._clock, self._called_at = PatientClock(), 0.0
        self._start()

    @property
    def is_busy(self) -> bool:
        return bool(self._calls)

    @property
    def calls(self) -> list[Any]:
        """The outstanding calls, for a caller that waits for several things."""
        return self._calls

    @property
    def seconds(self) -> float:
        """Seconds since the outstanding call was made; only time between polls counts."""
        self._clock.look()
        return self._clock.now - self._called_at

    def call(self, method: str, *arguments: Any) -> None:
        """Calls this method on every rank. One call at a time."""
        self._clock.look()
        self._called_at = self._clock.now
        self._calls = [getattr(actor, method).remote(*arguments) for actor in self._actors]

    def result(self, patience_seconds: float) -> Any:
        """Returns rank 0's answer when all ranks have answered, else None; never waits. Must be called repeatedly.

        An exception of a rank is raised here. RanksLost when one has died, or after `patience_seconds`.
        """
        import ray

        done, waiting = ray.wait(self._calls, num_returns=len(self._calls), timeout=0)
        # A rank that is gone leaves the others in a collective for ever, so the finished ranks are checked first.
        self._get(done)
        if not waiting:
            calls, self._calls = self._calls, []
            return self._get(calls)[0]
        if self.seconds > patience_seconds:
            raise RanksLost(f"it has not reported for {self.seconds:.0f} s")
        return None

    def start_again(self) -> None:
        """Ends the remaining ranks and starts new ones."""
        self.close()
        self._start()

    def close(self) -> None:
        import ray

        for actor in self._actors:
            ray.kill(actor)
        self._actors, self._calls = [], []

    def _get(self, calls: list[Any]) -> list[Any]:
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        try:
            return ray.get(calls)
        except RayTaskError as error:
            # Ray wraps it; callers catch the rank's exception by its class.
            raise error.as_instanceof_cause() from None
        except RayActorError as error:
            raise RanksLost(f"it died ({str(error).strip().splitlines()[0]})") from error

    def _start(self) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        # A new port each time: ranks that are being killed may still hold the last one.
        port = _free_port()
        for rank in range(self._ranks):
            place = {
                "RANK": str(rank),
                # Ray shows each rank only one GPU, for every rank.
                "LOCAL_RANK": "0",
                "WORLD_SIZE": str(self._ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            environment = {"OMP_NUM_THREADS": str(self._threads)} | (place if self._ranks > 1 else {})
            actor = ray.remote(self._class).options(
                num_cpus=0,
                num_gpus=self._gpus,
                # A rank that Ray restarted alone would meet the others in the middle of a collective.
                max_restarts=0,
                scheduling_strategy=here,
                runtime_env={"env_vars": environment},
            )
            self._actors.append(actor.remote(*self._arguments))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
