"""Prefect's server: SQLite's memory and its locks, who may send requests, and the login."""

import asyncio
import os
import sqlite3
import subprocess
import sys

import pytest

from pipelines.runtime.process_group import environment
from pipelines.ui.guard import basic, draw_login, forget_login, guarded, keep_login, kept_login, login_settings, refusal
from pipelines.ui.prefect_server import CACHE_BYTES
from pipelines.ui.servers import prefect_command
from stages.foundations.machine import PROJECT

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
    """Makes a database with 16 MB in rows."""
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


def test_make_ui_starts_prefects_server_on_loopback_with_the_bound_and_the_origins():
    limit = "import sqlite3; print(*sqlite3.connect(':memory:').execute('PRAGMA soft_heap_limit').fetchone())"
    code = "import sys, uvicorn, pipelines.ui.prefect_server as ours\n"
    code += f"def run(app, host, port, log_level):\n    {limit}\n    print(host, port)\n"
    code += "    from prefect.settings import PREFECT_SERVER_CORS_ALLOWED_ORIGINS as origins\n"
    code += "    print(origins.value())\n"
    code += "uvicorn.run = run\nours.main()"
    module, *flags = prefect_command(4321)[1:]
    own = {**os.environ, "PREFECT_SERVER_API_AUTH_STRING": "retrace:word"}
    done = subprocess.run([sys.executable, "-c", code, *flags], capture_output=True, text=True, check=True, env=own)
    assert (module, done.stdout.splitlines()) == (
        "pipelines.ui.prefect_server",
        [str(CACHE_BYTES), "127.0.0.1 4321", "http://127.0.0.1:4321,http://localhost:4321"],
    )


WRITES = """
import asyncio
import sqlalchemy as sa
from pipelines.ui.prefect_server import take_write_locks_first
take_write_locks_first()
from prefect.server.database import provide_database_interface
db = provide_database_interface()
SELECT, INSERT = sa.text("SELECT count(*) FROM polled"), sa.text("INSERT INTO polled VALUES (1)")

async def write():
    async with db.session_context(begin_transaction=True) as session:
        await session.execute(INSERT)

async def main():
    async with db.session_context() as session:
        await session.execute(sa.text("CREATE TABLE polled (at INTEGER)"))
    async with db.session_context(begin_transaction=True) as session:
        await session.execute(SELECT)
        other = asyncio.create_task(write())
        # Without the fix the other one has written when this ends; with it, it waits for this one.
        await asyncio.wait([other], timeout=1)
        async with db.session_context() as reader:
            await reader.execute(SELECT)
        await session.execute(INSERT)
    await other
    async with db.session_context() as session:
        print(await session.scalar(SELECT))

asyncio.run(main())
"""


def test_a_transaction_that_reads_and_then_writes_is_not_refused(tmp_path):
    own = {"PREFECT_HOME": str(tmp_path), "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{tmp_path}/db"}
    done = subprocess.run(
        [sys.executable, "-c", WRITES], capture_output=True, text=True, env={**os.environ, **own}, cwd=PROJECT
    )
    assert done.stdout == "2\n", done.stderr[-2000:]


def test_it_does_not_start_without_a_login():
    without = {name: value for name, value in os.environ.items() if name != "PREFECT_SERVER_API_AUTH_STRING"}
    command = [sys.executable, "-m", "pipelines.ui.prefect_server", "--port", "4321"]
    done = subprocess.run(command, capture_output=True, text=True, env=without, cwd=PROJECT)
    assert done.returncode == 2 and "PREFECT_SERVER_API_AUTH_STRING is not set" in done.stderr


