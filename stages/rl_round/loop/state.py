"""What a round has reached, and its checkpoints: everything that the next step depends on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas
from safetensors.torch import load_file, save_file
from torch import Tensor

from stages.engines.samplers.protocol import FullSample, Sampler
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.protocol import Trainer, replace_folder_together
from stages.foundations.files import write_json
from stages.foundations.tables.rollout import ROLLOUT
from stages.foundations.tables.table import read_table, write_table
from stages.observe.progress import say
from stages.rl_round.rollouts.dynamic_sampling import DrawState
from stages.rl_round.rollouts.rollouts import Group, Rollout, group_from_json, group_to_json


@dataclass
class RoundState:
    """Where a round stands between two steps."""

    step: int = 0
    """Steps done."""
    policy_version: int = 0
    """Optimizer steps that the sampler's weights have seen, counted in syncs."""
    drawing: DrawState = field(default_factory=DrawState)
    curve: list[dict[str, float]] = field(default_factory=list)


def save_state(
    trainer: Trainer, sampler: Sampler | None, checkpoints: Checkpoints, state: RoundState
) -> None:
    """Writes a checkpoint that `load_state` continues from bit for bit; collective, with the sampler on rank 0."""
    with replace_folder_together(trainer, checkpoints.folder(state.step)) as folder:
        trainer.save_checkpoint(folder)
        if trainer.rank == 0:
            stored = {
                "step": state.step,
                "policy_version": state.policy_version,
                "cursor": state.drawing.cursor,
                "signal_fraction": state.drawing.signal_fraction,
                "carried": [group_to_json(group) for group in state.drawing.carried],
                "curve": state.curve,
            }
            write_json(folder / "round.json", stored)
            save_file(_distributions(state.drawing.carried), folder / "distributions.safetensors")
            save_file(sampler.kept_weights() if sampler else {}, folder / "sampler.safetensors")
    if trainer.rank == 0:
        checkpoints.keep_last()


def load_state(trainer: Trainer, sampler: Sampler | None, checkpoints: Checkpoints) -> RoundState:
    """The state of the last checkpoint, with trainer and sampler restored to it; a new state when there is none.

    The sampler still needs the trainer's weights.
    """
    found = checkpoints.latest()
    if found is None:
        return RoundState()
    step, folder = found
    say(f"rl_round: going on from step {step}")
    trainer.load_checkpoint(folder)
    if sampler:
        sampler.restore_weights(load_file(folder / "sampler.safetensors"))
    stored = json.loads((folder / "round.json").read_text(encoding="utf-8"))
    carried = [group_from_json(group) for group in stored["carried"]]
    carried = _with_distributions(carried, load_file(folder / "distributions.safetensors"))
    drawing = DrawState(stored["cursor"], stored["signal_fraction"], carried)
    return RoundState(stored["step"], stored["policy_version"], drawing, stored["curve"])


def _distributions(groups: Sequence[Group]) -> dict[str, Tensor]:
    """What the groups' samples keep, by number of group and rollout; empty where they keep none."""
    return {
        f"{number}/{index}": rollout.sample.distributions
        for number, group in enumerate(groups)
        for index, rollout in enumerate(group.rollouts)
        if isinstance(rollout.sample, FullSample)
    }


def _with_distributions(groups: Sequence[Group], kept: Mapping[str, Tensor]) -> list[Group]:
    """The inverse of `_distributions`, on groups that have lost theirs."""

    def whole(rollout: Rollout, key: str) -> Rollout:
        if key not in kept:
            return rollout
        return replace(rollout, sample=FullSample(**vars(rollout.sample), distributions=kept[key]))

    return [
        replace(
            group,
            rollouts=tuple(
                whole(rollout, f"{number}/{index}") for index, rollout in enumerate(group.rollouts)
            ),
        )
        for number, group in enumerate(groups)
    ]


class RolloutLog:
    """The rollouts of a round, one file per step in the scratch folder until the round ends."""

    def __init__(self, scratch: Path) -> None:
        self.folder = scratch / "rollouts"

    def add(self, step: int, trained: Sequence[Group], left_out: Sequence[Group]) -> None:
        """Keeps the rollouts whose fate `step` decided, each once; `policy_version` says when they were drawn."""
        fates = [(group, True) for group in trained] + [(group, False) for group in left_out]
        rows = [
            _row(step, group, index, is_used)
            for group, is_used in fates
            for index in range(len(group.rollouts))
        ]
        write_table(rows, self.folder / f"{step:09d}.parquet", ROLLOUT)

    def forget_after(self, step: int) -> None:
        """Removes the files of steps that a run from a checkpoint will do again."""
        for file in self.folder.glob("*.parquet"):
            if int(file.stem) > step:
                file.unlink()

    def frame(self) -> pandas.DataFrame:
        """All rollouts in the order of their steps."""
        return pandas.concat(
            [read_table(file, ROLLOUT) for file in sorted(self.folder.glob("*.parquet"))], ignore_index=True
        )

    def clear(self) -> None:
        """Removes the files: the rollouts table is written."""
        for file in self.folder.glob("*.parquet"):
            file.unlink()


def _row(step: int, group: Group, index: int, is_used: bool) -> dict[str, Any]:
    rollout = group.rollouts[index]
    return {
        "problem_id": group.problem_id,
        "step": step,
        "policy_version": group.policy_version,
        "sample_index": index,
        "response": rollout.response,
        "response_tokens": len(rollout.sample.token_ids),
        "token_ids": rollout.sample.token_ids,
        "rollout_logprobs": rollout.sample.logprobs,
        "reward": rollout.reward,
        "verdict": rollout.verdict.value,
        "is_truncated": rollout.sample.is_truncated,
        "is_trained": is_used and rollout.is_decided,
    }
