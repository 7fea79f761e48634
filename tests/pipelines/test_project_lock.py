"""One run at a time in a project."""

import subprocess
import sys
import threading

import pytest

from pipelines.graph.project_lock import project_lock
from pipelines.runtime.locks import refusing_lock
from stages.foundations.errors import UserError
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
