"""One DVC stage as a Prefect task: live log, progress, resources, metrics, the link to MLflow, and the remedy.

DVC decides which stages run: the task is `dvc repro --single-item STAGE`, and Prefect caches nothing. What DVC did
comes as data (`run_told_repro` in graph.py); the lines are the stage's own.

`TaskLog` passes the lines of a command on: to Prefect's log, the last of them to a failure, and as progress.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from uuid import UUID

import pipelines.ui.prefect_home  # noqa: F401 (Prefect reads it when it is imported)

# isort: split
from prefect import get_run_logger, task
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.concurrency.sync import concurrency
from prefect.states import Failed

from pipelines.flows.pages import StagePage, describe, has_mlflow_run, mlflow_search
from pipelines.graph.graph import DvcStage, StageReport, run_told_repro
from pipelines.graph.project_lock import project_lock
from pipelines.runtime.machine import LIMIT, Slots, Usage, gpu_slots, lock_folder, visible_gpus, watched
from pipelines.runtime.process_group import TimedOut, environment

PROGRESS = re.compile(r"^[^:]*: (\d+) of (\d+) ")
"""Progress lines of stages (stages/observe/progress.py)."""
ERROR = re.compile(r"error: |ERROR: |[\w.]*(Error|Exception|Interrupt)(: |$)")
KILLED = (
    "the kernel or a person killed it, most often for memory: lower the sizes in params.yaml, then run the flow again"
)
MISTAKE = "the message says what to correct (usually in params.yaml); then run the flow again"
OF_CODES = {2: MISTAKE, -9: KILLED, 137: KILLED}
"""Remedies by the exit code of a stage; a shell between DVC and the stage adds 128 to the signal."""
REMEDIES = (
    (
        r"CUDA out of memory|OutOfMemoryError",
        "the GPU's memory is full: lower trainer.micro_batch_tokens, "
        "sampler.max_sequences or the lengths, and check that no other process uses the GPU",
    ),
    (r"no disk space left|No space left on device", "free disk space, then run the flow again"),
    (r"MLflow server at .* does not answer", "start the servers (make ui), or unset MLFLOW_TRACKING_URI"),
    (r"^error: ", MISTAKE),
)
OTHERWISE = "correct the cause and run the flow again: finished stages are skipped, training resumes"


class StageFailed(Exception):
    """The stage's command failed. The first line of the message says why, the rest says what to do."""


# No cache and no retry: DVC knows which stages are up to date, and a user starts the flow again.
@task(name="stage", cache_policy=NO_CACHE, persist_result=False, retries=0)
def bring_up_to_date(
    project: str, stage: DvcStage, hours: float, env: Mapping[str, str] | None = None, flags: Sequence[str] = ()
) -> str | State:
    """Brings one stage up to date with `dvc repro` and these `flags`. The result is what the last report says it did.

    Waits for another run in the same project. Ends in a failed state whose result raises StageFailed or TimedOut.
    """
    logger, root = get_run_logger(), Path(project)
    log = TaskLog(stage.slug, f"Progress of stage {stage.name}", percent)
    reports: list[StageReport] = []

    def hear(line: str) -> None:
        # Below its report of a failure, DVC repeats it in its own words.
        if not reports or reports[-1].what != "failed":
            log(line)

    def take(report: StageReport) -> None:
        reports.append(report)
        if report.what == "runs":
            log(f"> {report.reason}")

    # Without the login of Prefect's server: stages read hostile text.
    surroundings = dict(env or environment())
    if (address := mlflow_search(stage.name)) and has_mlflow_run(stage, surroundings):
        create_link_artifact(address, f"MLflow runs of {stage.name}", key=f"mlflow-{stage.slug}")
    with _slots(stage, logger.info) as slots:
        if slots.gpus:
            surroundings["CUDA_VISIBLE_DEVICES"] = ",".join(slots.gpus)
        logger.info(
            "stage %s: %s, %d of %d CPU cores, at most %g h",
            stage.name,
            _describe(slots),
            len(os.sched_getaffinity(0)),
            os.cpu_count() or 1,
            hours,
        )
        arguments = ("--single-item", *flags, stage.name)
        try:
            with project_lock(root, logger.info) as lock, watched() as usage:
                held = [*slots.held, lock]
                code = run_told_repro(root, arguments, hear, take, surroundings, held, hours * 3600)
        except TimedOut:
            reason = f"stage {stage.name} was stopped after {hours:.3g} h: raise launch.hours (or hours_per_stage)"
            _tell_failure(stage, log, reason, usage)
            return failed(TimedOut(reason))
    if code:
        advice = remedy(log.last, reports[-1].code if reports else None)
        reason = f"stage {stage.name} failed: {cause(log.last)}\nWhat to do: {advice}"
        _tell_failure(stage, log, reason, usage)
        return failed(StageFailed(reason))
    log.finish()
    page = StagePage(stage, root, surroundings, reports[-1].what, _describe(slots), usage)
    create_markdown_artifact(describe(page), key=f"stage-{stage.slug}", description=f"Metrics of stage {stage.name}")
    return reports[-1].what


