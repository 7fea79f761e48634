"""One run at a time in a project, and the remains of a killed DVC: a torn table of paths in use or a torn dvc.lock."""

import json
import os
import subprocess
import sys
import threading

import pytest
import yaml
from dvc.schema import COMPILED_LOCKFILE_SCHEMA

from pipelines.graph import project_lock as module
from pipelines.graph.project_lock import project_lock, repair_dvc_state
from pipelines.runtime.locks import refusing_lock
from pipelines.runtime.process_group import dvc, environment
from stages.foundations.errors import UserError
from stages.foundations.stage_graph import make_shared_folders
from tests.fakes.processes import wait_until


def test_the_second_waits_for_the_first_and_says_so(tmp_path):
    said, order = [], []

    def second():
        with project_lock(tmp_path, said.append):
            order.append("second")

    with project_lock(tmp_path, said.append):
        assert said == []
        thread = threading.Thread(target=second)
        thread.start()
        wait_until(lambda: said)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert len(said) == 1 and f"at work in {tmp_path}" in said[0]


def test_a_held_lock_outlives_its_owner_until_the_command_ends(tmp_path):
    command = "import sys; from pathlib import Path; sys.stdin.read(); Path(sys.argv[1]).touch()"
    last_deed, said = tmp_path / "last_deed", []
    with project_lock(tmp_path, print) as lock:
        process = subprocess.Popen(
            [sys.executable, "-c", command, str(last_deed)], stdin=subprocess.PIPE, pass_fds=[lock]
        )

    def tell(line):
        said.append(line)
        process.stdin.close()

    with project_lock(tmp_path, tell):
        assert last_deed.exists() and said
    process.wait()


def test_a_refusing_lock_names_its_file_and_is_free_after_its_holder(tmp_path):
    hold = "import sys; from pathlib import Path; from pipelines.runtime.locks import refusing_lock\n"
    hold += "with refusing_lock(Path(sys.argv[1]), ''): print('held', flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=r"wait for it \(.*lock is held\)"), refusing_lock(tmp_path, "wait for it"):
        pass
    holder.kill()
    holder.wait()
    with refusing_lock(tmp_path, "wait for it"):
        pass


def run(project, *arguments):
    return subprocess.run(dvc(*arguments), cwd=project, env=environment(), capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_half_a_table_of_dvc_stops_no_run(dvc_project):
    table = dvc_project / ".dvc" / "tmp" / "rwlock"
    table.write_text('{"/a": {"wri')
    command = ["repro", "--single-item", "first"]
    done = run(dvc_project, *command)
    assert done.returncode and "rwlock" in done.stderr, "DVC mends it by itself now: our mending can go"
    said = []
    repair_dvc_state(dvc_project, said.append)
    assert len(said) == 1 and "DVC was killed" in said[0]
    assert run(dvc_project, *command).returncode == 0


@pytest.mark.slow
def test_dvc_has_no_dead_process_to_warn_of(dvc_project):
    """An entry of a living process stays."""
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    table, living = dvc_project / ".dvc" / "tmp" / "rwlock", {"pid": os.getpid(), "cmd": "dvc"}
    path, elsewhere = str(dvc_project / "data/first.txt"), str(dvc_project / "elsewhere")
    gone = {"pid": dead.pid, "cmd": "dvc repro"}
    held = {"write": {path: gone}, "read": {path: [gone], elsewhere: [gone, living]}}
    command = ["repro", "--single-item", "first"]
    table.write_text(json.dumps(held))
    assert "had been killed" in run(dvc_project, *command).stderr, "DVC is silent now: our removal can go"
    table.write_text(json.dumps(held))
    said = []
    repair_dvc_state(dvc_project, said.append)
    assert json.loads(table.read_text()) == {"write": {}, "read": {elsewhere: [living]}}
    done = run(dvc_project, *command, "--force")
    assert done.returncode == 0 and "had been killed" not in done.stderr and said == []


@pytest.mark.slow
def test_an_empty_folder_that_a_stage_reads_draws_no_warning(dvc_project):
    """`last` reads data/metrics, and no stage has written there yet."""
    command = ["repro", "--single-item", "last"]
    make_shared_folders(dvc_project)
    assert not list((dvc_project / "data/metrics").iterdir()), "without .dvcignore the file would count"
    assert "'data/metrics' is empty" in run(dvc_project, *command).stderr
    (dvc_project / ".dvcignore").write_text(".keep\n")
    before = (dvc_project / "dvc.lock").read_text()
    make_shared_folders(dvc_project)
    done = run(dvc_project, *command, "--force")
    assert done.returncode == 0 and "'data/metrics' is empty" not in done.stderr
    assert (dvc_project / "dvc.lock").read_text() == before


@pytest.mark.slow
def test_a_torn_lock_file_stops_no_run_and_costs_none(dvc_project):
    assert run(dvc_project, "repro").returncode == 0
    lock = dvc_project / "dvc.lock"
    whole = lock.read_text()
    hashes = yaml.safe_load(whole)
    lock.write_text(whole[: whole.rindex("cmd:")])
    assert run(dvc_project, "repro").returncode, "DVC mends it by itself now: our mending can go"
    said = []
    repair_dvc_state(dvc_project, said.append)
    assert len(said) == 1 and "dropping its last stage" in said[0]
    done = run(dvc_project, "repro")
    assert done.returncode == 0 and "Running stage" not in done.stdout
    assert yaml.safe_load(lock.read_text()) == hashes


LOCK = """schema: '2.0'
stages:
  first:
    cmd: python first.py
    outs:
    - path: data/first.txt
      md5: 1f3870be274f6c49b3e31a0c6728957f
  last:
    cmd: python last.py
    deps:
    - path: data/first.txt
      md5: 1f3870be274f6c49b3e31a0c6728957f
    params:
      params.yaml:
        seed: 0
    outs:
    - path: data/last.txt
      md5: fe01d67a002dfa0f3ac084298142eccd
"""


def test_wherever_it_is_torn_dvc_can_read_what_is_left_and_it_has_only_what_was_there(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SECONDS_TO_WRITE", 0.0)
    path, whole, ends = tmp_path / "dvc.lock", yaml.safe_load(LOCK)["stages"], set()
    for length in range(len(LOCK)):
        path.write_text(LOCK[:length])
        repair_dvc_state(tmp_path, lambda said: None)
        content = yaml.safe_load(path.read_text()) if path.exists() else {"schema": "2.0"}
        COMPILED_LOCKFILE_SCHEMA(content)
        stages = content.get("stages", {})
        assert list(stages) == list(whole)[: len(stages)]
        assert all(stages[name] == whole[name] for name in list(stages)[:-1])
        ends.add(len(stages))
    assert ends == {0, 1, 2}


@pytest.mark.parametrize("stage", ["first", "last"])
def test_a_lock_file_that_no_kill_tore_is_left_alone(tmp_path, stage):
    path, said, command = tmp_path / "dvc.lock", [], f"    cmd: python {stage}.py\n"
    conflict = LOCK.replace(command, f"<<<<<<< HEAD\n{command}=======\n    cmd: b\n>>>>>>> x\n")
    for text in (LOCK, conflict, LOCK.replace("seed: 0", "seed:")):
        path.write_text(text)
        repair_dvc_state(tmp_path, said.append)
        assert path.read_text() == text
    assert said == []
