"""Variables of a block are gone, or as before, after it."""

import os
import subprocess
import sys

import pytest

from stages.foundations.machine import variables_set


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