OURS = (b"host", b"127.0.0.1:4200")
OTHER_ORIGIN = (b"origin", b"http://evil.example")


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"host": "127.0.0.1:4200"}, ""),
        ({"host": "localhost:4200", "origin": "http://localhost:4200"}, ""),
        ({"host": "127.0.0.1:4200", "origin": "http://localhost:4200"}, ""),
        ({}, "Host must be 127.0.0.1:4200"),
        ({"host": "evil.example:4200"}, "Host must be"),
        ({"host": "127.0.0.1.evil.example:4200"}, "Host must be"),
        ({"host": "127.0.0.1:4201"}, "Host must be"),
        ({"host": "0.0.0.0:4200"}, "Host must be"),
        ({"host": "127.0.0.1:4200@evil.example"}, "Host must be"),
        ({"host": "127.0.0.1:4200", "origin": "null"}, "Pages of other sites"),
        ({"host": "127.0.0.1:4200", "origin": "https://127.0.0.1:4200"}, "Pages of other sites"),
        ({"host": "127.0.0.1:4200", "origin": "http://127.0.0.1:4200.evil.example"}, "Pages of other sites"),
        ({"host": "127.0.0.1:4200", "origin": ""}, "Pages of other sites"),
        ({"host": "127.0.0.1:4200", "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, ""),
        ({"host": "127.0.0.1:4200", "sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, ""),
        ({"host": "127.0.0.1:4200", "sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"}, ""),
        ({"host": "127.0.0.1:4200", "sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, "Pages of"),
        ({"host": "127.0.0.1:4200", "sec-fetch-site": "cross-site"}, "Pages of other sites"),
        # Two hosts or two origins.
        ([OURS, (b"host", b"evil.example")], "Host must be"),
        ([(b"host", b"evil.example"), OURS], "Host must be"),
        ([OURS, (b"origin", b"http://127.0.0.1:4200"), OTHER_ORIGIN], "Pages of other sites"),
    ],
)
def test_requests_must_name_our_host_and_come_from_our_pages(headers, reason):
    pairs = headers if isinstance(headers, list) else [(name.encode(), one.encode()) for name, one in headers.items()]
    found = refusal(pairs, 4200, "GET")
    assert found.startswith(reason) and bool(found) == bool(reason)


@pytest.mark.parametrize(
    ("site", "method", "is_accepted"),
    [
        ("cross-site", "GET", True),
        ("cross-site", "POST", False),
        ("same-site", "PUT", False),
        ("same-origin", "POST", True),
        ("none", "POST", True),
    ],
)
def test_another_site_may_lead_here_by_a_link_but_not_by_a_form(site, method, is_accepted):
    headers = [OURS, (b"sec-fetch-site", site.encode()), (b"sec-fetch-mode", b"navigate")]
    assert (refusal(headers, 4200, method) == "") is is_accepted


def test_no_run_chooses_its_command_environment_or_folder():
    """Checks what Prefect's worker makes of the project's template and of a run's variables."""
    from prefect.client.schemas.objects import FlowRun
    from prefect.workers.process import ProcessJobConfiguration

    from pipelines.ui.deployments import TEMPLATE

    hostile = {
        "command": "touch made",
        "env": {"LD_PRELOAD": "hostile.so"},
        "env.PYTHONPATH": "hostile",
        "working_dir": "hostile",
        "name": "{{ command }}",
        "labels": {"a": "b"},
    }

    async def made():
        found = await ProcessJobConfiguration.from_template_and_values(TEMPLATE, hostile, client=object())
        found.prepare_for_flow_run(FlowRun(flow_id="00000000-0000-0000-0000-000000000000"))
        return found

    found = asyncio.run(made())
    assert found.command.split()[1:] == ["-m", "prefect.engine"] and found.working_dir == PROJECT
    assert found.env.get("LD_PRELOAD") == os.environ.get("LD_PRELOAD")
    assert found.env.get("PYTHONPATH") == os.environ.get("PYTHONPATH")


def test_the_login_belongs_to_one_address_and_to_one_reader(tmp_path):
    api, login = "http://127.0.0.1:4200/api", draw_login()
    assert kept_login(api, tmp_path) == "" and login != draw_login()
    for one in ("retrace:old", login):
        keep_login(tmp_path, api, one)
    (path,) = (tmp_path / "prefect").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert kept_login(f"{api}/", tmp_path) == login and kept_login("http://127.0.0.1:4201/api", tmp_path) == ""
    forget_login(tmp_path)
    assert kept_login(api, tmp_path) == "" and basic("") == {}


def test_stages_do_not_get_the_login(monkeypatch):
    for name in login_settings("retrace:word"):
        monkeypatch.setenv(name, "retrace:word")
    assert "retrace:word" not in environment().values()


@pytest.mark.parametrize(
    ("login", "path", "sent", "status"),
    [
        ("me:word", "/", "me:word", 200),
        ("me:word", "/", "me:guess", 401),
        ("me:word", "/", "", 401),
        ("me:word", "/health", "", 200),
        ("me:word", "/enter", "", 200),
        ("", "/", "", 200),  # the application checks it
    ],
)
def test_the_guard_asks_for_the_login_where_it_is_given_one(login, path, sent, status):
    framed = {"type": "http.response.start", "status": 200, "headers": [(b"X-Frame-Options", b"ALLOWALL")]}
    said = answers_of_the_guard({"type": "http", "path": path}, login, sent, framed)
    assert said[0]["status"] == status
    frames = [value for name, value in said[0]["headers"] if name.lower() == b"x-frame-options"]
    assert frames == [b"SAMEORIGIN"]


def test_the_guard_closes_sockets_without_the_login():
    for sent, answer in (("me:word", "websocket.accept"), ("me:guess", "websocket.close")):
        scope = {"type": "websocket", "path": "/"}
        (said,) = answers_of_the_guard(scope, "me:word", sent, {"type": "websocket.accept"})
        assert said["type"] == answer


def answers_of_the_guard(scope, login, sent, message):
    """Returns the answers to a client that sends this login, if the application behind the guard sends the message."""

    async def app(scope, receive, send):
        await send(message)

    said = []

    async def keep(message):
        said.append(message)

    headers = [(b"host", b"127.0.0.1:4200")]
    headers += [(name.lower().encode(), value.encode()) for name, value in basic(sent).items()]
    asyncio.run(guarded(app, 4200, "", login)({**scope, "headers": headers}, None, keep))
    return said
