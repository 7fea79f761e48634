"""Runs and tasks of which nobody tells the server that they have ended: their process was killed.

Prefect 3.7 marks a flow run as crashed when its worker sees the process end, or when its heartbeats stop; the tasks of
such a run stay "Running" for ever (its service that ends tasks looks at runs that were cancelled, and at no others).
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psutil

import pipelines.ui.prefect_home  # noqa: F401 (Prefect reads it when it is imported)

# isort: split
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterTags,
    FlowRunFilter,
    FlowRunFilterEndTime,
    TaskRunFilter,
)
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed

from pipelines.ui.ended_runs import TAG

SECONDS_BETWEEN_LOOKS = 10.0
SECONDS_TO_SETTLE = 20.0
"""Prefect writes the states of tasks down some seconds late: one whose run has just ended may have ended too."""
WENT_AWAY = (
    "The worker went away while this ran. Run it again: finished stages are skipped, training goes on."
)
LOST = "The run of this task ended without it. Run it again: finished stages are skipped, training goes on."
# Prefect 3.7: a filter of tasks refuses a state without a name, one of flow runs does not.
GOING = {"type": {"any_": [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]}, "name": None}


async def close_what_went_away(client: PrefectClient) -> None:
    """Ends runs of our deployments that the server still believes to run: their worker, which we replace, is gone.

    So are tasks of runs that have ended: a flow that is killed, or ended in haste, tells nothing of its tasks.
    """
    ours = DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG]))
    tasks = await client.read_task_runs(task_run_filter=TaskRunFilter(state=GOING), deployment_filter=ours)
    for task in tasks:
        await client.set_task_run_state(task.id, Crashed(message=WENT_AWAY), force=True)
    runs = await client.read_flow_runs(flow_run_filter=FlowRunFilter(state=GOING), deployment_filter=ours)
    for run in runs:
        end = Cancelled() if run.state_type == StateType.CANCELLING else Crashed(message=WENT_AWAY)
        await client.set_flow_run_state(run.id, end, force=True)


async def watch_for_lost_runs() -> None:
    """Ends lost tasks and deleted runs again and again, until it is cancelled; a server that does not answer is asked
    the next time."""
    asked: set[int] = set()
    async with get_client() as client:
        while True:
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
            try:
                await close_lost_tasks(client, SECONDS_TO_SETTLE)
                await end_deleted_runs(client, asked)
            except Exception as error:  # the worker must go on, whatever this courtesy meets
                logging.getLogger(__name__).warning("lost runs could not be looked for: %s", error)


async def close_lost_tasks(client: PrefectClient, settle_seconds: float) -> int:
    """Marks as crashed what still runs of flow runs that ended `settle_seconds` ago; returns how many tasks.

    All of the server's runs count, those that a person started without a deployment too.
    """
    ended = FlowRunFilterEndTime(before_=datetime.now(UTC) - timedelta(seconds=settle_seconds))
    tasks = await client.read_task_runs(
        task_run_filter=TaskRunFilter(state=GOING), flow_run_filter=FlowRunFilter(end_time=ended)
    )
    for task in tasks:
        await client.set_task_run_state(task.id, Crashed(message=LOST), force=True)
    return len(tasks)


async def end_deleted_runs(client: PrefectClient, asked: set[int]) -> None:
    """Ends this worker's flows whose run was deleted: Prefect lets them run on, and nobody could cancel them.

    `asked` holds the processes that were asked to end before: a second signal would interrupt their clearing up.
    """
    for process in psutil.Process().children():
        with suppress(psutil.Error):
            run = process.environ().get("PREFECT__FLOW_RUN_ID")
            try:
                if run and process.pid not in asked:
                    await client.read_flow_run(UUID(run))
            except ObjectNotFound:
                asked.add(process.pid)
                process.terminate()  # which ends its stage too
