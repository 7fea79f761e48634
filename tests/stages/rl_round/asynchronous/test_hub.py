"""What the hub refuses, and what it says while nothing happens."""

from dataclasses import MISSING, fields
from pathlib import Path
from types import SimpleNamespace

import pytest

from stages.foundations.errors import UserError
from stages.rl_round.asynchronous.hub import Hub
from stages.rl_round.asynchronous.trajectory_pool import TrajectoryPool
from stages.rl_round.round import Trained


def hub_with(**parts):
    names = [part.name for part in fields(Hub) if part.default is part.default_factory is MISSING]
    known = {"this_round": SimpleNamespace(name="rl_1"), "journal": SimpleNamespace(folder=Path("scratch/journal"))}
    return Hub(**{**dict.fromkeys(names), "batches": {}, **known, **parts})


@pytest.mark.parametrize("steps_known", [0, 2, 4])
def test_a_checkpoint_that_the_journal_does_not_lead_to_is_an_error(steps_known):
    """The end of the journal was lost. Two steps missing would leave a hole in the curve and in the rollouts."""
    hub = hub_with(curve=[{}] * steps_known)
    with pytest.raises(UserError, match=rf"checkpoint is of step 5, .*ends after step {steps_known}: .*remove"):
        hub._note_trained(Trained(4))


@pytest.mark.parametrize("calls", [[], ["train"]])
def test_a_round_in_which_nothing_happens_says_so_and_is_given_up_when_nobody_works(calls, capsys):
    pool = TrajectoryPool(None, 1, 100, None)
    pool.join(0)
    hub = hub_with(
        coordinator=SimpleNamespace(pool=pool, window=SimpleNamespace(ready=0)),
        fleet=SimpleNamespace(started=lambda: [0]),
        trainers=SimpleNamespace(is_up=True, calls=calls, steps_done=2),
        curve=[{}] * 3,
    )
    for now in range(600):
        hub._check_standing(float(now))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 9 and "behind step 2, 1 replicas hold weights [None], 0 responses" in said[0]
    if calls:
        hub._check_standing(601.0)
    else:
        with pytest.raises(RuntimeError, match=r"rl_1 stands still.*Remove scratch to start"):
            hub._check_standing(601.0)
