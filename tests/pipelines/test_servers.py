"""Real `make ui`, started twice: deployments, the form in Chromium, cancel, retraining, and state after a restart."""

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from pipelines.runtime.locks import refusing_lock
from pipelines.runtime.process_group import end_groups
from pipelines.ui.guard import ENTER, basic
from pipelines.ui.servers import (
    MESSAGE,
    READY,
    error_reports,
    going_runs,
    is_ready,
    log_path,
    main,
    port,
    shorten_logs,
    start,
    tell_ended,
)
from stages.foundations.errors import UserError
from stages.foundations.machine import state_folder
from tests.fakes.file_server import answering
from tests.fakes.mini_retraining import held_out, make_project, write_rows
from tests.fakes.processes import PATIENCE_SECONDS, assert_all_end, assert_becomes, those_with, wait_until
from tests.fakes.running_ui import RunningUi, unused_port

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
slow = [pytest.mark.slow, pytest.mark.timeout(3000)]


def test_a_port_in_use_is_refused_with_the_remedy(monkeypatch):
    with socket.socket() as taken:
        number = unused_port()
        taken.bind(("127.0.0.1", number))
        taken.listen()
        monkeypatch.setenv("PREFECT_PORT", str(number))
        with pytest.raises(UserError, match=rf"port {number} .* make ui PREFECT_PORT={number + 1}"):
            port("PREFECT_PORT", 4200)
    assert port("PREFECT_PORT", 4200) == number


@pytest.mark.parametrize("text", ["http", "0", "70000"])
def test_what_is_no_port_is_refused(monkeypatch, text):
    monkeypatch.setenv("MLFLOW_PORT", text)
    with pytest.raises(UserError, match=f"MLFLOW_PORT={text} is no port number"):
        port("MLFLOW_PORT", 5000)


def test_runs_are_told_to_a_server_and_one_that_is_gone_costs_nothing():
    asked, logins = [], set()

    def answer(request, body):
        logins.add(request.headers["Authorization"])
        asked.append((request.path, json.loads(body)))
        return 200, b'[{"id": "a"}, {"id": "b"}]'

    with answering(answer) as address:
        api = f"{address}/api"
        tell_ended(api, "me:word", going_runs(api, "me:word"))
    assert logins == {"Basic bWU6d29yZA=="}
    assert [path for path, _ in asked] == ["/api/flow_runs/filter", *(f"/api/flow_runs/{n}/set_state" for n in "ab")]
    assert asked[0][1]["deployments"] == {"tags": {"all_": ["retrace"]}}
    assert asked[1][1]["force"] and "Start it and run this again" in asked[1][1]["state"]["message"]
    assert going_runs(api, "") == []
    tell_ended(api, "", ["a"])


def test_a_second_one_on_the_same_databases_is_refused(monkeypatch):
    with refusing_lock(state_folder() / "locks" / "ui", "held"), pytest.raises(UserError, match="another `make ui`"):
        main()


NOISY = """
import pathlib, sys, time
print(sys.argv[1], "x" * 3000, flush=True)
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.05)
print("after", flush=True)
time.sleep(600)
"""


def test_a_log_that_grows_is_cut_while_its_process_writes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("RETRACE_STATE", str(tmp_path))
    (tmp_path / "logs").mkdir()
    process = start("worker", ["-c", NOISY, READY, str(tmp_path / "go")], dict(os.environ))
    log, before = tmp_path / "logs" / "worker.log", tmp_path / "logs" / "worker.before.log"
    try:
        wait_until(lambda: log.stat().st_size > 3000)
        shorten_logs(tmp_path, ["worker"], longest=10_000)
        assert not before.exists()
        shorten_logs(tmp_path, ["worker"], longest=3000)
        assert "x" * 3000 in before.read_text() and log.stat().st_size < 1000
        (tmp_path / "go").touch()
        wait_until(lambda: "after" in log.read_text())
        lines = log.read_bytes().splitlines()
        assert lines[-1] == b"after" and is_ready(), "and it is still known that the worker came so far"
    finally:
        end_groups([process])


