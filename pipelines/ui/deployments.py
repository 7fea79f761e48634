"""Registers what prefect.yaml holds on the server at PREFECT_API_URL, and runs it: the worker of `make ui`.

    python -m pipelines.ui.deployments

A process work pool with a worker, and not flows that serve themselves: deployments, schedules that were switched on,
and the history of runs belong to the server, so they outlive the worker; cancelling reaches the worker by an event,
which ends the flow's process, whose supervisors end everything below. Registering again changes parameters and
descriptions, and leaves schedules as they are.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pipelines.ui.prefect_home  # noqa: F401 (Prefect reads it when it is imported)
from stages.foundations.yaml_text import load_yaml

# isort: split
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
from prefect.client.schemas.objects import ConcurrencyOptions, StateType
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.utilities.callables import parameter_schema
from prefect.workers.process import ProcessWorker

from pipelines.runtime.gpu_slots import LIMIT, visible_gpus
from pipelines.ui.lost_runs import WENT_AWAY, close_what_went_away, watch_for_lost_runs
from pipelines.ui.servers import READY
from stages.foundations.scratch import PROJECT
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
    else:  # it may be from a revision that let a run choose its command
        await client.update_work_pool(POOL, WorkPoolUpdate(base_job_template=TEMPLATE))
    for entry in load_yaml((PROJECT / "prefect.yaml").read_text())["deployments"]:
        await _register_deployment(client, entry)
    if visible_gpus():
        limit = GlobalConcurrencyLimitCreate(name=LIMIT, limit=len(visible_gpus()))
        with suppress(ObjectAlreadyExists):  # a person may have lowered it
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
        await client.create_deployment(
            await client.create_flow(flow), entry["name"], schedules=schedules, **content
        )
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


if __name__ == "__main__":
    run_stage(main)
