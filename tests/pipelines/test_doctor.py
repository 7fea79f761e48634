"""Each check on a machine or project that is made to have the fault, and all checks on a healthy one."""

import json
import os
import socket
import sqlite3
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.commands import doctor
from pipelines.commands.doctor import Finding, Level
from stages.engines.environments import python_programs
from stages.engines.workers.sandbox import lacking
from stages.foundations.packages import how_to_install
from tests.fakes.graded_project import git
from tests.fakes.running_ui import unused_port

PROJECT = Path(__file__).resolve().parents[2]


def levels(findings):
    return [finding.level for finding in findings]


@pytest.mark.parametrize(("version", "level"), [((3, 10), Level.PROBLEM), ((3, 14), Level.WARNING)])
def test_a_python_that_is_too_old_or_untried(tmp_path, version, level):
    assert levels(doctor.check_python(tmp_path, version)) == [level]


def test_packages_are_held_against_the_lock(tmp_path):
    text = "# group: core\ntorch==2.13.0\nruamel.yaml==0.19.1\n\n# group: test\npytest==9.0.0\n"
    (tmp_path / "requirements.lock").write_text(text)
    good = {"torch": "2.13.0+cpu", "ruamel-yaml": "0.19.1"}
    assert levels(doctor.check_packages(tmp_path, good)) == [Level.OK]
    (missing,) = doctor.check_packages(tmp_path, {"torch": "2.13.0"})
    assert missing == Finding(Level.PROBLEM, "packages", "group core lacks ruamel.yaml", "`make repro`")
    (other,) = doctor.check_packages(tmp_path, good | {"torch": "2.12.0"})
    assert "torch 2.12.0 instead of 2.13.0" in other.found
    # An incomplete group is not required, but its installed packages must have the right versions.
    (other,) = doctor.check_packages(tmp_path, good | {"pytest": "8.0.0"})
    assert "pytest 8.0.0 instead of 9.0.0" in other.found
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "retrace-set-up.json").write_text(json.dumps({"groups": ["core", "test"]}))
    (missing,) = doctor.check_packages(tmp_path, good)
    assert missing.found == "group test lacks pytest"
    assert missing.remedy == f"delete .venv/retrace-set-up.json, {how_to_install('test')}"
    # What the parameters name must be there, too, although no set-up has installed it yet.
    (tmp_path / "requirements.lock").write_text(f"{text}\n# group: lora\npeft==0.21.2\n")
    (tmp_path / "params.yaml").write_text("rl:\n  adapter: {kind: lora, rank: 4}\n")
    (missing,) = doctor.check_packages(tmp_path, good | {"pytest": "9.0.0"})
    assert (missing.found, missing.remedy) == ("group lora lacks peft", how_to_install("lora"))


def test_a_kernel_that_cannot_confine_workers_is_a_warning(monkeypatch):
    def lacks(call, number):
        """Answers like a kernel that does not know the call."""
        monkeypatch.setattr(f"stages.engines.workers.sandbox._libc.{call}", lambda *_: number)
        return [finding.found for finding in doctor.check_sandbox() if finding.level is Level.WARNING]

    assert lacks("syscall", -1) == ["not confined here: reading files (Landlock, Linux 5.13)"]
    assert "network, new processes, writing (seccomp)" in lacks("prctl", 0)[0]


@pytest.mark.skipif(bool(lacking()), reason="this kernel does not confine")
def test_a_program_is_tried_where_the_parameters_choose_the_tool(tmp_path, monkeypatch):
    workers = {"processes": 1, "memory_mib": 512, "timeout_seconds": 5.0}
    environment = {"kind": "tools", "tools": {"python": {"kind": "python"}}, "calls": {"kind": "tagged"}}
    environment |= {"frame": {"kind": "chat"}, "max_turns": 4, "max_observation_tokens": 64, "workers": workers}

    def found():
        (tmp_path / "params.yaml").write_text(json.dumps({"prompt": {"environment": environment}}))
        return [(finding.name, finding.level, finding.found) for finding in doctor.check_programs(tmp_path)]

    assert found() == [("programs", Level.OK, "a program ran in its sandbox")]
    # The helper looks for itself: it answers as it would on a kernel without these restrictions.
    monkeypatch.setattr(python_programs, "lacking", lambda: ["reading files"])
    monkeypatch.setattr(doctor, "run_program", python_programs._run)
    [(name, level, said)] = found()
    assert (name, level) == ("programs", Level.PROBLEM) and "does not restrict reading files" in said
    environment["tools"] = {}
    assert found() == []
    (tmp_path / "params.yaml").write_text("prompt: {kind: plain}")
    assert list(doctor.check_programs(tmp_path)) == []