def test_errors_of_a_log_are_told_at_the_first_and_when_they_have_doubled(tmp_path):
    log = tmp_path / "prefect.log"
    log.write_text("07:36:14.081 | WARNING | prefect - no ERROR\n")
    reports = error_reports(log)

    def told(text):
        with open(log, "a") as file:
            file.write(text)
        return next(reports).rpartition(" has ")[2]

    assert told("") == ""
    assert told("07:36:32.367 | ERROR   | docket - loc") == "", "the line is not finished"
    assert told("ked\nTraceback\n") == "1 error, the last: docket - locked"
    assert told("ERROR:    Exception in ASGI application\n") == "2 errors, the last: Exception in ASGI application"
    assert told("2026/11/29 07:35:25 ERROR mlflow.store: third\n") == ""
    os.truncate(log, 0)
    assert told("ERROR: fourth\n") == "4 errors, the last: fourth"


# Headers of a request to a server of the UI on a port, and a run's variables; {} is a file that must not be made.
ATTACKS = {
    "no login": lambda login, port: ({}, {}),
    "a wrong login": lambda login, port: (basic("retrace:guess"), {}),
    "another host": lambda login, port: ({"Host": "evil.example", **basic(login)}, {}),
    "another host on our port": lambda login, port: ({"Host": f"evil.example:{port}", **basic(login)}, {}),
    "another origin": lambda login, port: ({"Origin": "http://evil.example", **basic(login)}, {}),
    "another port as origin": lambda login, port: ({"Origin": "http://127.0.0.1:9", **basic(login)}, {}),
    "no origin that can be named": lambda login, port: ({"Origin": "null", **basic(login)}, {}),
    "text without a login": lambda login, port: (
        {"Content-Type": "text/plain", "Origin": f"http://127.0.0.1:{port}"},
        {},
    ),
    "a command as variable": lambda login, port: (basic(login), {"command": "touch {}"}),
    "a folder as variable": lambda login, port: (basic(login), {"working_dir": "{}"}),
}
# Requests that a page can send from a browser; `no-cors` needs no permission from the server.
FROM_ANOTHER_PAGE = """async (place) => {
  const attempt = (options) => fetch(place, options).then(answer => answer.type, error => error.name);
  const body = JSON.stringify({job_variables: {command: "touch made"}});
  const frame = document.createElement("iframe");
  frame.src = new URL("/deployments", place);
  document.body.append(frame);
  await new Promise(done => frame.onload = done);
  return {
    storage: localStorage.getItem("prefect-password"),
    json: await attempt({method: "POST", headers: {"Content-Type": "application/json"}, body}),
    text: await attempt({method: "POST", mode: "no-cors", headers: {"Content-Type": "text/plain"}, body}),
    read: await attempt({}),
    socket: await new Promise(done => {
      const address = place.replace("http", "ws").replace(/deployments.*/, "events/in");
      const socket = new WebSocket(address, "prefect");
      socket.onopen = () => done("open");
      socket.onerror = () => done("error");
    }),
  };
}"""


FROM_ANOTHER_PAGE_TO_MLFLOW = """async (ours) => {
  const attempt = (place, options) => fetch(ours + place, {credentials: "include", ...options})
    .then(answer => answer.type, error => error.name);
  const frame = document.createElement("iframe");
  frame.src = ours;
  document.body.append(frame);
  await new Promise(done => frame.onload = done);
  const body = JSON.stringify({name: "made"});
  return {
    read: await attempt("/api/2.0/mlflow/experiments/search?max_results=5"),
    write: await attempt("/api/2.0/mlflow/experiments/create", {method: "POST", mode: "no-cors", body}),
    script: await new Promise(done => {
      const script = document.createElement("script");
      script.src = ours + "/api/2.0/mlflow/experiments/search?max_results=5";
      script.onload = () => done("loaded");
      script.onerror = () => done("error");
      document.body.append(script);
    }),
  };
}"""


@pytest.fixture
def other_page():
    """Yields the address of a page that another server has on another port."""
    page = b"<!doctype html><title>a page of somebody else</title>"
    with answering(lambda request, body: (200, page)) as address:
        yield f"{address}/"