def failed(error: Exception) -> State:
    """Returns a failed state whose message is one sentence, and whose result raises the error.

    If a task or a flow raised the error, the log would show a traceback through Prefect.
    """
    message = str(error).partition("\n")[0] if isinstance(error, StageFailed) else str(error)
    return Failed(message=" ".join(message.split()), data=error)


def percent(line: str) -> float | None:
    """Returns the progress of the stage, where the line states it."""
    found = PROGRESS.match(line)
    return 100 * int(found[1]) / max(1, int(found[2])) if found else None


def cause(lines: Sequence[str]) -> str:
    """Returns the line that says why a stage failed: its error or exception, else its last line."""
    told = [line.strip() for line in lines]
    errors = [line for line in told if ERROR.match(line)]
    line = (errors or told or ["it said nothing"])[-1]
    return line.removeprefix("error: ").removeprefix("ERROR: ")


def remedy(lines: Iterable[str], code: int | None = None) -> str:
    """Returns what to do about a failure, by the last lines of its log, else by the exit code of its command."""
    text = "\n".join(lines)
    found = (advice for pattern, advice in REMEDIES if re.search(pattern, text, re.MULTILINE))
    return next(found, OF_CODES.get(code, OTHERWISE))


@contextmanager
def _slots(stage: DvcStage, say: Callable[[str], None]) -> Iterator[Slots]:
    """Reserves the GPUs: first in Prefect's queue, then by a lock on this machine."""
    is_queued = 0 < stage.gpus <= len(visible_gpus())
    # A lost lease must not end a training run: the lock on the GPU still holds.
    queue = concurrency(LIMIT, occupy=stage.gpus, lease_duration=60, raise_on_lease_renewal_failure=False)
    # Prefect's limit shows waiting stages, and is lost with its server. The locks on this machine keep two stages
    # apart.
    with queue if is_queued else nullcontext(), gpu_slots(stage.gpus, lock_folder(), say) as slots:
        yield slots


def _describe(slots: Slots) -> str:
    return f"GPU {', '.join(slots.gpus)}" if slots.gpus else "no GPU"


def _tell_failure(stage: DvcStage, log: TaskLog, reason: str, usage: Usage) -> None:
    lines = "\n".join(f"    {line}" for line in log.last)
    paragraphs = reason.replace("\n", "\n\n")
    text = f"## {stage.name} failed\n\n{paragraphs}\n\n{usage.in_words()}\n\n{lines}\n"
    create_markdown_artifact(text, key=f"stage-{stage.slug}", description=f"Failure of stage {stage.name}")


LINES_IN_A_FAILURE = 25
SECONDS_BETWEEN_UPDATES = 5.0


class TaskLog:
    """Called with each line. `percent` reads the progress of the task from a line, or None.

    The progress artifact appears with the first such line: a task without progress has none.
    """

    def __init__(self, slug: str, about: str, percent: Callable[[str], float | None]) -> None:
        self.last = deque[str](maxlen=LINES_IN_A_FAILURE)
        self._percent = percent
        self._logger = get_run_logger()
        self._key, self._about = f"progress-{slug}", about
        self._artifact: UUID | None = None
        self._updated = 0.0

    def __call__(self, line: str) -> None:
        if not line.strip():
            return
        self.last.append(line)
        self._logger.info("%s", line)
        percent = self._percent(line)
        # Each update is a request to Prefect's server.
        if percent is not None and time.monotonic() - self._updated >= SECONDS_BETWEEN_UPDATES:
            self._updated = time.monotonic()
            self._show(min(100.0, percent))

    def finish(self) -> None:
        if self._artifact:
            self._show(100.0)

    def _show(self, percent: float) -> None:
        if self._artifact:
            update_progress_artifact(self._artifact, percent)
        else:
            self._artifact = create_progress_artifact(percent, key=self._key, description=self._about)