@pytest.mark.parametrize(
    ("build", "is_available", "shown", "level", "text"),
    [
        (None, False, ["H100, 570.1, 10, 81559"], Level.PROBLEM, "is a CPU build"),
        ("12.8", False, ["H100, 570.1, 10, 81559"], Level.PROBLEM, "cannot use it"),
        ("12.8", True, ["H100, 570.1, 10, 81559"], Level.OK, "H100"),
        ("12.8", True, None, Level.PROBLEM, "nvidia-smi does not answer"),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_a_problem(monkeypatch, build, is_available, shown, level, text):
    import torch

    monkeypatch.setattr(doctor, "has_nvidia_gpu", lambda: True)
    monkeypatch.setattr(doctor, "_nvidia_smi", lambda: shown)
    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_available)
    (found,) = doctor.check_gpu()
    assert found.level is level and text in found.found


def test_a_gpu_in_use_is_a_warning(monkeypatch):
    assert levels(doctor._used_gpus(["H100, 570.1, 70000, 81559", "H100, 570.1, 5, 81559"])) == [Level.WARNING]


@pytest.mark.parametrize(("gib", "level"), [(1, Level.PROBLEM), (5, Level.WARNING), (50, Level.OK)])
def test_a_full_disk(monkeypatch, tmp_path, gib, level):
    usage = type("usage", (), {"free": gib * 2**30})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place: usage)
    places = {"the project": tmp_path, "state": tmp_path / "not" / "there"}
    assert levels(doctor.check_disk(places)) == [level], "one file system is one line"


@pytest.mark.parametrize(
    ("mlflow_port", "level", "found"),
    [("", Level.OK, "is free"), ("five thousand", Level.PROBLEM, "MLFLOW_PORT=five thousand")],
)
def test_ports_free_taken_by_what_speaks_no_http_and_none(monkeypatch, mlflow_port, level, found):
    def greet(listener):
        for _ in range(2):  # the check for a free port opens no connection, another may
            connection, _ = listener.accept()
            connection.sendall(b"SSH-2.0-OpenSSH_9\r\n")
            connection.close()

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        threading.Thread(target=greet, args=[taken], daemon=True).start()
        port = taken.getsockname()[1]
        monkeypatch.setenv("PREFECT_PORT", str(port))
        monkeypatch.setenv("MLFLOW_PORT", mlflow_port or str(unused_port()))
        prefect, mlflow = doctor.check_servers()
    assert prefect.level is Level.WARNING and "something else listens" in prefect.found
    assert f"PREFECT_PORT={port + 1}" in prefect.remedy
    assert mlflow.level is level and found in mlflow.found


def test_errors_in_the_logs_of_the_servers_are_warnings(tmp_path):
    assert "none yet" in next(doctor.check_logs(tmp_path)).found
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker.log").write_text("08:00:00.000 | ERROR   | Flow run 'x' - of a user's own stage\n")
    (tmp_path / "logs" / "mlflow.log").write_text("2026/11/29 08:00:00 INFO mlflow: ERROR is a word here\n")
    assert levels(doctor.check_logs(tmp_path)) == [Level.OK]
    text = "08:00:00.000 | ERROR   | docket - the first\nTraceback\n08:00:01.000 | CRITICAL | docket - the second\n"
    (tmp_path / "logs" / "prefect.log").write_text(text)
    (found,) = doctor.check_logs(tmp_path)
    assert found.level is Level.WARNING and "prefect.log has 2 errors, the last: docket - the second" in found.found


def test_git_says_what_could_not_be_traced(tmp_path):
    assert levels(doctor.check_git(tmp_path)) == [Level.PROBLEM]
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / "a.py").write_text("1")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
        git(tmp_path, *command)
    assert levels(doctor.check_git(tmp_path)) == [Level.OK]
    (tmp_path / "dvc.lock").write_text("")
    (found,) = doctor.check_git(tmp_path)
    assert found.level is Level.WARNING and "dvc.lock is not committed" in found.found
    (tmp_path / "stages" / "a.py").write_text("2")
    (found,) = doctor.check_git(tmp_path)
    assert "code is not committed: stages/a.py" in found.found