# Prefect's services look for work every 5 to 60 s, and a run that waits for another one looks every 30 s.
QUICK_SERVICES = {
    "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
    "PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "1",
    "PREFECT_SERVER_SERVICES_SCHEDULER_MAX_RUNS": "3",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_LOOP_SECONDS": "1",
    "PREFECT_SERVER_SERVICES_LATE_RUNS_AFTER_SECONDS": "1",
    "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "2",
    "PREFECT_SERVER_CONCURRENCY_MAXIMUM_CONCURRENCY_SLOT_WAIT_SECONDS": "2",
}


@pytest.fixture(scope="module")
def ui(tmp_path_factory):
    """Runs one `make ui` for all tests of this file; the last test restarts it."""
    # The GPU has a name of its own, because the machine's locks are for all tests that run.
    state = tmp_path_factory.mktemp("ui") / "state"
    running = RunningUi(state, **QUICK_SERVICES, RETRACE_GPUS=f"test-{os.getpid()}")
    running.start()
    yield running
    running.end()
    assert not running.login, "the login goes with its server"
    for number in (running.prefect, running.mlflow):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", number)) != 0, "a server is left"


@pytest.fixture(scope="module")
def killed_flow(ui, tmp_path_factory, empty_dvc_project):
    """Kills the process of a run, which no worker watches; the server notices it only after a while."""
    project = tmp_path_factory.mktemp("killed") / "project"
    shutil.copytree(empty_dvc_project, project)
    (project / "first.py").write_text(DAEMONS)
    with by_hand(ui, project) as flow:
        wait_until((project / "pids").exists)
        [run] = started_for(ui, project)
        wait_until(lambda: heartbeats(ui, run))  # the server only misses a run that has sent a heartbeat
        flow.kill()
    return run


@pytest.fixture(scope="module")
def retraining_project(tmp_path_factory):
    return make_project(tmp_path_factory.mktemp("retraining") / "project")


