"""How the trainer's weights reach the sampler in the synchronous loop, and the check that they arrived."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from safetensors.torch import load_file, save_file

from stages.engines.samplers.protocol import Sampler
from stages.foundations.seeds import derive_seed
from stages.rl_round.loop.context import RoundContext
from stages.rl_round.loop.weight_sync_check import WeightSyncCheck
from stages.rl_round.rollouts.records import Problem


class WeightSync(Protocol):
    """Brings the trainer's weights to whatever samples. All methods are collective."""

    def push(self, policy_version: int) -> dict[str, float]:
        """Makes the trainer's present weights that version of the policy; what the check of it has measured.

        SyncError when sampler and trainer disagree.
        """

    def save(self, folder: Path) -> None:
        """Writes what `load` needs beside the trainer's weights into a checkpoint's folder."""

    def load(self, folder: Path) -> None:
        """Takes back what `save` wrote, before the first `push`."""


class SamplerSync:
    """Every rank hands the weights, which all of them gather, to the sampler that it holds."""

    def __init__(self, context: RoundContext, sampler: Sampler, problems: Sequence[Problem]) -> None:
        self._trainer, self._sampler = context.trainer, sampler
        # Before a checkpoint is loaded: a round that goes on checks the responses of one that was not killed.
        check = WeightSyncCheck.drawn(
            context.params.weight_sync_check,
            [problem.prompt for problem in problems],
            context.params.max_response_tokens,
            sampler,
            derive_seed(context.seed, context.name, "probe"),
        )
        # All have drawn, as the ranks of one engine must; all check the same responses.
        self._check: WeightSyncCheck = context.trainer.broadcast(check)

    def push(self, policy_version: int) -> dict[str, float]:
        """See the protocol: the largest gap of a log-prob on any rank."""
        # First, and on every rank in this order: both calls are collective.
        from_trainer = self._check.trainer_side(self._trainer)
        self._sampler.load_weights(self._trainer.named_weights(), policy_version)
        gaps = self._trainer.gather(self._check.check(self._sampler, from_trainer))
        return {"sync/logprob_gap_max": max(gaps)}

    def save(self, folder: Path) -> None:
        """The older weights that a sampler which is stale on purpose still serves; empty for others."""
        if self._trainer.rank == 0:  # all serve the same
            save_file(self._sampler.kept_weights(), folder / "sampler.safetensors")

    def load(self, folder: Path) -> None:
        """See the protocol."""
        self._sampler.restore_weights(load_file(folder / "sampler.safetensors"))
