"""A Prefect server for tests that dies with them, however they end.

`prefect_test_harness` starts one as a plain child, which lives on when pytest is killed.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.process_group import end_groups, kept
from tests.fakes.running_ui import unused_port, wait_until


@contextmanager
def prefect_server(home: Path) -> Iterator[str]:
    """Serves from a new database under `home`, and Prefect in this process talks to it; yields the API's address."""
    import prefect
    from prefect.settings import PREFECT_API_URL, temporary_settings

    port = unused_port()
    address = f"http://127.0.0.1:{port}/api"
    command = [sys.executable, "-m", "uvicorn", "--app-dir", prefect.__module_path__.parent, "--factory",
               "prefect.server.api.server:create_app", "--port", port, "--log-level", "error"]  # fmt: skip
    database = f"sqlite+aiosqlite:///{home / 'prefect.db'}"
    settings = {"PREFECT_HOME": str(home), "PREFECT_API_DATABASE_CONNECTION_URL": database, "PREFECT_UI_ENABLED": "0",
                "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT__SERVER_EPHEMERAL": "1",
                "PREFECT__SERVER_FINAL": "1"}  # fmt: skip
    server = subprocess.Popen(kept(command), env={**os.environ, **settings}, start_new_session=True)
    try:
        wait_until(lambda: _answers(server, f"{address}/health"), 120)
        with temporary_settings(updates={PREFECT_API_URL: address}):
            yield address
            asyncio.run(_send_what_waits())
    finally:
        end_groups([server])


def _answers(server: subprocess.Popen, address: str) -> bool:
    assert server.poll() is None, "the server has ended"
    try:
        return urllib.request.urlopen(address, timeout=2).status == 200
    except OSError:  # not yet
        return False


async def _send_what_waits() -> None:
    """Logs and events go in batches, and would be sent to a server that is gone."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for service in (APILogWorker, EventsWorker):
        waiting = service.drain_all()
        if inspect.isawaitable(waiting):
            await waiting
