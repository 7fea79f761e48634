"""What every rank of a round holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stages.engines.policies.reference import ReferencePolicy
from stages.engines.trainers.protocol import Trainer
from stages.observe.tracking import Run
from stages.rl_round.params.rl import RlParams, RoundParams


@dataclass(frozen=True)
class RoundContext:
    """The settings of a round and the parts that train; what samples stands behind the round's batch source."""

    params: RlParams
    round: RoundParams
    name: str
    """Of the round and of the policy that it makes."""
    seed: int
    micro_batch_tokens: int
    trainer: Trainer
    reference: ReferencePolicy | None
    """The policy that the round starts from, for `rl.reference_kl`; None when that is off."""
    scratch: Path
    """Folder of the round's checkpoints."""
    run: Run | None
    """None in a process that another one observes."""
