"""The state folder is closed to other accounts, and variables of a block are gone after it."""

import os
import subprocess
import sys

import pytest

from stages.foundations.machine import state_folder, variables_set


@pytest.mark.parametrize(
    ("mode", "closed"), [(None, 0o700), (0o755, 0o700), (0o775, 0o770), (0o777, 0o770), (0o2770, 0o2770)]
)
def test_a_state_folder_is_closed_to_all_but_a_group_that_writes(tmp_path, monkeypatch, mode, closed):
    """None: it is made."""
    folder = tmp_path / "a" / "state"
    if mode is not None:
        folder.mkdir(parents=True)
        folder.chmod(mode)
    monkeypatch.setenv("RETRACE_STATE", str(folder))
    assert state_folder().stat().st_mode & 0o7777 == closed


def test_a_place_where_none_can_be_is_left_to_who_needs_it(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("RETRACE_STATE", str(tmp_path / "file" / "state"))
    assert state_folder() == tmp_path / "file" / "state"


def test_children_see_the_variables_and_nobody_after_the_block(monkeypatch):
    monkeypatch.setenv("RETRACE_TEST_OLD", "old")
    monkeypatch.delenv("RETRACE_TEST_NEW", raising=False)
    show = "import os; print(os.environ['RETRACE_TEST_OLD'], os.environ['RETRACE_TEST_NEW'])"
    with variables_set({"RETRACE_TEST_OLD": "changed", "RETRACE_TEST_NEW": "new"}):
        assert subprocess.check_output([sys.executable, "-c", show], text=True) == "changed new\n"
    assert os.environ["RETRACE_TEST_OLD"] == "old" and "RETRACE_TEST_NEW" not in os.environ


def test_they_are_put_back_after_an_error_and_when_the_block_removed_one(monkeypatch):
    monkeypatch.delenv("RETRACE_TEST_NEW", raising=False)
    with pytest.raises(RuntimeError), variables_set({"RETRACE_TEST_NEW": "new"}):
        del os.environ["RETRACE_TEST_NEW"]
        raise RuntimeError
    assert "RETRACE_TEST_NEW" not in os.environ
