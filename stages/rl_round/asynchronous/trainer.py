"""A rank of the trainer: it trains on the batches that it receives, publishes each version of the weights, and answers
held-out problems between two steps.

The hub runs it in a Ray actor; this module does not use Ray. Rank 0 writes weights and checkpoints.
`rl.evaluation` has a separate sampler and verifier here. Replicas sample meanwhile; their random numbers, the schedule
and the journal do not depend on it. Its rows are part of the trainer's checkpoints.
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path

import torch

from stages.engines.policies.tokenizers import load_tokenizer
from stages.engines.relays.published_weights import PublishedWeights
from stages.engines.replicas.build import build_sampler
from stages.engines.replicas.replica import Probe
from stages.engines.samplers.build import drawing_share
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.protocol import replace_folder_together
from stages.engines.trainers.training_loop import keep_best, save_kept
from stages.engines.verifier.verifier import Verifier
from stages.foundations.files import write_json
from stages.rl_round.drawing import GroupDrawing
from stages.rl_round.learners import load_training, save_training, with_trainer
from stages.rl_round.loop.evaluation import evaluate, is_due, kept_step
from stages.rl_round.loop.training_step import train_step
from stages.rl_round.loop.weight_sync import PROBE_TOKENS, trainer_logprobs
from stages.rl_round.methods import AsynchronousLoop
from stages.rl_round.records import Batch
from stages.rl_round.round import Round, Trained, TrainerProgress

ROUND_FILE = "round.json"
"""In a checkpoint's folder."""
PROBE_FILE = "probe.json"
"""Beside it."""


