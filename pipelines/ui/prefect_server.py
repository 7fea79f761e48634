"""Prefect's server on loopback: `python -m pipelines.ui.prefect_server --port PORT`. Set its login in the environment.

It differs from `prefect server start` in three ways:

- It refuses requests that name another host or come from a page of another site. The login already keeps strangers
  out. The check of the host keeps out pages that point a name of their own at 127.0.0.1 (DNS rebinding).
- `/enter#LOGIN` stores the login in the browser and opens the UI, so a click on the printed link is enough.
- SQLite's caches are bounded. Prefect 3.7 lets each of five connections keep 80 MB of the database in memory (`PRAGMA
  cache_size = 20000`, which no setting changes): up to 400 MB, as its history grows. What is dropped is read again
  from the system's cache of files.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from stages.foundations.errors import UserError
from stages.observe.command import run_stage

HOST = "127.0.0.1"
CACHE_BYTES = 16 * 2**20
"""All connections together."""
ENTER = "/enter"
# The part of an address behind `#` never leaves the browser, so the login is in no log. `replace` drops this page from
# the tab's history. Prefect's UI reads the login from this key of the browser's storage.
_ENTER_PAGE = b"""<!doctype html><meta charset="utf-8"><title>Prefect</title>
<p id="text">The link has no login. Use the one that <code>make ui</code> printed last.</p>
<script>
if (location.hash.length > 1) {
  localStorage.setItem("prefect-password", btoa(decodeURIComponent(location.hash.slice(1))));
  location.replace("/deployments");
}
</script>
"""
# No frame: a page of another port counts as the same site, and could lay a frame under the user's clicks.
_NOT_IN_FRAMES = (b"x-frame-options", b"DENY")


def addresses(port: int) -> list[str]:
    """The addresses under which a browser may show the UI."""
    return [f"http://{HOST}:{port}", f"http://localhost:{port}"]


def refusal(headers: Iterable[tuple[bytes, bytes]], port: int) -> str:
    """Why a request with these headers is refused; "" when it is not."""
    ours = addresses(port)
    hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
    if len(hosts) != 1 or f"http://{hosts[0]}" not in ours:
        return f"Host must be {HOST}:{port} or localhost:{port}. Open {ours[0]}."
    origins = [value.decode("latin-1") for name, value in headers if name == b"origin"]
    if any(origin not in ours for origin in origins):
        return f"Pages of other sites may not use this server. Open {ours[0]}."
    return ""


def guarded(app: Any, port: int) -> Any:
    """An ASGI application that answers what `refusal` refuses with 403, and passes the rest to `app`."""

    async def guard(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await app(scope, receive, send)
        if reason := refusal(scope["headers"], port):
            if scope["type"] == "websocket":
                return await send({"type": "websocket.close", "code": 1008, "reason": reason})
            return await _answer(send, 403, "text/plain", f"{reason}\n".encode())
        if scope["type"] == "http" and scope["path"] == ENTER:
            return await _answer(send, 200, "text/html", _ENTER_PAGE)

        async def send_framed(message: Mapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), _NOT_IN_FRAMES]}
            await send(message)

        return await app(scope, receive, send_framed)

    return guard


async def _answer(send: Any, status: int, kind: str, body: bytes) -> None:
    headers = [
        (b"content-type", f"{kind}; charset=utf-8".encode()),
        (b"cache-control", b"no-store"),
        _NOT_IN_FRAMES,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def bound_sqlite_caches(count: int = CACHE_BYTES) -> None:
    """Holds SQLite's memory in this process under `count` bytes, whatever a connection asks for.

    Above it a page replaces another one, and nothing fails (SQLite, `PRAGMA soft_heap_limit`).
    """
    with sqlite3.connect(":memory:") as connection:
        connection.execute(f"PRAGMA soft_heap_limit = {count}")
    connection.close()


def main() -> None:
    """Serves until it is ended. UserError without a login: then everybody on this machine could start flows."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.ui.prefect_server")
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    if not os.environ.get("PREFECT_SERVER_API_AUTH_STRING"):
        raise UserError("PREFECT_SERVER_API_AUTH_STRING is not set: start the server with `make ui`")
    os.environ["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = ",".join(addresses(port))
    bound_sqlite_caches()
    import pipelines.ui.prefect_home  # noqa: F401 (Prefect reads it when it is imported)

    # isort: split
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import PREFECT_SERVER_LOGGING_LEVEL

    level = PREFECT_SERVER_LOGGING_LEVEL.value().lower()
    uvicorn.run(guarded(create_app(final=True), port), host=HOST, port=port, log_level=level)


if __name__ == "__main__":
    run_stage(main)
