"""Registers the deployments of prefect.yaml on the server at PREFECT_API_URL, and runs them: the worker of `make ui`.

    python -m pipelines.ui.deployments

A process work pool with a worker is used, not flows that serve themselves. Deployments, schedules that were switched
on, and the history of runs belong to the server, so they outlive the worker. Cancelling sends the worker an event,
which ends the flow's process, whose supervisors end everything below. Registering again changes parameters and
descriptions, and keeps schedules.

The worker also closes runs and tasks whose process was killed, because the server does not notice their end. Prefect
3.7 marks a flow run as crashed when its worker sees the process end, or when its heartbeats stop. The tasks of such a
run stay "Running" for ever (the service that ends tasks looks only at cancelled runs).
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import shutil
import socket
import tempfile
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pipelines.ui.prefect_home  # noqa: F401 (Prefect reads it when it is imported)

# isort: split
import psutil
from prefect import Flow
from prefect.automations import AutomationCore, ChangeFlowRunState, EventTrigger, Posture
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import (
    DeploymentScheduleCreate,
    DeploymentUpdate,
    GlobalConcurrencyLimitCreate,
    WorkPoolCreate,
    WorkPoolUpdate,
)
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterTags,
    FlowRunFilter,
    FlowRunFilterEndTime,
    TaskRunFilter,
)
from prefect.client.schemas.objects import ConcurrencyOptions, StateType
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed
from prefect.utilities.callables import parameter_schema
from prefect.workers.process import ProcessWorker

from pipelines.runtime.machine import LIMIT, visible_gpus
from pipelines.ui.servers import READY, TAG
from stages.foundations.files import load_yaml
from stages.foundations.machine import PROJECT, state_folder
from stages.observe.command import run_stage

POOL = "retrace"
AUTOMATION = "retrace: runs whose heartbeat stops are marked as crashed"
# A run's variables cannot choose its command, environment or folder, so starting a run never starts another program.
# Prefect's template for a process pool lets each run set all three.
TEMPLATE = {
    "job_configuration": {"working_dir": str(PROJECT), "stream_output": True},
    "variables": {"type": "object", "properties": {}, "additionalProperties": False},
}
SECONDS_OF_SILENCE = 100
"""Slightly more than three heartbeats (PREFECT_FLOWS_HEARTBEAT_FREQUENCY is 30 s under `make ui`)."""


def main() -> None:
    """Registers, prints `READY`, and works until it is ended."""
    asyncio.run(_register_and_work())


async def _register_and_work() -> None:
    async with get_client() as client:
        await register(client)
        await close_what_went_away(client)
    print(READY, flush=True)
    # Prefect makes folders in /tmp/runner_storage, which belongs to the machine's first user, and leaves them there.
    tempfile.tempdir = str(state_folder() / "prefect")
    shutil.rmtree(state_folder() / "prefect" / "runner_storage", ignore_errors=True)
    watch = asyncio.create_task(watch_for_lost_runs())
    try:
        await ProcessWorker(work_pool_name=POOL, name=f"{socket.gethostname()}: make ui").start()
    finally:
        watch.cancel()


async def register(client: PrefectClient) -> None:
    """Creates work pool, deployments, GPU limit, and the automation for crashed flows; keeps existing ones."""
    try:
        await client.read_work_pool(POOL)
    except ObjectNotFound:
        await client.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=TEMPLATE))
    else:
        # An existing pool may be from a revision that let a run choose its command.
        await client.update_work_pool(POOL, WorkPoolUpdate(base_job_template=TEMPLATE))
    for entry in load_yaml((PROJECT / "prefect.yaml").read_text())["deployments"]:
        await _register_deployment(client, entry)
    if visible_gpus():
        try:
            # A user may have lowered the limit. Creating it again would be an error in the server's log.
            await client.read_global_concurrency_limit_by_name(LIMIT)
        except ObjectNotFound:
            limit = GlobalConcurrencyLimitCreate(name=LIMIT, limit=len(visible_gpus()))
            await client.create_global_concurrency_limit(limit)
    if not await client.read_automations_by_name(AUTOMATION):
        await client.create_automation(heartbeat_automation())


async def _register_deployment(client: PrefectClient, entry: dict[str, Any]) -> None:
    flow = load_flow(entry["entrypoint"])
    limit = entry["concurrency_limit"]
    content = {
        "description": flow.description,
        "tags": entry["tags"],
        "parameters": entry.get("parameters", {}),
        "entrypoint": entry["entrypoint"],
        "concurrency_limit": limit["limit"],
        "concurrency_options": ConcurrencyOptions(collision_strategy=limit["collision_strategy"]),
        "parameter_openapi_schema": form(flow),
        "enforce_parameter_schema": True,
        "work_pool_name": POOL,
        "job_variables": {},
        "pull_steps": [{"prefect.deployments.steps.set_working_directory": {"directory": str(PROJECT)}}],
    }
    try:
        # Schedules are set once: a user may have switched them on since.
        existing = await client.read_deployment_by_name(f"{flow.name}/{entry['name']}")
    except ObjectNotFound:
        schedules = [
            DeploymentScheduleCreate(
                schedule=CronSchedule(cron=one["cron"], timezone=one["timezone"]),
                active=one["active"],
                slug=one["slug"],
            )
            for one in entry["schedules"]
        ]
        await client.create_deployment(await client.create_flow(flow), entry["name"], schedules=schedules, **content)
    else:
        await client.update_deployment(existing.id, DeploymentUpdate(**content))


def load_flow(entrypoint: str) -> Flow:
    """Returns the flow that `path/of/module.py:name` names."""
    path, _, name = entrypoint.partition(":")
    return getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)


def form(flow: Flow) -> dict[str, Any]:
    """Returns the schema behind the form that starts the flow: its parameters in order, with readable names."""
    schema = parameter_schema(flow.fn).model_dump(exclude_unset=True)
    for position, (name, field) in enumerate(schema["properties"].items()):
        field |= {"position": position, "title": name.replace("_", " ").capitalize()}
    return schema


def heartbeat_automation() -> AutomationCore:
    """Marks a flow run as crashed if its heartbeats stop before it has ended."""
    beat, ended = "prefect.flow-run.heartbeat", ("Completed", "Failed", "Cancelled", "Crashed")
    trigger = EventTrigger(
        after={beat},
        expect={beat, *(f"prefect.flow-run.{state}" for state in ended)},
        match={"prefect.resource.id": ["prefect.flow-run.*"]},
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=SECONDS_OF_SILENCE),
    )
    action = ChangeFlowRunState(state=StateType.CRASHED, message=f"No heartbeat. {WENT_AWAY}")
    return AutomationCore(name=AUTOMATION, trigger=trigger, actions=[action])


SECONDS_BETWEEN_LOOKS = 10.0
SECONDS_TO_SETTLE = 20.0
"""Prefect stores task states some seconds late: a task whose run has just ended may have ended too."""
WENT_AWAY = "The worker ended while this ran. Run it again: finished stages are skipped, training resumes."
LOST = "The run of this task ended without it. Run it again: finished stages are skipped, training resumes."
# Prefect 3.7: a filter of tasks rejects a state without a name, a filter of flow runs does not.
GOING = {"type": {"any_": [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]}, "name": None}


async def close_what_went_away(client: PrefectClient) -> None:
    """Ends runs of our deployments that the server still shows as running: this worker replaces theirs, which is gone.

    The same goes for tasks of ended runs: a flow that is killed, or ends in a hurry, does not report its tasks.
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
    """Ends lost tasks and deleted runs repeatedly, until it is cancelled; after a failed request it tries again the
    next time."""
    asked: set[int] = set()
    async with get_client() as client:
        while True:
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
            try:
                await close_lost_tasks(client, SECONDS_TO_SETTLE)
                await end_deleted_runs(client, asked)
            except Exception as error:
                # The worker must continue after any error here.
                logging.getLogger(__name__).warning("the search for lost runs failed: %s", error)