class RoundTrainer:
    """See the module. It starts at the round's last checkpoint, and publishes that version at once."""

    def __init__(self, this_round: Round, weights: Path) -> None:
        """`weights`: folder in this node's memory where versions are published."""
        self._round, loop = with_trainer(this_round), this_round.params.loop
        trainer = self._trainer = self._round.trainer
        assert isinstance(loop, AsynchronousLoop)
        self._stack = ExitStack()
        self._drawing = _drawing_of(self._round, self._stack) if self._round.params.evaluation else None
        self._keep = loop.relay.keep
        self._weights = PublishedWeights(weights, loop.relay.chunk_mib << 20)
        self._probe: list[list[list[int]]] = []
        """Prompt and response of each: the first batch. Responses that a policy would not generate have tiny log-probs,
        for which another order of float sums looks like other weights. Version 0 has no probe: every replica has read
        it."""
        self._checkpoints = Checkpoints(this_round.scratch)
        self._standing, lines = TrainerProgress(0, {}), list[str]()
        latest = self._checkpoints.latest(trainer, lines)
        if latest:
            _, folder = latest
            load_training(self._round, folder)
            self._standing = TrainerProgress(**json.loads((folder / ROUND_FILE).read_text(encoding="utf-8")))
            # The probe of the first start: a different probe in the manifest would make the same version look new.
            self._probe = json.loads((folder / PROBE_FILE).read_text(encoding="utf-8"))
        self._standing = replace(self._standing, lines=lines)
        self._publish()
        if self._evaluate()[1]:
            self._save()

    def standing(self) -> TrainerProgress:
        return self._standing

    def train(self, step: int, batch: Batch, saves: bool) -> Trained:
        """Trains on `batch` as step `step` (from 0), publishes version `step + 1`, and evaluates it when that is due.

        `saves` writes a checkpoint after it; the best weights so far have one in any case. RuntimeError when another
        step is due.
        """
        # A step out of order would give weights that no replay can reach.
        if step != self._standing.steps_done:
            raise RuntimeError(f"the trainer is at {self._standing}, but was sent step {step}")
        started = time.perf_counter()
        if not self._probe:
            chosen = batch.groups[: self._round.params.weight_sync_check.sequences]
            # Of the first turn alone: an environment's tokens may be as unlikely as those.
            samples = [group.rollouts[0].sample for group in chosen]
            ends = [min([PROBE_TOKENS, *(start for start, _ in sample.observed)]) for sample in samples]
            parts = zip(chosen, samples, ends, strict=True)
            self._probe = [[group.prompt, sample.token_ids[:end]] for group, sample, end in parts]
        row = train_step(self._round, step, batch, self._standing.last_row).row
        self._standing = TrainerProgress(step + 1, row, self._standing.evaluations)
        trained = time.perf_counter()
        self._publish()
        published = time.perf_counter()
        # After the publication, so that replicas continue with these weights meanwhile.
        evaluated, is_best = self._evaluate()
        if saves or is_best:
            self._save()
        # Separate, because replicas wait for the first two and not for the others.
        seconds = trained - started, published - trained, evaluated, time.perf_counter() - published - evaluated
        return Trained(step, row, *seconds, time.time(), self._standing.evaluations)

    def save_model(self, folder: Path) -> None:
        """Writes the policy that the round keeps; the folder appears complete."""
        with replace_folder_together(self._trainer, folder) as path:
            is_current = self._kept_step() in (None, self._standing.steps_done)
            save_kept(self._trainer, self._checkpoints, path, is_current)

    def close(self) -> None:
        """Frees memory and leaves the process group."""
        self._stack.close()
        self._round.close()

    def _evaluate(self) -> tuple[float, bool]:
        """Evaluates when due; returns its seconds, and whether a checkpoint must keep these weights; collective."""
        step, known = self._standing.steps_done, self._standing.evaluations
        if not is_due(known, step, self._round):
            return 0.0, False
        started, sampler = time.perf_counter(), self._drawing.sampler
        sampler.load_weights(self._trainer.named_weights(), step)
        row = evaluate(step, self._round, self._drawing)
        # Frees the sampler's memory for training.
        sampler.sleep()
        self._standing = replace(self._standing, evaluations=[*known, row])
        return time.perf_counter() - started, self._kept_step() == step < self._round.settings.steps

    def _kept_step(self) -> int | None:
        return kept_step(self._standing.evaluations, self._round.params.evaluation)

    def _publish(self) -> None:
        """Publishes the weights; collective: every rank helps to gather, rank 0 writes. Does not wait for replicas."""
        trainer, metadata = self._trainer, {}
        if self._probe:
            prompts, responses = map(list, zip(*self._probe, strict=True))
            logprobs, check = trainer_logprobs(trainer, prompts, responses), self._round.params.weight_sync_check
            metadata = Probe(prompts, responses, logprobs, check.max_logprob_gap).to_metadata()
        if trainer.rank != 0:
            # Gathering the weights is collective: this rank takes part but keeps nothing.
            for _ in trainer.named_weights():
                continue
            return
        self._weights.publish(self._standing.steps_done, trainer.named_weights(), metadata)
        # After the new one exists: a reader never finds the folder empty.
        self._weights.prune(self._keep)

    def _save(self) -> None:
        with replace_folder_together(self._trainer, self._checkpoints.folder(self._standing.steps_done)) as folder:
            hashes = save_training(self._round, folder)
            kept = self._kept_step()
            if kept is not None:
                keep_best(self._trainer, folder, self._checkpoints.newest(), kept == self._standing.steps_done)
            if self._trainer.rank == 0:
                write_json(folder / ROUND_FILE, asdict(self._standing))
                write_json(folder / PROBE_FILE, self._probe)
        self._checkpoints.keep_last(hashes, self._trainer)


def _drawing_of(this_round: Round, stack: ExitStack) -> GroupDrawing:
    """Returns a sampler and a verifier for held-out problems; `stack` closes them."""
    # This process is one of its ranks: replicas are the hub's.
    params, policy = this_round.sampler_params.model_copy(update={"replicas": None}), this_round.paths.policy
    threads = torch.get_num_threads()
    sampler = stack.enter_context(closing(build_sampler(params, policy, prompt=this_round.prompt)))
    sampler.sleep()
    # A sampler sets its own number, and with another one the float sums of training may differ.
    torch.set_num_threads(threads)
    verifier = stack.enter_context(Verifier(this_round.verifier_params))
    share = drawing_share(params, this_round.trainer)
    return GroupDrawing(sampler, verifier, load_tokenizer(policy), share)