class TestServers:
    pytestmark = slow

    def test_both_servers_answer_and_the_four_deployments_have_forms(self, ui, killed_flow):
        assert f"http://127.0.0.1:{ui.prefect}" in ui.printed[0] and f"http://127.0.0.1:{ui.mlflow}" in ui.printed[1]
        assert mlflow(ui, "experiments/get-by-name?experiment_name=retrace")["experiment"]["name"] == "retrace"
        found = ui.deployments()
        assert set(found) == {"reproduce", "retrain", "ablate", "evaluate"}
        fields = {name: one["parameter_openapi_schema"]["properties"] for name, one in found.items()}
        assert "laptop" in fields["reproduce"]["recipe"]["enum"] and "rl_1" in fields["evaluate"]["policy"]["enum"]
        assert "dapo-ladder" in fields["ablate"]["ablation"]["enum"]
        assert all(field["description"] and field["title"] for own in fields.values() for field in own.values())
        assert [one["active"] for one in found["retrain"]["schedules"]] == [False], "schedules ship inactive"
        assert "crashed" in ui.ask("automations/filter")[0]["name"]
        with pytest.raises(urllib.error.HTTPError, match=r"409|422"):
            ui.run("evaluate", policy="nobody")

    @pytest.mark.parametrize("attack", ATTACKS)
    def test_who_has_no_login_or_comes_from_elsewhere_gets_nothing_and_starts_nothing(self, ui, attack, tmp_path):
        before, marker = set(flow_runs(ui, scheduled=True)), tmp_path / "made"
        place = f"/api/deployments/{ui.deployments()['reproduce']['id']}/create_flow_run"
        headers, variables = ATTACKS[attack](ui.login, ui.prefect)
        content = {"job_variables": {name: value.format(marker) for name, value in variables.items()}}
        connection = http.client.HTTPConnection("127.0.0.1", ui.prefect, timeout=240)
        own = {"Host": f"127.0.0.1:{ui.prefect}", "Content-Type": "application/json", **headers}
        connection.request("POST", place, json.dumps(content), {k: v for k, v in own.items() if v is not None})
        answer = connection.getresponse()
        assert answer.status in (401, 403, 409, 422), answer.read()
        assert answer.headers["access-control-allow-origin"] in (None, f"http://127.0.0.1:{ui.prefect}")
        assert set(flow_runs(ui, scheduled=True)) == before and not marker.exists()

    def test_sockets_take_no_events_without_the_login_or_from_another_page(self, ui):
        address = f"ws://127.0.0.1:{ui.prefect}/api/events/in"
        for login, origin, accepted in (
            (ui.login, None, True),
            ("", None, False),
            ("retrace:guess", None, False),
            (ui.login, "http://127.0.0.1:9", False),
        ):
            assert greets(address, login, origin) == accepted, (login, origin)

    def test_the_login_is_readable_by_this_user_alone_and_no_stage_gets_it(self, ui):
        path = ui.state / "prefect" / "login.json"
        assert path.stat().st_mode & 0o777 == 0o600 and json.loads(path.read_text())["login"] in ui.link
        family = psutil.Process(ui.process.pid).children(recursive=True)
        assert not any(ui.login in word for process in family for word in process.cmdline())
        logs = "".join(log.read_text(errors="replace") for log in (ui.state / "logs").iterdir())
        assert ui.login.partition(":")[2] not in logs

    @pytest.mark.parametrize("attack", [one for one in ATTACKS if not one.endswith("variable")])
    def test_mlflow_too_gives_nothing_to_who_has_no_login_or_comes_from_elsewhere(self, ui, attack):
        headers, _ = ATTACKS[attack](ui.login, ui.mlflow)
        own = {"Host": f"127.0.0.1:{ui.mlflow}", "Content-Type": "application/json", **headers}
        for method, place in (("POST", "experiments/create"), ("GET", "experiments/get-by-name")):
            connection = http.client.HTTPConnection("127.0.0.1", ui.mlflow, timeout=60)
            body = json.dumps({"name": "made"}) if method == "POST" else None
            connection.request(method, f"/api/2.0/mlflow/{place}?experiment_name=retrace", body, own)
            answer = connection.getresponse()
            assert answer.status in (401, 403) and b"experiment" not in answer.read()
            assert answer.headers["access-control-allow-origin"] is None
        with pytest.raises(urllib.error.HTTPError, match="404"):
            mlflow(ui, "experiments/get-by-name?experiment_name=made")

    def test_a_tracking_client_with_the_login_writes_through_mlflows_server(self, ui):
        script = "import mlflow; mlflow.set_experiment('by a client'); mlflow.start_run(); mlflow.log_metric('x', 1)"
        settings = {"MLFLOW_TRACKING_URI": f"http://{ui.login}@127.0.0.1:{ui.mlflow}"}
        subprocess.run([sys.executable, "-c", script], env={**os.environ, **settings}, check=True)
        assert mlflow(ui, "experiments/get-by-name?experiment_name=by%20a%20client")

    def test_a_page_of_another_port_in_the_users_browser_gets_nothing(self, ui, other_page):
        """The user has logged in to both servers in this browser."""
        of_mlflow = f"http://127.0.0.1:{ui.mlflow}"
        before = set(flow_runs(ui, scheduled=True))
        place = f"http://127.0.0.1:{ui.prefect}/api/deployments/{ui.deployments()['reproduce']['id']}/create_flow_run"
        with chromium_page() as page:
            page.goto(ui.printed[1].split()[1])
            page.get_by_text("Run Name").first.wait_for()
            assert ui.login not in page.evaluate("location.href")
            assert page.evaluate("fetch('/version').then(answer => answer.status)") == 200
            page.goto(other_page)
            mlflow_gave = page.evaluate(FROM_ANOTHER_PAGE_TO_MLFLOW, of_mlflow)
            framed = [page.frames[-1].url]
            page.goto(f"{of_mlflow}{ENTER}#retrace:guess")
            page.get_by_text("The login is not that of this server").wait_for()

            page.goto(ui.link)
            page.get_by_text("reproduce", exact=True).first.wait_for()
            page.goto(other_page)
            prefect_gave = page.evaluate(FROM_ANOTHER_PAGE, place)
            framed.append(page.frames[-1].url)
        assert mlflow_gave == {"read": "TypeError", "write": "opaque", "script": "error"}
        with pytest.raises(urllib.error.HTTPError, match="404"):
            mlflow(ui, "experiments/get-by-name?experiment_name=made")
        assert prefect_gave["storage"] is None, "storage is kept by port"
        assert prefect_gave["json"] == prefect_gave["read"] == "TypeError", "the server permits the browser nothing"
        assert prefect_gave["text"] == "opaque", "was sent, and refused: nothing runs"
        assert prefect_gave["socket"] == "error"
        assert set(flow_runs(ui, scheduled=True)) == before
        assert all(url.startswith("chrome-error:") for url in framed)

    def test_the_form_in_the_browser_starts_a_flow_that_finishes(self, ui, dvc_project):
        form = f"http://127.0.0.1:{ui.prefect}/deployments/deployment/{ui.deployments()['reproduce']['id']}/run"
        with chromium_page() as page:
            page.goto(ui.link)
            page.get_by_text("reproduce", exact=True).first.wait_for()
            assert ui.login not in page.url and page.evaluate("history.length") <= 2
            page.goto(form)
            page.get_by_text("A stage that runs longer is stopped").wait_for()
            page.locator("button.p-select-button__control").first.focus()
            page.keyboard.press("ArrowDown")
            page.get_by_text("laptop", exact=True).last.wait_for()
            offered = page.locator(".p-select-option__text").all_inner_texts()
            assert offered[0] == "params.yaml as it is" and "laptop" in offered
            page.keyboard.press("Escape")
            page.locator("textarea").fill(str(dvc_project))
            page.get_by_role("button", name="Submit").click()
            wait_until(lambda: started_for(ui, dvc_project))
        run = started_for(ui, dvc_project)[0]
        state = ui.wait_for(run)
        assert state["type"] == "COMPLETED", ui.log(run)
        ui.assert_tasks(run, dict.fromkeys(("first", "round@a", "round@b", "last"), "Completed"))
        assert (dvc_project / "data/last.txt").exists()
        wait_until(lambda: "making the first" in ui.log(run))

    def test_cancel_ends_every_process(self, ui, dvc_project):
        (dvc_project / "first.py").write_text(DAEMONS)
        run = ui.run("reproduce", project=str(dvc_project))
        pids = dvc_project / "pids"
        wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 3)
        before = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
        family = [*before, *(parent for parent in before[0].parents() if "told_repro" in " ".join(parent.cmdline()))]
        assert len(family) > len(before) and all(process.is_running() for process in family)
        ui.ask(f"flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})
        assert_all_end(family)  # otherwise they sleep for 300 s
        assert ui.wait_for(run)["type"] == "CANCELLED"

    def test_a_run_that_is_late_starts_and_the_next_one_waits_for_it(self, ui, dvc_project):
        """The pool is paused as if no worker were there; `reproduce` has the limit 1 and queues what comes then."""
        working = (dvc_project / "first.py").read_text()
        (dvc_project / "first.py").write_text(DAEMONS)
        ui.ask("work_pools/retrace", {"is_paused": True}, "PATCH")
        late = ui.run("reproduce", project=str(dvc_project))
        assert_becomes(lambda: ui.state_of(late)["name"], "Late")
        ui.ask("work_pools/retrace", {"is_paused": False}, "PATCH")
        wait_until((dvc_project / "pids").exists)
        ui.assert_tasks(late, {"first": "Running"})
        waiting = ui.run("reproduce", project=str(dvc_project))
        assert_becomes(lambda: ui.state_of(waiting)["name"], "AwaitingConcurrencySlot")
        (dvc_project / "first.py").write_text(working)
        ui.ask(f"flow_runs/{late}/set_state", {"state": {"type": "CANCELLING"}})
        assert ui.wait_for(late)["name"] == "Cancelled"
        assert ui.wait_for(waiting)["name"] == "Completed", ui.log(waiting)
        assert ui.tasks(late)["first"] in ("Cancelled", "Crashed"), "no task of the cancelled run is left as running"

    def test_a_stage_waits_for_its_gpu_in_prefects_queue(self, ui, dvc_project, tmp_path):
        """The runs have different folders for the machine's own locks, so only Prefect's limit keeps them apart."""
        graph = (dvc_project / "dvc.yaml").read_text().replace("  first:\n", "  respond:\n")
        (dvc_project / "dvc.yaml").write_text(graph)
        other = shutil.copytree(dvc_project, tmp_path / "other")
        (dvc_project / "first.py").write_text(WAITS_TO_GO + (dvc_project / "first.py").read_text())
        run = ui.run("reproduce", project=str(dvc_project))
        wait_until((dvc_project / "started").exists)
        (tmp_path / "tmp").mkdir()
        own = {"RETRACE_GPUS": ui.settings["RETRACE_GPUS"], "TMPDIR": str(tmp_path / "tmp")}
        said = tmp_path / "said"
        with open(said, "w") as log, by_hand(ui, other, log, **own, PREFECT_INTERNAL_LOGGING_LEVEL="DEBUG") as waiting:
            try:
                wait_until(lambda: "Unable to acquire concurrency slot" in said.read_text())
                assert ui.ask("v2/concurrency_limits/gpu", method="GET")["active_slots"] == 1
                assert not (other / "data/first.txt").exists()
                (dvc_project / "go").touch()
                assert ui.wait_for(run)["type"] == "COMPLETED", ui.log(run)
                assert waiting.wait(PATIENCE_SECONDS) == 0
            finally:
                waiting.kill()
        assert (other / "data/first.txt").exists()
        assert_becomes(lambda: ui.ask("v2/concurrency_limits/gpu", method="GET")["active_slots"], 0)

    def test_a_flow_whose_file_is_gone_fails_alone_and_one_that_is_deleted_ends(self, ui, dvc_project):
        """After each failure the worker starts the next run: after the last one that of the next test."""
        deployment = ui.deployments()["reproduce"]["id"]
        entry = {"entrypoint": "pipelines/flows/gone.py:reproduce"}
        kept = ui.ask(f"deployments/{deployment}", method="GET")["entrypoint"]
        ui.ask(f"deployments/{deployment}", entry, "PATCH")
        state = ui.wait_for(ui.run("reproduce", project=str(dvc_project)))
        ui.ask(f"deployments/{deployment}", {"entrypoint": kept}, "PATCH")
        assert state["type"] in ("CRASHED", "FAILED") and state["message"]

        (dvc_project / "first.py").write_text(DAEMONS)
        run = ui.run("reproduce", project=str(dvc_project))
        wait_until((dvc_project / "pids").exists)
        ui.ask(f"flow_runs/{run}", method="DELETE")
        assert_all_end(map(int, (dvc_project / "pids").read_text().split()))

    def test_a_worker_that_dies_is_replaced_and_its_run_is_marked_as_crashed(self, ui, dvc_project):
        def workers():
            def is_worker(process):
                return process.cmdline()[1:] == ["-m", "pipelines.ui.deployments"]

            return those_with(is_worker, psutil.Process(ui.process.pid).children(recursive=True))

        working = (dvc_project / "first.py").read_text()
        (dvc_project / "first.py").write_text(DAEMONS)
        run = ui.run("reproduce", project=str(dvc_project))
        wait_until((dvc_project / "pids").exists)
        # The server gets the task's name after the stage starts, and from a killed worker not at all.
        ui.assert_tasks(run, {"first": "Running"})
        (first,) = workers()
        first.kill()
        wait_until(lambda: [one.pid for one in workers()] not in ([], [first.pid]))
        wait_until(lambda: "worker starts" in (ui.state / "logs" / "worker.log").read_text())
        assert_becomes(lambda: ui.state_of(run)["type"], "CRASHED")
        ui.assert_tasks(run, {"first": "Crashed"})
        assert_all_end(map(int, (dvc_project / "pids").read_text().split()))
        (dvc_project / "first.py").write_text(working)
        assert ui.wait_for(ui.run("reproduce", project=str(dvc_project)))["type"] == "COMPLETED", (
            "in spite of the limit"
        )

    def test_retraining_promotes_refuses_and_is_rolled_back(self, ui, retraining_project):
        project = retraining_project
        incoming = project / "state" / "incoming"

        def retrain():
            run = ui.run("retrain", recipe="laptop", policy="rl_1", project=str(project))
            state = ui.wait_for(run)
            assert state["type"] == "COMPLETED", ui.log(run)
            return state["name"], state["message"], run

        def assert_completed(run, *names):
            wait_until(lambda: {name: ui.tasks(run).get(name) for name in names} == dict.fromkeys(names, "Completed"))

        name, message, _ = retrain()
        assert name == "Promoted" and "champion v1" in message and "It is the first" in message

        write_rows(incoming / "lessons.jsonl", [{"skill": 0.9}])
        name, message, run = retrain()
        assert name == "Promoted" and "champion v2" in message and "+40.0 points" in message
        assert_completed(run, "gate", "collect@lessons", "promote")

        write_rows(incoming / "lessons.jsonl", [{"skill": 0.925, "garbled": 0.05}])
        write_rows(incoming / "held_out.jsonl", held_out("exercise"))
        name, message, run = retrain()
        assert name == "Refused" and "inside the noise" in message and "undecided verdicts rise" in message
        assert_completed(run, "gate")  # the last one
        assert "promote" not in ui.tasks(run)
        gate = [one for one in ui.ask("artifacts/filter") if one["key"] == "gate-laptop"]
        assert any("Refused: rl_1" in one["data"] for one in gate)

        name, message, run = retrain()
        assert name == "Nothing new" and "refused" in message
        ui.assert_tasks(run, {"look for new data": "Completed"})

        assert git(project, "status", "--porcelain") == "" and len(git(project, "worktree", "list").splitlines()) == 1
        assert len(git(project, "branch", "--list", "retrain/*").splitlines()) == 3
        assert git(project, "rev-parse", "champion-laptop") == git(project, "rev-parse", "champion-laptop-v2")
        done = roll_back(project, ui)
        assert done.returncode == 0 and "now is v1" in done.stdout, done.stdout + done.stderr
        assert git(project, "rev-parse", "champion-laptop") == git(project, "rev-parse", "champion-laptop-v1")
        alias = mlflow(ui, "registered-models/alias?name=retrace-laptop&alias=champion")["model_version"]
        assert {"key": "git.tag", "value": "champion-laptop-v1"} in alias["tags"]

    def test_a_schedule_fires_and_what_comes_while_its_run_works_is_cancelled(self, ui, retraining_project):
        retrain, project = ui.deployments()["retrain"]["id"], str(retraining_project)
        before = started_for(ui, project)
        schedule = {"schedule": {"interval": 2}, "active": True, "parameters": {"policy": "rl_1", "project": project}}
        [made] = ui.ask(f"deployments/{retrain}/schedules", [schedule])

        def fired():
            """Returns the states of the runs that the scheduler made and that were due."""
            runs = [
                run for run in runs_for(ui, project) if run["id"] not in before and run["state_name"] != "Scheduled"
            ]
            assert all(run["auto_scheduled"] for run in runs)
            return {run["id"]: run["state_name"] for run in runs}

        # The project's data are those of the test before; alone they are new.
        wait_until(lambda: {"Cancelled"} < set(fired().values()) & {"Cancelled", "Nothing new", "Promoted"}, 600)
        ui.ask(f"deployments/{retrain}/schedules/{made['id']}", method="DELETE")
        # A loaded scheduler may have made more runs meanwhile; the worker takes these too, however late.
        wait_until(lambda: set(fired().values()) <= {"Cancelled", "Nothing new", "Promoted"}, 600)

    def test_a_flow_whose_heartbeat_stops_is_marked_as_crashed(self, ui, killed_flow):
        state = ui.wait_for(killed_flow)
        assert state["type"] == "CRASHED" and "No heartbeat" in state["message"]

    def test_history_and_schedules_outlive_a_restart(self, ui, killed_flow, dvc_project):
        (dvc_project / "first.py").write_text(DAEMONS)
        running = ui.run("reproduce", project=str(dvc_project))
        wait_until((dvc_project / "pids").exists)
        retrain = ui.deployments()["retrain"]
        schedule = retrain["schedules"][0]
        ui.ask(f"deployments/{retrain['id']}/schedules/{schedule['id']}", {"active": True}, "PATCH")
        runs, models = flow_runs(ui), mlflow(ui, "registered-models/search")
        # Other errors are right: a late event of the run that a test deleted has no row to belong to.
        assert "database is locked" not in log_path(ui.state, "prefect").read_text()
        ui.assert_tasks(killed_flow, {"first": "Crashed"})  # the living worker reports it
        ui.end()
        assert_all_end(map(int, (dvc_project / "pids").read_text().split()))
        ui.start()
        assert_becomes(lambda: flow_runs(ui).get(running), "CRASHED")  # it is not shown as running
        after = flow_runs(ui)
        assert {run: state for run, state in runs.items() if run != running}.items() <= after.items()
        assert ui.state_of(running)["message"] == MESSAGE
        again = ui.deployments()["retrain"]
        assert again["id"] == retrain["id"] and [one["active"] for one in again["schedules"]] == [True]
        assert len(ui.deployments()) == 4 and len(ui.ask("automations/filter")) == 1
        assert mlflow(ui, "registered-models/search") == models


# A stage as vLLM, Ray and torchrun leave it: a child in a separate session, and one whose parent has ended.
DAEMONS = """
import os, pathlib, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(300)"]
orphan = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=2).pid)"
daemon = subprocess.run([sys.executable, "-c", orphan, *sleep], stdout=subprocess.PIPE, text=True).stdout
own = subprocess.Popen(sleep, start_new_session=True)
pathlib.Path("pids.partial").write_text(f"{os.getpid()} {own.pid} {daemon}")
os.replace("pids.partial", "pids")
time.sleep(300)
"""


WAITS_TO_GO = """
import pathlib, time
pathlib.Path("started").touch()
while not pathlib.Path("go").exists():
    time.sleep(0.05)
"""


@contextmanager
def chromium_page():
    """Yields a page of a browser; skips the test if there is no browser."""
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="set-up installs playwright: make set-up")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.set_default_timeout(240_000)
        yield page
        browser.close()