async def close_lost_tasks(client: PrefectClient, settle_seconds: float) -> int:
    """Marks unfinished tasks as crashed if their flow run ended `settle_seconds` ago; returns their number.

    This covers all runs on the server, including those that a user started without a deployment.
    """
    ended = FlowRunFilterEndTime(before_=datetime.now(UTC) - timedelta(seconds=settle_seconds))
    tasks = await client.read_task_runs(
        task_run_filter=TaskRunFilter(state=GOING), flow_run_filter=FlowRunFilter(end_time=ended)
    )
    for task in tasks:
        await client.set_task_run_state(task.id, Crashed(message=LOST), force=True)
    return len(tasks)


async def end_deleted_runs(client: PrefectClient, asked: set[int]) -> None:
    """Ends this worker's flows whose run was deleted: Prefect lets them continue, and no user could cancel them.

    `asked` holds the processes that have already got a signal: a second one would interrupt their cleanup.
    """
    for process in psutil.Process().children():
        with suppress(psutil.Error):
            run = process.environ().get("PREFECT__FLOW_RUN_ID")
            try:
                if run and process.pid not in asked:
                    await client.read_flow_run(UUID(run))
            except ObjectNotFound:
                asked.add(process.pid)
                # When the flow ends, its stage ends too.
                process.terminate()


if __name__ == "__main__":
    run_stage(main)
