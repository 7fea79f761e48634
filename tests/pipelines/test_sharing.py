"""Two clones of a small real DVC project that share a remote: a folder, and real storage over SSH."""

import asyncio
import os
import shutil
import threading
from pathlib import Path

import pytest

from pipelines.graph.sharing import default_remote, pull_before_run, push_after_run, remote_fault
from pipelines.runtime.checkouts import share_dvc
from pipelines.runtime.process_group import dvc, run_in_group
from stages.foundations.files import dvc_md5
from stages.foundations.machine import PROJECT
from tests.fakes.file_server import answering
from tests.fakes.graded_project import git
from tests.fakes.small_graph import small_graph


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Returns the stages that ran since the last call."""
    log = tmp_path / "ran"
    monkeypatch.setenv("RAN", str(log))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("DVC_ROOT", raising=False)

    def look():
        names = log.read_text().split() if log.exists() else []
        log.unlink(missing_ok=True)
        return sorted(names)

    return look


def configure(folder, settings):
    (folder / ".dvc").mkdir(parents=True, exist_ok=True)
    (folder / ".dvc" / "config").write_text("[core]\n    analytics = false\n" + settings)


def at(url, name="store"):
    return f"    remote = {name}\n['remote \"{name}\"']\n    url = {url}\n"


def make_project(folder, url):
    configure(small_graph(folder), at(url))
    return folder


def edit(folder, before, after):
    params = (folder / "params.yaml").read_text()
    (folder / "params.yaml").write_text(params.replace(before, after))


def repro(folder):
    """Pulls, runs and pushes like `make repro`; returns its messages."""
    told = []
    assert run_in_group(dvc("repro", "-q", *pull_before_run(folder, told.append)), folder) == 0
    push_after_run(folder, told.append)
    return told


def clone(first, is_committed=True):
    """Makes a second clone: the files in git, with or without lock and metric files, and no cache."""
    git(first, "add", ".")
    if not is_committed:
        git(first, "rm", "-q", "-r", "--cached", "dvc.lock", "data/metrics")
    git(first, "commit", "-q", "-m", "results")
    git(first.parent, "clone", "-q", str(first), "second")
    return first.parent / "second"


def page(folder):
    return (folder / "reports" / "index.html").read_text()


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """Makes a folder with a project in which every stage has run, and with its remote, which has the results."""
    place = tmp_path_factory.mktemp("computed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAN", os.devnull)
        patch.setenv("PYTHONPATH", str(PROJECT))
        patch.delenv("DVC_ROOT", raising=False)
        assert "files pushed" in repro(make_project(place / "first", "../../store"))[-1]
    return place


@pytest.fixture
def first(computed, tmp_path):
    """Copies that project; the remote is next to the copy."""
    shutil.copytree(computed, tmp_path, dirs_exist_ok=True)
    return tmp_path / "first"


@pytest.mark.slow
def test_a_second_clone_pulls_instead_of_computing(first, ran):
    assert default_remote(first).name == "store"
    second = clone(first)
    repro(second)
    assert ran() == [] and page(second) == page(first)
    assert not (second / "data" / "policies" / "base").exists(), "weights stay away until a stage needs them"

    # Only the last stage changes: it must see complete folders, although no earlier stage has run here.
    edit(second, "report: 1", "report: 2")
    shutil.rmtree(second / "data" / "responses")
    repro(second)
    assert ran() == ["report"] and page(second) == page(first)

    # An earlier stage changes: the weights are pulled now, and no stage before the change runs.
    edit(second, "respond: 1", "respond: 2")
    repro(second)
    assert ran() == ["respond", "respond"], "the responses came out equal, so the report is up to date"
    assert (second / "data" / "policies" / "base" / "config.json").exists()


@pytest.mark.slow
def test_a_clone_without_lock_and_metric_files_restores_both_from_the_remote(first, ran):
    second = clone(first, is_committed=False)
    assert not (second / "dvc.lock").exists() and not (second / "data").exists()
    repro(second)
    assert ran() == [] and (second / "data" / "metrics" / "b.json").exists() and page(second)


@pytest.mark.slow
def test_what_the_remote_has_lost_is_computed(first, ran):
    second = clone(first)
    lost = dvc_md5(first / "data" / "responses" / "a.csv")
    shutil.rmtree(first.parent / "store" / "files" / "md5" / lost[:2])
    assert "is computed" in repro(second)[1] and set(ran()) == {"respond"}
    assert sorted(path.name for path in (second / "data" / "responses").iterdir()) == ["a.csv", "b.csv"]
    assert page(second) == page(first)


@pytest.mark.slow
def test_a_remote_that_cannot_be_reached_costs_a_warning_and_no_run(tmp_path, ran):
    (tmp_path / "file").write_text("no folder can be made below a file")
    told = repro(make_project(tmp_path / "first", tmp_path / "file" / "store"))
    assert ran() == ["base", "code", "report", "respond", "respond"]
    assert "warning" in told[-1] and "They are safe here" in told[-1]


@pytest.mark.parametrize(
    ("status", "fault"), [(200, ""), (404, ""), (403, ""), (401, "401"), (503, "503"), (None, "Connect")]
)
def test_what_an_http_remote_answers_decides_whether_it_can_be_reached(tmp_path, monkeypatch, status, fault):
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    with answering(lambda request, body: (status, b"")) as address:
        git(tmp_path, "init", "-q")
        configure(tmp_path, at(f"{address}/store"))
        found = remote_fault(tmp_path) if status else ""
    if status is None:  # no server listens there any more
        found = remote_fault(tmp_path)
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


@pytest.mark.slow
def test_a_remote_that_falls_silent_costs_a_warning_and_no_run(first, ran, monkeypatch, silent_store):
    monkeypatch.setattr("pipelines.graph.sharing.SECONDS_OF_SILENCE", 3.0)
    configure(first, at(silent_store))
    puller = clone(first)
    pulled, pushed = [], []
    pushing = threading.Thread(target=lambda: pushed.append(push_after_run(first, pushed.append)))
    pushing.start()
    assert pull_before_run(puller, pulled.append) == (), "DVC alone would wait for it in each stage"
    pushing.join()
    assert "has fallen silent, so nothing more is pulled" in pulled[-1] and "no data moved for" in pulled[-1]
    assert "no data moved" in pushed[-2] and "They are safe here" in pushed[-2] and pushed[-1] is False


@pytest.mark.slow
def test_a_flow_pushes_at_its_end(first, ran, monkeypatch):
    from prefect.logging import disable_run_logger

    from pipelines.flows import whole_graph

    shutil.rmtree(first.parent / "store")
    # Each stage would need Prefect's server.
    monkeypatch.setattr(whole_graph, "stages_in_order", lambda root, targets: [])
    with disable_run_logger():
        whole_graph.run_stages(first, 1.0)
    assert list((first.parent / "store" / "files" / "md5").glob("*/*"))


def test_without_a_default_remote_nothing_happens(tmp_path):
    configure(tmp_path, "")
    told = []
    assert default_remote(tmp_path) is None
    assert pull_before_run(tmp_path, told.append) == ()
    assert push_after_run(tmp_path, told.append) and told == []
    configure(tmp_path, "[broken\n")
    assert not push_after_run(tmp_path, told.append) and "correct .dvc/config" in told[0]


def test_a_worktree_has_the_projects_remotes_wherever_they_are_written(tmp_path):
    from dvc.config import Config

    root, folder = tmp_path / "project", tmp_path / "project" / "state" / "worktree"
    for place in (root, folder):
        configure(place, "    no_scm = true\n" + at("../../store", "near"))
    (root / ".dvc" / "config.local").write_text("['remote \"near\"']\n    jobs = 3\n")
    assert default_remote(folder).url != str(tmp_path / "store"), "what the commit alone says there"
    share_dvc(root, folder)
    assert Path(default_remote(folder).url).resolve() == tmp_path / "store"
    config = Config(str(folder / ".dvc"))
    assert config["remote"]["near"]["jobs"] == 3
    assert Path(config["cache"]["dir"]) == root / ".dvc" / "cache"
    (root / ".dvc" / "config.local").write_text("[core]\n" + at("s3://b/x", "far"))
    share_dvc(root, folder)
    assert default_remote(folder).url == "s3://b/x", "a remote that is in no commit"


def test_a_password_in_the_address_is_not_told(tmp_path):
    configure(tmp_path, at("ssh://me:secret@host:22/store"))
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
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def serve():
        return await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            authorized_client_keys=str(tmp_path / "authorized"),
            sftp_factory=True,
        )

    yield asyncio.run_coroutine_threadsafe(serve(), loop).result(240).get_port(), tmp_path / "key"
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
    second = clone(first)
    repro(second)
    assert ran() == [] and page(second) == page(first)