def test_the_kind_of_link_is_tried_and_nothing_is_left(tmp_path, monkeypatch):
    (found,) = doctor.check_link(tmp_path, tmp_path / "cache")
    assert found.level is Level.OK and ("hardlink" in found.found or "reflink" in found.found)

    def refuse(*arguments):
        raise OSError("another file system")

    for kinds, level, told in ((2, Level.OK, "symlink"), (3, Level.WARNING, "outputs are copied")):
        for name in [*doctor.LINKS][:kinds]:
            monkeypatch.setitem(doctor.LINKS, name, refuse)
        (found,) = doctor.check_link(tmp_path, tmp_path / "cache")
        assert found.level is level and told in found.found
    assert os.listdir(tmp_path) == ["cache"] and not os.listdir(tmp_path / "cache")


def test_a_cache_that_cannot_be_made_is_a_problem(tmp_path):
    (tmp_path / "file").write_text("")
    (found,) = doctor.check_link(tmp_path, tmp_path / "file" / "cache")
    assert found.level is Level.PROBLEM and "dvc cache dir" in found.remedy


@pytest.mark.slow
def test_a_remote_that_does_not_answer_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    (tmp_path / ".dvc").mkdir()
    config = tmp_path / ".dvc" / "config"
    config.write_text("[core]\n    no_scm = true\n")
    assert "none" in next(doctor.check_remote(tmp_path)).found
    text = "[core]\n    no_scm = true\n    remote = s\n['remote \"s\"']\n    url = "
    for place, told in (
        ("ftp://nowhere/store", "Unsupported URL type ftp"),
        ("ssh://127.0.0.1:1/store", "s (ssh://127.0.0.1:1/store)"),  # no server listens, or DVC has no package for it
    ):
        config.write_text(f"{text}{place}\n")
        (found,) = doctor.check_remote(tmp_path)
        assert found.level is Level.PROBLEM and told in found.found
    config.write_text(text + str(tmp_path / "store") + "\n")
    assert levels(doctor.check_remote(tmp_path)) == [Level.OK]


def test_a_broken_tracking_database_and_broken_parameters(tmp_path, monkeypatch):
    assert levels(doctor.check_tracking(tmp_path)) == [Level.OK]
    (tmp_path / "mlflow.db").write_text("this is no database, however long it is" * 100)
    (found,) = doctor.check_tracking(tmp_path)
    assert found.level is Level.PROBLEM and "retrace mirror" in found.remedy
    (tmp_path / "mlflow.db").unlink()
    with sqlite3.connect(tmp_path / "mlflow.db") as connection:
        connection.execute("create table runs (id)")
    assert "0 runs" in next(doctor.check_tracking(tmp_path)).found
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@host:5000")
    assert "secret" not in next(doctor.check_tracking(tmp_path)).found
    assert levels(doctor.check_params(tmp_path)) == [Level.PROBLEM]
    shell = "'a;b', which dvc.yaml would put into a shell"
    for text, told in (("seed: 0\n", "missing section"), ("seed: 0\nsources: {'a;b': {}}\n", shell)):
        (tmp_path / "params.yaml").write_text(text)
        (found,) = doctor.check_params(tmp_path)
        assert found.level is Level.PROBLEM and told in found.found


@pytest.mark.parametrize(
    ("text", "is_slow", "told"),
    [
        ("sampler: {dtype: bfloat16}\ntrainer: {dtype: mixed}\n", True, "sampler.dtype: bfloat16 and trainer"),
        ("trainer: {dtype: mixed}\n", False, None),
        ("sampler: {dtype: float32}\ntrainer: [1]\n", True, None),
        (": no mapping", True, None),
        (None, True, None),
    ],
)
def test_bfloat16_on_a_cpu_without_instructions_for_it_is_a_warning(tmp_path, monkeypatch, text, is_slow, told):
    monkeypatch.setattr(doctor, "is_bfloat16_slow", lambda: is_slow)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    if text:
        (tmp_path / "params.yaml").write_text(text)
    found = list(doctor.check_bfloat16(tmp_path))
    assert levels(found) == ([Level.WARNING] if told else [])
    assert not told or (told in found[0].found and "float32" in found[0].remedy)


def test_the_command_tells_each_line_and_fails_on_a_problem_alone(monkeypatch):
    findings = [Finding(Level.OK, "disk", "plenty"), Finding(Level.WARNING, "git", "dirty", "commit")]
    monkeypatch.setattr(doctor, "examine", lambda root, state: iter(findings))
    shown = CliRunner().invoke(app, ["doctor"])
    assert shown.exit_code == 0 and "-> commit" in shown.stdout and "0 problems, 1 warnings" in shown.stdout
    findings.append(Finding(Level.PROBLEM, "python", "3.9", "install"))
    shown = CliRunner().invoke(app, ["doctor", "--json"])
    assert shown.exit_code == 1
    assert json.loads(shown.stdout)[2] == {"name": "python", "level": "problem", "found": "3.9", "remedy": "install"}
