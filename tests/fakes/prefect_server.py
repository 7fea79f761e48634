"""The project's Prefect server for flows that a test calls, without `make ui`."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pipelines.runtime.process_group import end_groups, supervised
from pipelines.ui.guard import draw_login, login_settings
from pipelines.ui.servers import answers
from stages.foundations.machine import PROJECT
from tests.fakes.processes import wait_until
from tests.fakes.running_ui import unused_port


@contextmanager
def prefect_server() -> Iterator[dict[str, str]]:
    """Inside, Prefect in this process uses a server of its own; yields the variables for other processes to use it."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    port, login = unused_port(), draw_login()
    address = f"http://127.0.0.1:{port}/api"
    settings = {
        "PREFECT_UI_ENABLED": "0",
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
        **login_settings(login),
    }
    command = supervised([sys.executable, "-m", "pipelines.ui.prefect_server", "--port", str(port)])
    server = subprocess.Popen(command, cwd=PROJECT, env={**os.environ, **settings}, start_new_session=True)
    try:
        wait_until(lambda: answers(f"{address}/health") or server.poll() is not None)
        with temporary_settings(updates={PREFECT_API_URL: address, PREFECT_API_AUTH_STRING: login}):
            yield {"PREFECT_API_URL": address, "PREFECT_API_AUTH_STRING": login}
            for service in (APILogWorker, EventsWorker):  # what still waits would go to a server that is gone
                waiting = service.drain_all()
                if inspect.isawaitable(waiting):
                    asyncio.run(_finish(waiting))
    finally:
        end_groups([server])


async def _finish(waiting):
    await waiting
