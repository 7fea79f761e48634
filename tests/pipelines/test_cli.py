"""Errors that every command of `retrace` reports in one sentence instead of a trace."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.commands import grading
from stages.foundations.dvc_lock import read_lock
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT


def invoke(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.mark.parametrize("command", [["plan"], ["grade", "rows.jsonl", "--params"]])
def test_a_folder_where_a_file_should_be_is_told(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"gold": "1", "prediction": "1"}\n')
    folder = tmp_path / "folder.yaml"
    folder.mkdir()
    done = invoke(*command, folder)
    assert done.exit_code == 2 and done.output == f"error: {folder}: Is a directory\n"


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "page"), 1, "error: no disk space left at page: free"),
        (UserError("mend it"), 2, "error: mend it\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_what_any_command_may_meet(monkeypatch, error, code, told):
    def fail(*arguments):
        raise error

    monkeypatch.setattr("pipelines.commands.doctor.examine", fail)
    done = invoke("doctor")
    assert (done.exit_code, done.output.startswith(told)) == (code, True), done.output


def test_a_retrace_of_another_clone_is_an_error(tmp_path, monkeypatch):
    for name in ("dvc.yaml", "pipelines/cli.py"):
        (tmp_path / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / name, tmp_path / "clone" / name)
    (tmp_path / "clone" / "data").mkdir()
    monkeypatch.chdir(tmp_path / "clone" / "data")
    refused = invoke("use", "laptop")
    right = tmp_path / "clone" / ".venv" / "bin" / "retrace"
    assert refused.exit_code == 2
    assert refused.output == (
        f"error: this `retrace` works on {PROJECT}, and you are in {tmp_path / 'clone'}: run {right} here, or change "
        f"to {PROJECT}\n"
    )
    Path("rows.jsonl").write_text('{"gold": "4", "prediction": "Answer: 4"}\n')
    graded = invoke("grade", "rows.jsonl", "--params", PROJECT / "params.yaml")
    assert graded.exit_code == 0 and '"correct"' in graded.output, "grading needs no project"
    assert invoke("use", "--help").exit_code == 0
    monkeypatch.chdir(PROJECT / "docs")
    assert "works on" not in invoke("plan").output
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert invoke("plan").exit_code == 2


def test_a_torn_lock_is_told_and_an_empty_one_has_no_stages():
    for text in (b"stages: [", b"- 1", b"stages: {base: {}}"):
        with pytest.raises(UserError, match=r"is not readable .*: take it from git, or run `dvc repro`"):
            read_lock(text, "here")
    assert all(read_lock(text, "here") == {} for text in (None, b"", b"schema: '2.0'"))


def test_ctrl_c_ends_a_command_that_works_without_a_trace(tmp_path):
    """The command grades standard input, which never ends."""
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    script = "from pipelines.cli import app; app()"
    command = [sys.executable, "-c", script, "grade", "-", "--params", PROJECT / "params.yaml"]
    # Tests in the background ignore Ctrl-C, and their children would inherit this.
    hears = {"start_new_session": True, "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    with subprocess.Popen(command, cwd=PROJECT, text=True, **hears, **pipes) as process:
        process.stdin.write('{"gold": "4", "prediction": "Answer: 4"}\n' * grading._ROWS_AT_ONCE)
        process.stdin.flush()
        assert '"correct"' in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read() == "interrupted\n"
