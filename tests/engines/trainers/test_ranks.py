"""Communication between two ranks."""

import time
from datetime import timedelta

import pytest
import torch

from stages.engines.trainers import process_group
from stages.engines.trainers.process_group import ProcessGroup
from stages.foundations.errors import UserError
from tests.fakes.forks import on_ranks


def test_a_draw_that_outlasts_the_timeout_of_a_pass_ends_no_run(monkeypatch):
    """One rank samples for longer than a pass may take; the other waits, and then both continue."""
    monkeypatch.setattr(process_group, "PASS_TIMEOUT", timedelta(seconds=3))

    def work():
        group = ProcessGroup()
        if group.rank == 0:
            time.sleep(4.5)
        assert group.broadcast({"drawn": 5} if group.rank == 0 else None) == {"drawn": 5}
        assert group.gather(group.rank) == [0, 1]
        assert group.gather_to_first(group.rank) == ([0, 1] if group.rank == 0 else [])
        assert group.scatter(["a", "b"] if group.rank == 0 else None) == "ab"[group.rank]
        assert group.sum_over_ranks(torch.tensor([1.0, group.rank])).tolist() == [2.0, 1.0]
        assert group.extremes(7 - group.rank) == (6, 7)
        group.wait_for_all()

    on_ranks(work, 2)


def test_the_wait_for_another_rank_has_an_end(monkeypatch):
    """Without this end the test above could not fail."""
    monkeypatch.setattr(process_group, "PATIENCE", timedelta(seconds=1))

    def work():
        group = ProcessGroup()
        if group.rank == 0:
            time.sleep(3.0)
            return
        with pytest.raises(UserError, match=r"rank 1 of 2 waited .*([Tt]imed out|closed)"):
            group.broadcast(None)

    on_ranks(work, 2)
