"""Copies of the weights in the synchronous loop: to the sampler after each step, and to checkpoints.

After every sync the sampler must give the same log-probs as the trainer on a fixed batch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from safetensors.torch import load_file, save_file

from stages.engines.policies.packing import TokenSequence, pack
from stages.engines.replicas.replica import Probe, ProbeCheck
from stages.engines.samplers.protocol import Sampler, SamplingSettings, sample_prompts
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.protocol import Trainer, replace_folder_together
from stages.engines.trainers.training_loop import keep_best
from stages.foundations.files import write_json
from stages.foundations.seeds import derive_seed
from stages.observe.progress import say
from stages.rl_round.learners import load_training, save_training
from stages.rl_round.loop.batch_source import BatchSource
from stages.rl_round.loop.round_log import RolloutLog
from stages.rl_round.params import WeightSyncCheckParams
from stages.rl_round.round import Round


class WeightSync:
    """Loads the trainer's weights into the sampler; this base class, for replays, has no sampler.

    All methods are collective.
    """

    def push(self, policy_version: int) -> dict[str, float]:
        """Makes the trainer's current weights that version of the policy; returns the measurements of the check.

        SyncError when sampler and trainer disagree.
        """
        return {}

    def save(self, folder: Path) -> None:
        """Writes the state that `load` needs, except the trainer's weights, into a checkpoint's folder."""

    def load(self, folder: Path) -> None:
        """Restores the state that `save` wrote, before the first `push`."""


class SamplerSync(WeightSync):
    """All ranks gather the weights, and each loads them into its sampler."""

    def __init__(self, this_round: Round, sampler: Sampler) -> None:
        self._trainer, self._sampler = this_round.trainer, sampler
        # Sampled before a checkpoint is loaded, so a resumed round checks the same responses as before.
        check = WeightSyncCheck.drawn(
            this_round.params.weight_sync_check,
            [problem.prompt for problem in this_round.problems],
            this_round.params.max_response_tokens,
            sampler,
            derive_seed(this_round.seed, this_round.name, "probe"),
        )
        # All ranks have sampled, as the ranks of one engine must; all check the same responses.
        self._check: WeightSyncCheck = self._trainer.broadcast(check)

    def push(self, policy_version: int) -> dict[str, float]:
        """Returns the largest gap of a log-prob on any rank."""
        # Every rank makes these calls in this order: both are collective.
        from_trainer = self._check.trainer_side(self._trainer)
        self._sampler.load_weights(self._trainer.named_weights(), policy_version)
        gaps = self._trainer.gather(self._check.check(self._sampler, from_trainer))
        # The largest gap of all ranks: each holds a separate engine, and one with stale weights is an error.
        return {"sync/logprob_gap_max": max(gaps)}

    def save(self, folder: Path) -> None:
        """Writes the older weights that a deliberately stale sampler still serves; empty for other samplers."""
        # Only of one rank: the samplers of all ranks serve the same weights.
        if self._trainer.rank == 0:
            save_file(self._sampler.kept_weights(), folder / "sampler.safetensors")

    def load(self, folder: Path) -> None:
        self._sampler.restore_weights(load_file(folder / "sampler.safetensors"))


PROBE_TOKENS = 256
"""Most tokens compared of a response: log-probs of the whole vocabulary exist for all of them at once, and a stale
weight shows in the first."""


@dataclass
class WeightSyncCheck:
    """A fixed batch of responses, and the check of every sync on it."""

    params: WeightSyncCheckParams
    prompts: list[list[int]]
    responses: list[list[int]]
    _check: ProbeCheck = field(default_factory=ProbeCheck)

    @classmethod
    def drawn(
        cls,
        params: WeightSyncCheckParams,
        prompts: list[list[int]],
        max_response_tokens: int,
        sampler: Sampler,
        seed: int,
    ) -> WeightSyncCheck:
        """Makes the fixed batch: samples one response, or its beginning, to the first `params.sequences` prompts."""
        # The first problems and a separate seed: every attempt at this round checks the same responses.
        chosen = prompts[: params.sequences]
        # Always the plain distribution: a pruned one would hide weights that differ in its tail.
        settings = SamplingSettings(1.0, 1.0, 0, min(PROBE_TOKENS, max_response_tokens), None)
        names = [str(number) for number in range(len(chosen))]
        drawn = sample_prompts(sampler, chosen, names, 1, settings, seed)
        return cls(params, chosen, [samples[0].token_ids for samples in drawn])

    def trainer_side(self, trainer: Trainer) -> list[float]:
        """Returns the trainer's log-probs of the batch, one response after another; collective."""
        return trainer_logprobs(trainer, self.prompts, self.responses)

    def check(self, sampler: Sampler, from_trainer: list[float]) -> float:
        """Returns the largest gap of a token's log-prob; raises SyncError like `ProbeCheck`."""
        return self._check.gap(Probe(self.prompts, self.responses, from_trainer, self.params.max_logprob_gap), sampler)


def trainer_logprobs(trainer: Trainer, prompts: list[list[int]], responses: list[list[int]]) -> list[float]:
    """Returns the trainer's current log-probs of all response tokens, one response after another; collective."""
    batch = pack([TokenSequence(*pair) for pair in zip(prompts, responses, strict=True)])
    return trainer.evaluate(batch).logprobs.cpu()[batch.response_mask.bool()].tolist()


@dataclass
class RoundState:
    """The state of a round between two steps, the same on every rank."""

    step: int = 0
    """Steps done."""
    policy_version: int = 0
    """Steps that have changed the weights: the version that the sampler loaded last."""
    curve: list[dict[str, float]] = field(default_factory=list)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    """Held-out accuracy, from step 0 on."""
    best_step: int | None = None
    """The step whose weights are kept; None when none are."""


def save_state(
    checkpoints: Checkpoints,
    state: RoundState,
    this_round: Round,
    source: BatchSource,
    weights: WeightSync,
    log: RolloutLog | None,
) -> None:
    """Writes a checkpoint from which `load_state` resumes bit for bit; collective.

    Its manifest also lists the files of the log, so it is valid only while they are unchanged.
    """
    trainer = this_round.trainer
    with replace_folder_together(trainer, checkpoints.folder(state.step)) as folder:
        hashes = save_training(this_round, folder)
        source.save(folder)
        weights.save(folder)
        if state.best_step is not None:
            keep_best(trainer, folder, checkpoints.newest(), state.best_step == state.step)
        if trainer.rank == 0:
            write_json(folder / "round.json", asdict(state))
    # The log is sealed with the checkpoint: steps that do not run again must have their rollouts on disk.
    checkpoints.keep_last({**hashes, **(log.kept() if log else {})}, trainer)


def load_state(checkpoints: Checkpoints, this_round: Round, source: BatchSource, weights: WeightSync) -> RoundState:
    """Restores all parts from the last checkpoint and returns its state; a new state when there is none.

    The sampler still needs the trainer's weights.
    """
    latest = checkpoints.latest(this_round.trainer)
    if latest is None:
        return RoundState()
    step, folder = latest
    say(f"rl_round: resuming from step {step}")
    # Each part restores itself; their files were sealed together, so all are of the same step.
    load_training(this_round, folder)
    source.load(folder)
    weights.load(folder)
    return RoundState(**json.loads((folder / "round.json").read_text(encoding="utf-8")))