def mlflow(ui, path):
    address = f"http://127.0.0.1:{ui.mlflow}/api/2.0/mlflow/{path}"
    return json.load(urllib.request.urlopen(urllib.request.Request(address, headers=basic(ui.login))))


def by_hand(ui, project, log=subprocess.DEVNULL, **settings):
    """Starts the flow `reproduce` without the worker; the server shows its run."""
    own = {
        "PREFECT_API_URL": f"http://127.0.0.1:{ui.prefect}/api",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        "PREFECT_HOME": str(ui.state / "prefect"),
        "RETRACE_STATE": str(ui.state),
        "PATH": ui.path,
    }
    flow = "import sys; from pipelines.flows.whole_graph import reproduce; reproduce(project=sys.argv[1])"
    command = [sys.executable, "-c", flow, str(project)]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **own, **settings}, stdout=log, stderr=log)


def flow_runs(ui, scheduled=False):
    return {
        run["id"]: run["state_type"]
        for run in ui.ask("flow_runs/filter", {})
        if scheduled or run["state_type"] != "SCHEDULED"
    }


def heartbeats(ui, run):
    """Returns the heartbeats of a flow run that have reached the server."""
    event = {"name": ["prefect.flow-run.heartbeat"]}
    wanted = {"event": event, "resource": {"id": [f"prefect.flow-run.{run}"]}}
    return ui.ask("events/filter", {"filter": wanted})["events"]


