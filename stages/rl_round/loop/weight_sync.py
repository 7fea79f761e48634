"""Where the weights go in the synchronous loop: to the sampler after each step, and to checkpoints.

After every sync the sampler must give the trainer's log-probs on a fixed batch. A sampler with stale weights, or with
one stale tensor (a tied head that was packed before), answers as fluently as a fresh one: only this comparison sees it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

from safetensors.torch import load_file, save_file

from stages.engines.policies.packing import TokenSequence, pack
from stages.engines.samplers.protocol import Sampler, SamplingSettings, sample_prompts
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.protocol import Trainer, replace_folder_together
from stages.foundations.files import write_json
from stages.foundations.seeds import derive_seed
from stages.observe.progress import say
from stages.rl_round.loop.batch_source import BatchSource
from stages.rl_round.loop.round_log import RoundLog
from stages.rl_round.params import WeightSyncCheckParams
from stages.rl_round.rollouts.records import Problem
from stages.rl_round.task import RoundContext


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


PROBE_TOKENS = 256
"""Most tokens of a response that is compared: the log-probs of the whole vocabulary exist for all of them at once, and
a weight that is stale shows in the first."""
SMALLEST_CHANGE = 1e-6
"""Change of the trainer's log-probs below which a sampler that did not change at all is not suspicious."""


class SyncError(RuntimeError):
    """Sampler and trainer hold different weights."""


@dataclass
class WeightSyncCheck:
    """A fixed batch of responses and what both sides said of it last."""

    params: WeightSyncCheckParams
    prompts: list[list[int]]
    responses: list[list[int]]
    trainer_logprobs: list[float] = field(default_factory=list)
    sampler_logprobs: list[float] = field(default_factory=list)

    @classmethod
    def drawn(
        cls,
        params: WeightSyncCheckParams,
        prompts: list[list[int]],
        max_response_tokens: int,
        sampler: Sampler,
        seed: int,
    ) -> WeightSyncCheck:
        """A probe on one response of `sampler`, or its beginning, to each of the first `params.sequences` prompts."""
        chosen = prompts[: params.sequences]
        settings = SamplingSettings(1.0, 1.0, 0, min(PROBE_TOKENS, max_response_tokens), None)
        names = [str(number) for number in range(len(chosen))]
        drawn = sample_prompts(sampler, chosen, names, 1, settings, seed)
        return cls(params, chosen, [samples[0].token_ids for samples in drawn])

    def trainer_side(self, trainer: Trainer) -> list[float]:
        """The trainer's log-probs of the batch, one after another; collective."""
        batch = pack([TokenSequence(*pair) for pair in zip(self.prompts, self.responses, strict=True)])
        return trainer.evaluate(batch).logprobs.cpu()[batch.response_mask.bool()].tolist()

    def check(self, sampler: Sampler, from_trainer: list[float]) -> float:
        """The largest gap of a token's log-prob; SyncError when it is too large or the sampler stood still.

        Without a bound the gap is only measured: a sampler that differs on purpose may well stand still.
        """
        from_sampler = [value for row in sampler.logprobs(self.prompts, self.responses) for value in row]
        gap = _largest_gap(from_sampler, from_trainer)
        stood_still = bool(self.sampler_logprobs) and from_sampler == self.sampler_logprobs
        moved = _largest_gap(from_trainer, self.trainer_logprobs) if self.trainer_logprobs else 0.0
        self.sampler_logprobs, self.trainer_logprobs = from_sampler, from_trainer
        if self.params.max_logprob_gap is None:
            return gap
        if not gap <= self.params.max_logprob_gap:  # NaN is no agreement
            raise SyncError(
                f"after the sync to version {sampler.policy_version} a token's log-prob differs by {gap:.2e} between "
                f"sampler and trainer (allowed: rl.weight_sync_check.max_logprob_gap "
                f"{self.params.max_logprob_gap:.0e}). The sampler does not hold the trainer's weights, or runs at a "
                "precision that the bound is too tight for"
            )
        if stood_still and moved > SMALLEST_CHANGE:
            raise SyncError(
                f"the trainer's log-probs moved by {moved:.2e} and the sampler's not at all: the sync to version "
                f"{sampler.policy_version} did not reach the sampler"
            )
        return gap


def _largest_gap(first: list[float], second: list[float]) -> float:
    gaps = [abs(a - b) for a, b in zip(first, second, strict=True)]
    return math.nan if any(map(math.isnan, gaps)) else max(gaps, default=0.0)


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


def load_state(checkpoints: Checkpoints, trainer: Trainer, source: BatchSource, weights: WeightSync) -> RoundState:
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
