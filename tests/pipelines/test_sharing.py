"""Two clones of a small real DVC project that share a remote: a folder, and real storage over SSH."""

import asyncio
import hashlib
import os
import shutil
import threading
from pathlib import Path

import pytest

from pipelines.graph.sharing import default_remote, pull_before_run, push_after_run, remote_fault
from pipelines.runtime.checkouts import share_dvc
from pipelines.runtime.process_group import dvc, run_in_group
from stages.foundations.files import dvc_md5
from tests.fakes.file_server import answering
from tests.fakes.graded_project import git

SOURCES = Path(__file__).resolve().parents[2]
DVC_YAML = """
stages:
  code:
    cmd: python stage.py code data/code.json
    deps: [stage.py]
    outs: [data/code.json]
  base:
    cmd: python stage.py base data/policies/base
    deps: [data/code.json]
    params: [base]
    outs: [data/policies/base]
  respond:
    foreach: [a, b]
    do:
      cmd: python stage.py respond data/responses/${item}.txt data/metrics/${item}.json
      deps: [data/policies/base]
      params: [respond]
      outs: ['data/responses/${item}.txt']
      metrics:
        - data/metrics/${item}.json: {cache: false}
  report:
    cmd: python stage.py report reports/index.html
    deps: [data/responses, data/metrics]
    params: [report]
    outs: [reports/index.html]
"""
STAGE = """
import json, os, pathlib, sys
name, *outs = sys.argv[1:]
with open(os.environ["RAN"], "a") as ran:
    ran.write(name + "\\n")
for out in map(pathlib.Path, outs):
    out.parent.mkdir(parents=True, exist_ok=True)
    if name == "base":
        out.mkdir()
        (out / "weights").write_text("weights")
    elif name == "report":
        out.write_text(" ".join(sorted(path.name for path in pathlib.Path("data").glob("*/*.*"))))
    else:
        out.write_text(json.dumps({"stage": name, "score": 1}))
"""


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Returns the stages that ran since the last call."""
    log = tmp_path / "ran"
    monkeypatch.setenv("RAN", str(log))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("DVC_ROOT", raising=False)

    def look():
        names = log.read_text().split() if log.exists() else []
        log.unlink(missing_ok=True)
        return sorted(names)

    return look


def make_project(folder, url):
    """Makes a git repository with the graph above and a default remote."""
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / ".dvc").mkdir()
    (folder / ".dvc" / ".gitignore").write_text("/config.local\n/tmp\n/cache\n")
    settings = f"[core]\n    remote = store\n    analytics = false\n['remote \"store\"']\n    url = {url}\n"
    (folder / ".dvc" / "config").write_text(settings)
    (folder / "dvc.yaml").write_text(DVC_YAML)
    (folder / "stage.py").write_text(STAGE)
    (folder / "params.yaml").write_text("base: 1\nrespond: 1\nreport: 1\n")
    (folder / ".gitignore").write_text("/data/code.json\n/data/policies/\n/data/responses/\n/reports/\n")
    return folder


def repro(folder):
    """Pulls, runs and pushes like `make repro`; returns its messages."""
    told = []
    assert run_in_group(dvc("repro", "-q", *pull_before_run(folder, told.append)), folder) == 0
    push_after_run(folder, told.append)
    return told


def clone(first, folder, is_committed=True):
    """Makes a second clone: the files in git, with or without lock and metric files, and no cache."""
    git(first, "add", ".")
    if not is_committed:
        git(first, "rm", "-q", "-r", "--cached", "dvc.lock", "data/metrics")
    git(first, "commit", "-q", "-m", "results")
    git(first.parent, "clone", "-q", str(first), str(folder))
    return folder


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """Makes a folder with a project in which every stage has run, and with its remote, which has the results."""
    place = tmp_path_factory.mktemp("computed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAN", os.devnull)
        patch.setenv("PYTHONPATH", str(SOURCES))
        patch.delenv("DVC_ROOT", raising=False)
        assert "files pushed" in repro(make_project(place / "first", "../../store"))[-1]
    return place


@pytest.fixture
def first(computed, tmp_path):
    """Copies that project; the remote is next to the copy."""
    shutil.copytree(computed, tmp_path, dirs_exist_ok=True)
    return tmp_path / "first"


@pytest.mark.slow
def test_a_second_clone_pulls_instead_of_computing(first, tmp_path, ran):
    assert default_remote(first).name == "store"
    second = clone(first, tmp_path / "second")
    repro(second)
    assert ran() == []
    report = (first / "reports" / "index.html").read_text()
    assert (second / "reports" / "index.html").read_text() == report
    assert not (second / "data" / "policies" / "base").exists(), "weights stay away until a stage needs them"

    # Only the last stage changes: it must see complete folders, although no earlier stage has run here.
    (second / "params.yaml").write_text("base: 1\nrespond: 1\nreport: 2\n")
    shutil.rmtree(second / "data" / "responses")
    repro(second)
    assert ran() == ["report"]
    assert (second / "reports" / "index.html").read_text() == report

    # An earlier stage changes: the weights are pulled now, and no stage before the change runs.
    (second / "params.yaml").write_text("base: 1\nrespond: 2\nreport: 2\n")
    repro(second)
    assert ran() == ["respond", "respond"], "the responses came out equal, so the report is up to date"
    assert (second / "data" / "policies" / "base" / "weights").exists()


@pytest.mark.slow
def test_a_clone_without_lock_and_metric_files_restores_both_from_the_remote(first, tmp_path, ran):
    second = clone(first, tmp_path / "second", is_committed=False)
    assert not (second / "dvc.lock").exists() and not (second / "data").exists()
    repro(second)
    assert ran() == []
    assert (second / "data" / "metrics" / "b.json").exists()
    assert (second / "reports" / "index.html").exists()


@pytest.mark.slow
def test_what_the_remote_has_lost_is_computed(first, tmp_path, ran):
    second = clone(first, tmp_path / "second")
    shutil.rmtree(tmp_path / "store" / "files" / "md5" / dvc_md5(first / "data" / "responses" / "a.txt")[:2])
    told = repro(second)
    assert "is computed" in told[1] and set(ran()) == {"respond"}
    assert sorted(path.name for path in (second / "data" / "responses").iterdir()) == ["a.txt", "b.txt"]
    assert (second / "reports" / "index.html").read_text() == (first / "reports" / "index.html").read_text()


@pytest.mark.slow
def test_a_remote_that_cannot_be_reached_costs_a_warning_and_no_run(tmp_path, ran):
    (tmp_path / "file").write_text("no folder can be made below a file")
    first = make_project(tmp_path / "first", tmp_path / "file" / "store")
    told = repro(first)
    assert ran() == ["base", "code", "report", "respond", "respond"]
    assert "warning" in told[-1] and "They are safe here" in told[-1]


@pytest.mark.parametrize(
    ("status", "fault"), [(200, ""), (404, ""), (403, ""), (401, "401"), (503, "503"), (None, "Connect")]
)
def test_what_an_http_remote_answers_decides_whether_it_can_be_reached(tmp_path, monkeypatch, status, fault):
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))

    with answering(lambda request, body: (status, b"")) as address:
        project = make_project(tmp_path / "project", f"{address}/store")
        found = remote_fault(project) if status else ""
    if status is None:  # no server listens there any more
        found = remote_fault(project)
    assert fault in found and bool(found) == bool(fault)


@pytest.fixture
def silent_store():
    """Yields the address of an HTTP server whose root answers; requests below it never get an answer."""
    released = threading.Event()

    def answer(request, body):
        if request.path.strip("/") != "store":
            released.wait(600)
        return 200, b""

    with answering(answer) as address:
        yield f"{address}/store"
        released.set()


def finished_project(folder, url, content=b"weights"):
    """Like `make_project`, with one stage and its entry in dvc.lock; the output is only in the cache."""
    make_project(folder, url)
    md5 = hashlib.md5(content).hexdigest()
    (folder / "dvc.yaml").write_text("stages:\n  base: {cmd: make it, outs: [data/base]}\n")
    out = f"{{path: data/base, md5: {md5}, hash: md5, size: {len(content)}}}"
    (folder / "dvc.lock").write_text(f"schema: '2.0'\nstages:\n  base: {{cmd: make it, outs: [{out}]}}\n")
    cached = folder / ".dvc" / "cache" / "files" / "md5" / md5[:2] / md5[2:]
    cached.parent.mkdir(parents=True)
    cached.write_bytes(content)
    return folder


@pytest.mark.slow
def test_a_remote_that_falls_silent_costs_a_warning_and_no_run(tmp_path, monkeypatch, silent_store):
    monkeypatch.setattr("pipelines.graph.sharing.SECONDS_OF_SILENCE", 3.0)
    puller, pusher = (finished_project(tmp_path / name, silent_store) for name in ("puller", "pusher"))
    shutil.rmtree(puller / ".dvc" / "cache")
    pulled, pushed = [], []
    pushing = threading.Thread(target=lambda: pushed.append(push_after_run(pusher, pushed.append)))
    pushing.start()
    assert pull_before_run(puller, pulled.append) == (), "DVC alone would wait for it in each stage"
    pushing.join()
    assert "has fallen silent, so nothing more is pulled" in pulled[-1] and "no data moved for" in pulled[-1]
    assert "no data moved" in pushed[-2] and "They are safe here" in pushed[-2] and pushed[-1] is False


@pytest.mark.slow
def test_a_flow_pushes_at_its_end(first, tmp_path, ran, monkeypatch):
    from prefect.logging import disable_run_logger

    from pipelines.flows import whole_graph

    shutil.rmtree(tmp_path / "store")
    # Each stage would need Prefect's server.
    monkeypatch.setattr(whole_graph, "stages_in_order", lambda root, targets: [])
    with disable_run_logger():
        whole_graph.run_stages(first, 1.0)
    assert list((tmp_path / "store" / "files" / "md5").glob("*/*"))


def test_without_a_default_remote_nothing_happens(tmp_path):
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text("[core]\n    analytics = false\n")
    told = []
    assert default_remote(tmp_path) is None
    assert pull_before_run(tmp_path, told.append) == ()
    assert push_after_run(tmp_path, told.append) and told == []
    (tmp_path / ".dvc" / "config").write_text("[core\n")
    assert not push_after_run(tmp_path, told.append) and "correct .dvc/config" in told[0]


def test_a_worktree_has_the_projects_remotes_wherever_they_are_written(tmp_path):
    root, folder = tmp_path / "project", tmp_path / "project" / "state" / "worktree"
    for place in (root, folder):
        (place / ".dvc").mkdir(parents=True)
        text = "[core]\n    no_scm = true\n    remote = near\n['remote \"near\"']\n    url = ../../store\n"
        (place / ".dvc" / "config").write_text(text)
    (root / ".dvc" / "config.local").write_text("['remote \"near\"']\n    jobs = 3\n")
    assert default_remote(folder).url != str(tmp_path / "store"), "what the commit alone says there"
    share_dvc(root, folder)
    assert Path(default_remote(folder).url).resolve() == tmp_path / "store"
    from dvc.config import Config

    config = Config(str(folder / ".dvc"))
    assert config["remote"]["near"]["jobs"] == 3
    assert Path(config["cache"]["dir"]) == root / ".dvc" / "cache"
    (root / ".dvc" / "config.local").write_text("[core]\n    remote = far\n['remote \"far\"']\n    url = s3://b/x\n")
    share_dvc(root, folder)
    assert default_remote(folder).url == "s3://b/x", "a remote that is in no commit"


def test_a_password_in_the_address_is_not_told(tmp_path):
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text(
        "[core]\n    remote = s\n['remote \"s\"']\n    url = ssh://me:secret@host:22/store\n"
    )
    assert default_remote(tmp_path).url == "ssh://me@host:22/store"


@pytest.fixture
def ssh_store(tmp_path):
    """Runs a real SSH server on loopback that serves this machine's files by SFTP; yields its port and a key."""
    asyncssh = pytest.importorskip("asyncssh", reason="the SSH server of this test is asyncssh")
    pytest.importorskip("dvc_ssh", reason="DVC speaks SSH with the package dvc-ssh")
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(str(tmp_path / "key"))
    (tmp_path / "key").chmod(0o600)
    key.write_public_key(str(tmp_path / "authorized"))
    (tmp_path / "store").mkdir()
    loop, started, ports = asyncio.new_event_loop(), threading.Event(), []

    async def serve():
        server = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            authorized_client_keys=str(tmp_path / "authorized"),
            sftp_factory=True,
        )
        ports.append(server.get_port())
        started.set()

    def run():
        asyncio.set_event_loop(loop)
        loop.run_until_complete(serve())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(240)
    yield ports[0], tmp_path / "key"
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.mark.slow
def test_a_remote_over_ssh(tmp_path, ran, ssh_store):
    port, key = ssh_store
    first = make_project(tmp_path / "first", f"ssh://retrace@127.0.0.1:{port}{tmp_path / 'store'}")
    with open(first / ".dvc" / "config", "a") as config:
        config.write(f"    keyfile = {key}\n    allow_agent = false\n")
    told = repro(first)
    assert "files pushed" in told[-1] and list((tmp_path / "store" / "files" / "md5").glob("*/*"))
    assert len(ran()) == 5
    second = clone(first, tmp_path / "second")
    repro(second)
    assert ran() == []
    assert (second / "reports" / "index.html").read_text() == (first / "reports" / "index.html").read_text()