def greets(address, login, origin):
    """Returns True if the server takes events at this address from a client that sends this login."""
    try:
        with connect(address, subprotocols=["prefect"], origin=origin, open_timeout=240) as socket_:
            socket_.send(json.dumps({"type": "auth", "token": login}))
            return json.loads(socket_.recv())["type"] == "auth_success"
    except (InvalidStatus, ConnectionClosed):
        return False


def started_for(ui, project):
    """Returns the ids of the flow runs with this project, from any source."""
    return [run["id"] for run in runs_for(ui, project)]


def runs_for(ui, project):
    return [run for run in ui.ask("flow_runs/filter", {}) if run["parameters"].get("project") == str(project)]


def git(folder, *arguments):
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def roll_back(project, ui):
    """Runs `retrace rollback` in a copy of the program whose project is `project`."""
    script = f"import sys; sys.path[0] = {str(ROOT)!r}; import stages.foundations.machine as s; "
    script += f"from pathlib import Path; s.PROJECT = Path({str(project)!r}); "
    script += "from pipelines.cli import app; app()"
    environment = {**os.environ, "RETRACE_STATE": str(ui.state), "RETRACE_TRACKING": "on"}
    return subprocess.run(
        [sys.executable, "-c", script, "rollback", "laptop"],
        env=environment,
        text=True,
        capture_output=True,
        cwd=project,
    )
