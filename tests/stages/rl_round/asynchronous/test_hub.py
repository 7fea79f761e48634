"""What the hub refuses."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from stages.foundations.errors import UserError
from stages.rl_round.asynchronous.hub import Hub
from stages.rl_round.asynchronous.messages import Trained


@pytest.mark.parametrize("steps_known", [0, 2, 4])
def test_a_checkpoint_that_the_journal_does_not_lead_to_is_an_error(steps_known):
    """The end of the journal was lost. Two steps missing would leave a hole in the curve and in the rollouts."""
    parts = SimpleNamespace(
        name="rl_1",
        coordinator=None,
        fleet=None,
        timeline=None,
        curve=[{}] * steps_known,
        batches={},
        journal=SimpleNamespace(folder=Path("scratch/journal")),
    )
    with pytest.raises(
        UserError, match=rf"checkpoint is of step 5, .*ends after step {steps_known}: .*remove"
    ):
        Hub(parts)._note_trained(Trained(4))
