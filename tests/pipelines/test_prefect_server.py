"""The bound on SQLite's memory in Prefect's server."""

import sqlite3
import subprocess
import sys

import pytest

from pipelines.ui.prefect_server import CACHE_BYTES
from pipelines.ui.servers import prefect_command

READS = """
import sqlite3, sys
import psutil
from pipelines.ui.prefect_server import bound_sqlite_caches
if sys.argv[2] != "none":
    bound_sqlite_caches(int(sys.argv[2]))
before = psutil.Process().memory_info().rss
connections = []
for _ in range(3):
    connections.append(sqlite3.connect(sys.argv[1]))
    connections[-1].execute("PRAGMA cache_size = 20000")
    rows = connections[-1].execute("SELECT count(*), sum(length(text)) FROM log").fetchone()
print(psutil.Process().memory_info().rss - before, *rows)
"""


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """16 MB in rows."""
    path = tmp_path_factory.mktemp("sqlite") / "prefect.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE log (text TEXT)")
        connection.executemany("INSERT INTO log VALUES (?)", [("x" * 1000,)] * 16_000)
    connection.close()
    return path


def test_connections_share_a_bound_that_none_asked_for(database):
    def read(bound):
        command = [sys.executable, "-c", READS, str(database), str(bound)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        grown, *rows = map(int, done.stdout.split())
        assert rows == [16_000, 16_000_000]
        return grown

    assert read("none") > 40e6 > 10e6 > read(4 * 2**20)


def test_make_ui_starts_prefects_server_with_the_bound():
    limit = "import sqlite3; print(*sqlite3.connect(':memory:').execute('PRAGMA soft_heap_limit').fetchone())"
    code = "import sys, prefect.cli, pipelines.ui.prefect_server as ours\n"
    code += f"def app():\n    {limit}\n    print(*sys.argv[1:])\n"
    code += "prefect.cli.app = app\nours.main()"
    module, *flags = prefect_command(4321)[1:]
    done = subprocess.run([sys.executable, "-c", code, *flags], capture_output=True, text=True, check=True)
    assert (module, done.stdout.splitlines()) == (
        "pipelines.ui.prefect_server",
        [str(CACHE_BYTES), "server start --host 127.0.0.1 --port 4321"],
    )
