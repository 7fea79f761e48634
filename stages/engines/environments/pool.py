"""Runs environments in confined worker processes. An episode stays in one of them as long as that lives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from stages.engines.environments.kinds import worker_options
from stages.engines.environments.worker import answer_turns
from stages.engines.workers.pool import Answer, LostWorker, StartError, WorkerLimits, WorkerPool
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT
from stages.foundations.params import CUSTOM, EnvironmentParams, VerifiersEnvironment


class EnvironmentPool:
    """The workers of section `prompt.environment`. Leaving its context, or `close`, ends them."""

    def __init__(self, params: EnvironmentParams, function: Callable[..., Any] = answer_turns) -> None:
        self.params = params
        self._settings = params.model_dump(mode="json")
        limits = WorkerLimits(
            params.workers.memory_mib,
            params.workers.timeout_seconds,
            # Its data sets read and write files.
            is_trusted=isinstance(params, VerifiersEnvironment),
        )
        # Equal episodes give equal answers: the order of a set must not depend on the process.
        usual = {"environment": {"PYTHONHASHSEED": "0"}, "readable": [PROJECT / CUSTOM]}
        options = usual | worker_options(params)
        # Pools of one process, so that the seed decides which process has an episode.
        self._pools = [WorkerPool(function, 1, limits, **options) for _ in range(params.workers.processes)]

    def submit(self, problem: Mapping[str, Any], seed: int, turns: Sequence[str]) -> Future[Answer]:
        """Asks for the answer to the last of `turns`; `reply` reads it."""
        pool = self._pools[seed % len(self._pools)]
        return pool.submit(environment=self._settings, problem=dict(problem), seed=seed, turns=list(turns))

    def reply(self, future: Future[Answer]) -> dict[str, Any]:
        """Waits, and returns the result of `answer_turns`; a failure of the process is a fault.

        UserError when a worker does not start, or when the environment's file has a mistake.
        """
        limits = self.params.workers
        try:
            answer = future.result()
        except LostWorker as error:
            return {"fault": str(error)}
        except StartError as error:
            raise UserError(
                f"a worker of the environment did not start ({error}): raise prompt.environment.workers.memory_mib, "
                f"which is {limits.memory_mib}"
            ) from error
        match answer.failure:
            case "":
                return answer.value
            case "exhausted":
                return {"fault": f"a step took more than {limits.timeout_seconds:g} seconds of computing time"}
            case "out_of_memory":
                return {"fault": f"it took more than {limits.memory_mib} MiB"}
            case _:
                return {"fault": f"its process ended ({answer.ending})"}

    def openings(self, problems: Sequence[Mapping[str, Any]]) -> list[str]:
        """Returns the text of `reset` for each problem. UserError when it fails."""
        # The problem alone decides on the text, so these seeds only spread the work.
        replies = [self.reply(future) for future in [self.submit(one, seed, ()) for seed, one in enumerate(problems)]]
        for problem, reply in zip(problems, replies, strict=True):
            if "observation" not in reply:
                raise UserError(f"the environment cannot begin problem {problem.get('problem_id')}: {reply}")
        return [reply["observation"] for reply in replies]

    def pids(self) -> list[int]:
        """Process ids of the workers that are running now."""
        return [pid for pool in self._pools for pid in pool.pids()]

    def close(self) -> None:
        for pool in self._pools:
            pool.close()

    def __enter__(self) -> EnvironmentPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def with_openings(params: EnvironmentParams, texts: Sequence[str], problems: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns each problem's text, with the text of `reset` behind a blank line where there is one."""
    with EnvironmentPool(params) as pool:
        openings = pool.openings(problems)
    return [f"{text}\n\n{opening}" if opening else text for text, opening in zip(texts, openings, strict=True)]
