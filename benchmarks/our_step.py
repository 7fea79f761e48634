"""One RL step by the functions of stage `rl_round`: sample and judge groups, update the policy, sync and probe.

All groups are trained on (no dynamic sampling), so that the work is the same as TRL's. `play_recompute` takes the
proximal log-probs from a pass of the trainer, as TRL does, instead of the sampler's log-probs.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.contender import Channel, Settings, of_turn, read_problems
from stages.engines.policies.language_model import language_model
from stages.engines.policies.tokenizers import encode_prompt, load_tokenizer
from stages.engines.samplers.build import build_sampler
from stages.engines.samplers.params import SamplerParams
from stages.engines.trainers.build import build_trainer
from stages.engines.trainers.params import TrainerParams
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from stages.foundations.params import PromptParams, load_section
from stages.rl_round.drawing import ProblemDraw, draw_groups
from stages.rl_round.loop.training_step import batch_metrics
from stages.rl_round.loop.weight_sync import WeightSyncCheck
from stages.rl_round.methods import NoDynamicSampling
from stages.rl_round.params import RlParams
from stages.rl_round.records import Batch, Problem
from stages.rl_round.samples import prepare_samples, scatter_batch
from stages.rl_round.update import policy_metrics, update_policy

CPU = {"device": "cpu", "dtype": "float32"}


def play(settings: Settings, channel: Channel, proximal: str | None = None) -> None:
    """Plays the turns with the recipe's `rl.proximal`, or with `proximal` if given."""
    with Verifier(load_section(Path(settings.params), "verifier", VerifierParams)) as verifier:
        step = OurStep(settings, verifier, proximal)
        channel.play(step.take, step.restore)


def play_recompute(settings: Settings, channel: Channel) -> None:
    """Plays the turns with proximal log-probs from the trainer."""
    play(settings, channel, proximal="recompute")


class OurStep:
    """Sampler, trainer and probe of a round, and the initial weights of every step."""

    def __init__(self, settings: Settings, verifier: Verifier, proximal: str | None) -> None:
        params, policy = Path(settings.params), Path(settings.policy)
        self.settings, self.verifier = settings, verifier
        changed: dict[str, Any] = {"dynamic_sampling": NoDynamicSampling(kind="none")}
        if proximal:
            changed["proximal"] = proximal
        self.params = load_section(params, "rl", RlParams).model_copy(update=changed)
        here = (CPU if settings.device == "cpu" else {}) | {"threads": settings.threads}
        trainer_params = load_section(params, "trainer", TrainerParams).model_copy(update=here)
        sampler_params = load_section(params, "sampler", SamplerParams).model_copy(update=here)
        self.micro_batch_tokens = trainer_params.micro_batch_tokens
        self.trainer = build_trainer(
            trainer_params, self.params.optimizer, self.params.max_gradient_norm, language_model(policy, trainer_params)
        )
        self.sampler = build_sampler(sampler_params, policy)
        self.tokenizer = load_tokenizer(policy)
        prompt = load_section(params, "prompt", PromptParams)
        self.problems = [
            Problem(row["problem_id"], encode_prompt(self.tokenizer, prompt, row["problem"]), row["answer"])
            for row in read_problems(settings)
        ]
        self.probe = WeightSyncCheck.drawn(
            self.params.weight_sync_check,
            [problem.prompt for problem in self.problems],
            self.params.max_response_tokens,
            self.sampler,
            settings.seed,
        )
        self.initial = {name: weight.clone() for name, weight in self.trainer.named_weights()}

    def take(self, turn: int) -> dict[str, Any]:
        """Runs one step; returns seconds by phase and the amount of work."""
        started = time.perf_counter()
        groups = draw_groups(
            [ProblemDraw(problem, turn) for problem in of_turn(self.problems, turn, self.settings)],
            self.sampler,
            self.verifier,
            self.tokenizer,
            self.params,
            self.settings.seed,
            "benchmark",
        )
        drawn = time.perf_counter()
        version = self.sampler.policy_version
        batch = Batch(groups, groups, [], 1, 0, 0, 1.0, version)
        seed_path = self.settings.seed, "benchmark", turn
        groups, plan = scatter_batch(batch, self.params, self.micro_batch_tokens, self.trainer, *seed_path)
        trained = prepare_samples(groups, plan, self.params, self.trainer)
        updates = update_policy(trained, plan, self.params, 1.0, self.trainer)
        row = policy_metrics(updates, plan, self.params)
        updated = time.perf_counter()
        from_trainer = self.probe.trainer_side(self.trainer)
        self.sampler.load_weights(self.trainer.named_weights(), version + 1)
        gap = self.probe.check(self.sampler, from_trainer)
        synced = time.perf_counter()
        row |= batch_metrics(batch, self.params)
        return {
            "responses": len(trained),
            "tokens": row["tokens/sampled"],
            "updates": len(updates),
            "reward": row["reward/mean"],
            "loss": row["loss/policy"],
            "gap": gap,
            "phases": {"sample": drawn - started, "train": updated - drawn, "sync": synced - updated},
        }

    def restore(self) -> None:
        """Restores the initial weights on both sides; the optimizer's moments stay."""
        with torch.no_grad():
            for name, weight in self.trainer.named_weights():
                weight.copy_(self.initial[name])
        self.sampler.load_weights(self.initial.items(), self.sampler.policy_version)
