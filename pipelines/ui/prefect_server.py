"""Prefect's server with a bound on SQLite's caches: `python -m pipelines.ui.prefect_server --host HOST --port PORT`.

Prefect 3.7 lets each of five connections keep 80 MB of the database in memory (`PRAGMA cache_size = 20000`, which no
setting changes): up to 400 MB, as its history grows. What is dropped is read again from the system's cache of files.
"""

from __future__ import annotations

import sqlite3
import sys

CACHE_BYTES = 16 * 2**20
"""All connections together."""


def bound_sqlite_caches(count: int = CACHE_BYTES) -> None:
    """Holds SQLite's memory in this process under `count` bytes, whatever a connection asks for.

    Above it a page replaces another one, and nothing fails (SQLite, `PRAGMA soft_heap_limit`).
    """
    with sqlite3.connect(":memory:") as connection:
        connection.execute(f"PRAGMA soft_heap_limit = {count}")
    connection.close()


def main() -> None:
    """`prefect server start` with the flags of this command."""
    bound_sqlite_caches()
    import pipelines.ui.prefect_home  # noqa: F401 (Prefect reads it when it is imported)

    # isort: split
    from prefect.cli import app

    sys.argv[1:1] = ["server", "start"]
    app()


if __name__ == "__main__":
    main()
