"""The flow on a real Prefect server and a real DVC project."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.commands.mirroring import Report
from pipelines.graph.graph import stages_in_order
from pipelines.runtime.process_group import TimedOut
from tests.fakes.prefect_server import prefect_server
from tests.fakes.processes import assert_all_end, assert_becomes, wait_until

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Runs a Prefect server with its database while this module's tests run; yields the variables of its clients."""
    home = tmp_path_factory.mktemp("prefect")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_HOME", str(home))
        patch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", f"sqlite+aiosqlite:///{home / 'prefect.db'}")
        patch.setenv("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
        with prefect_server() as variables:
            yield variables


@pytest.fixture(scope="module")
def flows(server):
    """Returns the module of the flows."""
    from pipelines.flows import whole_graph

    return whole_graph


def read(what):
    """Runs one read of the Prefect API: `what(client)` is awaited."""
    from prefect import get_client

    async def ask():
        async with get_client() as client:
            return await what(client)

    return asyncio.run(ask())


def assert_tasks(state, expected):
    """Waits until the tasks of the flow run that ended in `state` have these names and states."""
    from prefect.client.schemas.filters import FlowRunFilter

    of_run = FlowRunFilter(id={"any_": [state.state_details.flow_run_id]})

    def tasks():
        found = read(lambda client: client.read_task_runs(flow_run_filter=of_run))
        return {run.name: run.state_name for run in found}

    assert_becomes(tasks, expected)


@pytest.mark.slow
def test_one_task_per_stage_in_graph_order_with_logs_and_artifacts(flows, dvc_project):
    names = [stage.name for stage in stages_in_order(dvc_project)]
    assert names == ["first", "round@a", "round@b", "last"]
    ledger = Path(os.environ["RETRACE_STATE"]) / "ledger.jsonl"
    ledger.parent.mkdir(exist_ok=True)
    run = {"name": "first", "seconds": 1.5, "started": "2026-01-01T00:00:00", "run_id": "abc", "experiment_id": "1"}
    ledger.write_text(json.dumps(run) + "\n")
    with open(dvc_project / "first.py", "a") as script:
        script.write('print("first: 3 of 4 rows in 1 s")\n')

    state = flows.reproduce(project=str(dvc_project), return_state=True)

    assert state.is_completed() and state.message == "4 of 4 stages ran"
    assert (dvc_project / "data/last.txt").exists()
    assert_tasks(state, dict.fromkeys(names, "Completed"))
    messages = [log.message for log in wait_for_logs("making the first")]
    assert "making the first" in messages and "> python first.py" in messages
    assert not [message for message in messages if "git add" in message]
    artifacts = {artifact.key: artifact.data for artifact in read(lambda client: client.read_artifacts())}
    stages = ["stage-first", "stage-last", "stage-round-a", "stage-round-b"]
    assert sorted(artifacts) == ["progress-first", "result", *stages], "no other stage reports progress"
    assert "**Ran** (4): first, round@a, round@b, last" in artifacts["result"]
    assert "no GPU" in artifacts["stage-first"] and "CPU time" in artifacts["stage-first"]
    assert "| rows/kept | 3 |" in artifacts["stage-first"] and "`abc`" in artifacts["stage-first"]


@pytest.mark.slow
def test_only_stages_that_have_to_run_are_tasks(flows, dvc_project, monkeypatch):

    mirrored = []
    monkeypatch.setattr(flows, "mirror", lambda root, state: mirrored.append(root) or Report())
    monkeypatch.setenv("RETRACE_TRACKING", "on")

    def assert_runs(told, tasks):
        state = flows.reproduce(project=str(dvc_project), return_state=True)
        assert state.message == told
        assert_tasks(state, tasks)

    flows.reproduce(project=str(dvc_project))
    marks = {path: path.stat().st_mtime_ns for path in dvc_project.glob("data/*.txt")}
    assert len(mirrored) == 1
    assert_runs("0 of 4 stages ran", {})
    assert len(mirrored) == 1, "MLflow has all that dvc.lock has"
    assert marks == {path: path.stat().st_mtime_ns for path in marks}

    params = dvc_project / "params.yaml"
    params.write_text(params.read_text().replace("b: 2", "b: 3"))
    # Its output did not change, so DVC does not run `last` again.
    assert_runs("1 of 4 stages ran", {"round@b": "Completed"})
    assert len(mirrored) == 2

    (dvc_project / "data/first.txt").unlink()
    assert_runs("0 of 4 stages ran, 1 restored from DVC's cache", {"first": "Completed"})
    assert any("0 of 4 stages ran, 4 were up to date" in log.message for log in wait_for_logs("4 were up to date"))


def wait_for_logs(text):
    """Waits for the text in the server's logs, which arrive in batches, a few seconds late."""

    def logs():
        return read(lambda client: client.read_logs())

    wait_until(lambda: any(text in log.message for log in logs()), told=f"no log line {text!r}")
    return logs()


@pytest.mark.slow
def test_tasks_of_a_run_that_has_ended_are_closed_and_others_go_on(flows):
    from prefect import flow, task
    from prefect.client.schemas.filters import TaskRunFilter
    from prefect.states import Crashed, Running

    from pipelines.ui.deployments import LOST, close_lost_tasks

    @flow
    def some_flow():
        pass

    @task
    def some_task():
        pass

    async def lose(client):
        made, seen = {}, []
        for name in ("killed", "alive"):
            run = await client.create_flow_run(some_flow, state=Running())
            made[name] = await client.create_task_run(some_task, run.id, "0", name=name, state=Running())
            if name == "killed":
                await client.set_flow_run_state(run.id, Crashed(), force=True)
        wanted = TaskRunFilter(id={"any_": [one.id for one in made.values()]})
        for seconds in (3600, 0, 0):
            await close_lost_tasks(client, seconds)
            seen.append({run.name: run.state for run in await client.read_task_runs(task_run_filter=wanted)})
        await client.set_task_run_state(made["alive"].id, Crashed(), force=True)
        return seen

    early, late, again = read(lose)
    assert early["killed"].is_running(), "one that has just ended may still tell of its tasks"
    assert late["killed"].is_crashed() and late["killed"].message == LOST
    assert again["killed"].id == late["killed"].id, "it is closed once"
    assert all(states["alive"].is_running() for states in (early, late, again))


@pytest.mark.slow
def test_a_failure_carries_the_last_lines_and_ends_the_flow(flows, dvc_project):
    from pipelines.flows.stage_task import StageFailed

    (dvc_project / "first.py").write_text("import sys; print('the cause'); sys.exit(1)")
    state = flows.reproduce(project=str(dvc_project), return_state=True)
    assert state.is_failed() and state.message == "stage first failed: the cause"
    with pytest.raises(StageFailed, match="What to do: correct the cause"):
        state.result()
    pages = [one.data for one in read(lambda client: client.read_artifacts()) if one.key == "stage-first"]
    assert any("first failed" in page and "\n    the cause\n" in page for page in pages)
    assert not (dvc_project / "data/last.txt").exists()

    (dvc_project / "dvc.yaml").unlink()
    state = flows.reproduce(project=str(dvc_project), return_state=True)
    assert state.is_failed() and "is no DVC project of this machine" in state.message


@pytest.mark.slow
def test_a_stage_that_takes_too_long_is_stopped(flows, dvc_project):
    (dvc_project / "first.py").write_text(SLEEPER)
    with pytest.raises(TimedOut, match=r"stage first was stopped after 0\.00139 h: raise launch\.hours"):
        flows.reproduce(project=str(dvc_project), hours_per_stage=5 / 3600)
    pid = dvc_project / "pid"
    assert_all_end([int(pid.read_text())] if pid.exists() else [])  # on a busy machine it may not have started


SLEEPER = """
import os, pathlib, time
from stages.observe.lifetime import die_with_dvc
die_with_dvc()  # as every stage of ours does
pathlib.Path("pid.partial").write_text(str(os.getpid()))
os.replace("pid.partial", "pid")
time.sleep(600)
"""


FLOW = "import sys; from pipelines.flows.whole_graph import reproduce; reproduce(project=sys.argv[1])"


@pytest.mark.slow
def test_the_stage_dies_with_the_flow_and_the_next_run_goes_on(server, flows, dvc_project):
    first, pid = dvc_project / "first.py", dvc_project / "pid"
    working = first.read_text()
    command = [sys.executable, "-c", FLOW, str(dvc_project)]
    for number, shell in (  # /bin/sh stays between DVC and the stage, bash becomes it
        (signal.SIGTERM, "/bin/bash"),
        (signal.SIGKILL, "/bin/sh"),
    ):
        first.write_text(SLEEPER)
        pid.unlink(missing_ok=True)
        environment = {**os.environ, **server, "SHELL": shell}
        with subprocess.Popen(command, env=environment, cwd=PROJECT, stderr=subprocess.PIPE, text=True) as flow:
            wait_until(lambda flow=flow: pid.exists() or flow.poll() is not None)
            flow.send_signal(number)
            told = flow.communicate()[1]
        assert flow.returncode != 0, told
        assert_all_end([int(pid.read_text())])
    first.write_text(working)
    done = subprocess.run(command, env={**os.environ, **server}, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (dvc_project / "data/last.txt").exists()
