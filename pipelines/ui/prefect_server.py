"""Prefect's server on loopback: `python -m pipelines.ui.prefect_server --port PORT`. Set its login in the environment.

It differs from `prefect server start` in three ways:

- It is behind the guard (`guard.py`): only this host and its pages have access, and `/enter#LOGIN` logs in by a click.
- SQLite's caches are bounded. Prefect 3.7 lets each of five connections keep 80 MB of the database in memory: up to 400
  MB, as its history grows. No setting changes this (`PRAGMA cache_size = 20000`). Dropped pages are read again from the
  system's file cache.
- Transactions take SQLite's write lock when they begin. Prefect 3.7 begins them deferred, and many read before they
  write. SQLite refuses that write at once, without its timeout, when another connection has written since: "database
  is locked" at each poll of the worker (PrefectHQ/prefect#23051).
"""

from __future__ import annotations

import argparse
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pipelines.ui.guard import HOST, addresses, guarded
from stages.foundations.errors import UserError
from stages.observe.command import run_stage
from stages.observe.quick_imports import quick_imports

CACHE_BYTES = 16 * 2**20
"""For all connections together."""
# Prefect's UI reads the login from this key of the browser's storage.
_ENTER = """
localStorage.setItem("prefect-password", btoa(login));
location.replace("/deployments");
"""


def bound_sqlite_caches(count: int = CACHE_BYTES) -> None:
    """Limits SQLite's memory in this process to `count` bytes, even if a connection requests more.

    Above the limit a new page replaces an old one, and nothing fails (SQLite, `PRAGMA soft_heap_limit`).
    """
    with sqlite3.connect(":memory:") as connection:
        connection.execute(f"PRAGMA soft_heap_limit = {count}")
    connection.close()


def take_write_locks_first() -> None:
    """Makes all transactions of Prefect's server in this process begin with `BEGIN IMMEDIATE`.

    One that is begun while another writes waits for it, up to `PRAGMA busy_timeout` (60 s). Reads outside transactions
    do not wait. Other databases than SQLite are not affected.
    """
    from prefect.server.database.configurations import SQLITE_BEGIN_MODE, AioSqliteConfiguration

    @asynccontextmanager
    async def begin_transaction(self: Any, session: Any, with_for_update: bool = False) -> AsyncIterator[Any]:
        async with session.begin() as transaction:
            token = SQLITE_BEGIN_MODE.set("IMMEDIATE")
            try:
                await session.connection()
            finally:
                # Sessions that only read inside this block would inherit the mode, and wait for the block's own lock.
                SQLITE_BEGIN_MODE.reset(token)
            yield transaction

    AioSqliteConfiguration.begin_transaction = begin_transaction


def main() -> None:
    """Serves until it is ended. UserError without a login: then every user of this machine could start flows."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.ui.prefect_server")
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    if not os.environ.get("PREFECT_SERVER_API_AUTH_STRING"):
        raise UserError("PREFECT_SERVER_API_AUTH_STRING is not set: start the server with `make ui`")
    os.environ["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = ",".join(addresses(port))
    bound_sqlite_caches()
    import pipelines.ui.prefect_home  # noqa: F401 (Prefect reads it when it is imported)

    # isort: split
    with quick_imports():
        import uvicorn

        take_write_locks_first()
        from prefect.server.api.server import create_app
        from prefect.settings import PREFECT_SERVER_LOGGING_LEVEL

    level = PREFECT_SERVER_LOGGING_LEVEL.value().lower()
    uvicorn.run(guarded(create_app(final=True), port, _ENTER), host=HOST, port=port, log_level=level)


if __name__ == "__main__":
    run_stage(main)
