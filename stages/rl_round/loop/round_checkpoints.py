"""What a round has reached, and its checkpoints: everything that the next step depends on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.protocol import Trainer, replace_folder_together
from stages.foundations.files import write_json
from stages.observe.progress import say
from stages.rl_round.loop.batch_source import BatchSource
from stages.rl_round.loop.round_log import RoundLog
from stages.rl_round.loop.weight_sync import WeightSync


@dataclass
class RoundState:
    """Where a round stands between two steps, the same on every rank."""

    step: int = 0
    """Steps done."""
    policy_version: int = 0
    """Steps that have changed the weights: the version that the sampler was last given."""
    curve: list[dict[str, float]] = field(default_factory=list)


def save_state(
    checkpoints: Checkpoints,
    state: RoundState,
    trainer: Trainer,
    source: BatchSource,
    weights: WeightSync,
    log: RoundLog,
) -> None:
    """Writes a checkpoint that `load_state` continues from bit for bit; collective.

    Its manifest lists the files of the log as well, so it counts only while they are what was written.
    """
    with replace_folder_together(trainer, checkpoints.folder(state.step)) as folder:
        hashes = trainer.save_checkpoint(folder)
        source.save(folder)
        weights.save(folder)
        if trainer.rank == 0:
            write_json(folder / "round.json", asdict(state))
    checkpoints.keep_last({**hashes, **log.kept()}, trainer)


def load_state(
    checkpoints: Checkpoints, trainer: Trainer, source: BatchSource, weights: WeightSync
) -> RoundState:
    """The state of the last checkpoint, with all parts restored to it; a new state when there is none.

    The sampler still needs the trainer's weights.
    """
    found = checkpoints.latest(trainer)
    if found is None:
        return RoundState()
    step, folder = found
    say(f"rl_round: going on from step {step}")
    # Each part restores itself; what they wrote was sealed together, so none is of another step.
    trainer.load_checkpoint(folder)
    source.load(folder)
    weights.load(folder)
    return RoundState(**json.loads((folder / "round.json").read_text(encoding="utf-8")))
