"""Registers what prefect.yaml holds on the server at PREFECT_API_URL, and runs it: the worker of `make ui`.

    python -m pipelines.ui.deployments

A process work pool with a worker, and not flows that serve themselves: deployments, schedules that were switched on,
and the history of runs belong to the server, so they outlive the worker; cancelling reaches the worker by an event,
which ends the flow's process, whose supervisors end everything below. Registering again changes parameters and
descriptions, and leaves schedules as they are.

The worker also closes runs and tasks whose process was killed, of which nobody tells the server that they have ended.
Prefect 3.7 marks a flow run as crashed when its worker sees the process end, or when its heartbeats stop; the tasks of
such a run stay "Running" for ever (its service that ends tasks looks at runs that were cancelled, and at no others).
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
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
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
"""Three heartbeats (PREFECT_FLOWS_HEARTBEAT_FREQUENCY is 30 s under `make ui`) and a little."""


def main() -> None:
    """Registers, tells `READY`, and works until it is ended."""
    asyncio.run(_register_and_work())


async def _register_and_work() -> None:
    async with get_client() as client:
        await register(client)
        await close_what_went_away(client)
    print(READY, flush=True)
    # Prefect makes folders in /tmp/runner_storage, which belongs to the first user of the machine, and leaves them.
    tempfile.tempdir = str(state_folder() / "prefect")
    shutil.rmtree(state_folder() / "prefect" / "runner_storage", ignore_errors=True)
    watch = asyncio.create_task(watch_for_lost_runs())
    try:
        await ProcessWorker(work_pool_name=POOL, name=f"{socket.gethostname()}: make ui").start()
    finally:
        watch.cancel()


async def register(client: PrefectClient) -> None:
    """Work pool, deployments, the limit on GPUs, and the automation for crashed flows; what is there is kept."""
    try:
        await client.read_work_pool(POOL)
    except ObjectNotFound:
        await client.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=TEMPLATE))
    else:
        # It may be from a revision that let a run choose its command.
        await client.update_work_pool(POOL, WorkPoolUpdate(base_job_template=TEMPLATE))
    for entry in load_yaml((PROJECT / "prefect.yaml").read_text())["deployments"]:
        await _register_deployment(client, entry)
    if visible_gpus():
        limit = GlobalConcurrencyLimitCreate(name=LIMIT, limit=len(visible_gpus()))
        # A person may have lowered it.
        with suppress(ObjectAlreadyExists):
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
        # Schedules are set once: a person may have switched them on since.
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
    """The flow that `path/of/module.py:name` names."""
    path, _, name = entrypoint.partition(":")
    return getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)


def form(flow: Flow) -> dict[str, Any]:
    """The schema behind the form that starts the flow: parameters in their order, named in words."""
    schema = parameter_schema(flow.fn).model_dump(exclude_unset=True)
    for position, (name, field) in enumerate(schema["properties"].items()):
        field |= {"position": position, "title": name.replace("_", " ").capitalize()}
    return schema


def heartbeat_automation() -> AutomationCore:
    """Marks a flow run as crashed whose heartbeats stop before it has ended."""
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
"""Prefect writes the states of tasks down some seconds late: one whose run has just ended may have ended too."""
WENT_AWAY = "The worker went away while this ran. Run it again: finished stages are skipped, training goes on."
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
            except Exception as error:
                # The worker must go on, whatever this courtesy meets.
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
                # Its end ends its stage too.
                process.terminate()


if __name__ == "__main__":
    run_stage(main)
