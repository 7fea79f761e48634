"""A Prefect server for one flow that is run by hand: it ends with this process, however that ends.

Without PREFECT_API_URL Prefect starts a server as a plain child, which survives when this process is killed.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pipelines.ui.prefect_home  # noqa: F401 (Prefect reads it when it is imported)

# isort: split
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_KEY,
    PREFECT_API_URL,
    PREFECT_CLIENT_CUSTOM_HEADERS,
    PREFECT_UI_URL,
    temporary_settings,
)

from pipelines.runtime.process_group import end_groups, supervised
from pipelines.ui.guard import basic, draw_login, login_settings
from pipelines.ui.servers import SECONDS_TO_START, answers
from stages.foundations.errors import UserError, without_password
from stages.foundations.machine import PROJECT


@contextmanager
def server_in_use() -> Iterator[None]:
    """Inside, Prefect uses the server at PREFECT_API_URL, or a temporary one where that is not set.

    UserError when no server answers, or when it rejects the login: Prefect would report that with a traceback.
    """
    address = PREFECT_API_URL.value()
    if not address:
        with passing_server():
            yield
        return
    request = urllib.request.Request(
        f"{address.rstrip('/')}/admin/version", headers=basic(PREFECT_API_AUTH_STRING.value() or "")
    )
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except OSError as error:
        is_other_login = PREFECT_API_KEY.value() or PREFECT_CLIENT_CUSTOM_HEADERS.value()
        if isinstance(error, urllib.error.HTTPError) and error.code == 401 and not is_other_login:
            raise UserError(
                f"the Prefect server at {without_password(address)} rejects our login: set PREFECT_API_AUTH_STRING "
                "to the login that the server was started with"
            ) from None
        # For other errors (an API key, a certificate), Prefect's client has the better message.
        if isinstance(getattr(error, "reason", None), ConnectionRefusedError | socket.gaierror):
            raise UserError(
                f"no Prefect server answers at {without_password(address)}: start it (`make ui` starts one), "
                "or unset PREFECT_API_URL"
            ) from None
    yield


@contextmanager
def passing_server() -> Iterator[str]:
    """Inside, Prefect in this process uses a separate server with the database under `$PREFECT_HOME`.

    Yields the API's address. UserError when the server does not start; its messages are on standard error.
    """
    with socket.socket() as probe:
        # The system picks a free port. If another process takes it in between, the server reports that.
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}/api"
    command = [sys.executable, "-m", "pipelines.ui.prefect_server", "--port", port]
    login = draw_login()
    # As Prefect starts it: without the pages, and with the few services that a flow needs.
    settings = {
        "PREFECT_UI_ENABLED": "0",
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])),
        **login_settings(login),
    }
    server = subprocess.Popen(supervised(command), env={**os.environ, **settings}, start_new_session=True)
    try:
        _wait(server, f"{address}/health")
        # This server has no pages, so Prefect must not print their addresses.
        ours = {PREFECT_API_URL: address, PREFECT_API_AUTH_STRING: login, PREFECT_UI_URL: ""}
        with temporary_settings(updates=ours):
            try:
                yield address
            finally:
                # After a failure too, or Prefect retries for a minute at the end of this process.
                asyncio.run(_send_what_waits())
    finally:
        end_groups([server])


def _wait(server: subprocess.Popen, address: str) -> None:
    until = time.monotonic() + SECONDS_TO_START
    while server.poll() is None and time.monotonic() < until:
        if answers(address):
            return
        time.sleep(0.2)
    raise UserError(
        f"Prefect's server did not start within {SECONDS_TO_START:.0f} s: read its lines above, or start one with "
        "`make ui` and name it: PREFECT_API_URL=http://127.0.0.1:4200/api"
    )


async def _send_what_waits() -> None:
    """Logs and events are sent in batches, and would go to a server that is gone."""
    for service in (APILogWorker, EventsWorker):
        waiting = service.drain_all()
        if inspect.isawaitable(waiting):
            await waiting
