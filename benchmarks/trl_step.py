"""One RL step by TRL's GRPOTrainer: one generation, and `rl.minibatches` optimizer updates from it.

The trainer runs once for all turns; a callback holds it before the first update of each turn. So the time excludes its
start-up and restoring the weights after each turn. Rewards come from the verifier and reward of the stage.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.contender import Channel, Settings, read_problems
from stages.engines.policies.policy_folders import load_policy
from stages.engines.samplers.protocol import Sample, StopReason
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from stages.foundations.errors import UserError
from stages.foundations.params import PlainPrompt, PromptParams, format_problem, load_section
from stages.rl_round.drawing import make_rollout
from stages.rl_round.params import RlParams
from stages.rl_round.update_methods import GroupNormalized

COLOCATED = {
    "use_vllm": True,
    "vllm_mode": "colocate",
    "vllm_gpu_memory_utilization": 0.4,
    "vllm_enable_sleep_mode": True,
}
"""vLLM in the trainer's process, which sleeps while the policy is updated."""


def play(settings: Settings, channel: Channel) -> None:
    params = Path(settings.params)
    rl = load_section(params, "rl", RlParams)
    prompt = load_section(params, "prompt", PromptParams)
    if not isinstance(prompt, PlainPrompt) or rl.aggregation != "token_mean":
        raise UserError(
            "the benchmark needs `prompt.kind: plain` and `rl.aggregation: token_mean`: use the laptop recipe"
        )
    model, tokenizer = load_policy(Path(settings.policy), torch.float32)
    rows = [
        {"prompt": format_problem(prompt, row["problem"]), "answer": row["answer"]} for row in read_problems(settings)
    ]
    verifying = load_section(params, "verifier", VerifierParams)
    with Verifier(verifying) as verifier, tempfile.TemporaryDirectory() as folder:
        trainer = TimedTrainer(
            model=model,
            processing_class=tokenizer,
            reward_funcs=make_reward(rl, verifier, tokenizer.eos_token_id),
            train_dataset=Dataset.from_list(rows),
            args=make_config(settings, rl, folder),
        )
        trainer.add_callback(Turns(trainer, channel, rl.minibatches))
        channel.say(ready=True)
        trainer.train()


def make_config(settings: Settings, rl: RlParams, folder: str) -> GRPOConfig:
    """Returns the recipe's step as TRL's config, without options that cost time on a CPU."""
    responses = settings.prompts * rl.group_size
    minibatch = responses // rl.minibatches
    rows = min(settings.trl_rows, minibatch)
    if minibatch % rows:
        raise UserError(f"--trl-rows {rows} must divide the {minibatch} responses of one update")
    optimizer = rl.optimizer
    return GRPOConfig(
        output_dir=folder,
        max_steps=settings.turns * rl.minibatches,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=minibatch // rows,
        steps_per_generation=responses // rows,
        num_generations=rl.group_size,
        max_completion_length=rl.max_response_tokens,
        temperature=rl.temperature,
        top_p=rl.top_p,
        top_k=rl.top_k,
        loss_type="dapo",  # the token mean over the whole batch
        epsilon=rl.policy_loss.clip_low,
        epsilon_high=rl.policy_loss.clip_high,
        beta=0.0,
        scale_rewards="group" if _divides_by_std(rl) else "none",
        learning_rate=optimizer.learning_rate,
        adam_beta1=optimizer.beta1,
        adam_beta2=optimizer.beta2,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=rl.max_gradient_norm,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        cache_implementation="static",  # a tenth faster here than the dynamic cache
        use_cpu=settings.device == "cpu",
        bf16=settings.device != "cpu",
        **({} if settings.device == "cpu" else COLOCATED),
        gradient_checkpointing=False,
        shuffle_dataset=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=settings.seed,
    )


def _divides_by_std(rl: RlParams) -> bool:
    return isinstance(rl.advantage, GroupNormalized) and rl.advantage.divide_by_std


def make_reward(rl: RlParams, verifier: Verifier, end_token: int) -> Callable[..., list[float]]:
    """Returns the stage's verifier and reward as a reward function of TRL."""

    def reward(completions: list[str], completion_ids: list[list[int]], answer: list[str], **_: Any) -> list[float]:
        samples = [
            Sample(ids, [], StopReason.END_OF_SEQUENCE if ids[-1] == end_token else StopReason.MAX_TOKENS, 0)
            for ids in completion_ids
        ]
        truncated = [sample.is_truncated for sample in samples]
        pairs = list(zip(answer, completions, strict=True))
        judgements = verifier.judge(pairs, truncated=truncated, require_marker=True)
        return [
            make_rollout(sample, text, judgement.verdict, rl).reward
            for sample, text, judgement in zip(samples, completions, judgements, strict=True)
        ]

    return reward


class TimedTrainer(GRPOTrainer):
    """Records the time and the tokens of generation."""

    def _generate_and_score_completions(self, inputs):
        started = time.perf_counter()
        batch = super()._generate_and_score_completions(inputs)
        self.noted["phases"] = {"sample": time.perf_counter() - started}
        return batch

    def _generate(self, prompts):
        answered = super()._generate(prompts)
        self.noted = {"responses": len(answered[1]), "tokens": sum(map(len, answered[1]))}
        return answered


class Turns(TrainerCallback):
    """Holds the trainer between turns and restores the initial weights."""

    def __init__(self, trainer: TimedTrainer, channel: Channel, updates: int) -> None:
        self.trainer, self.channel, self.updates = trainer, channel, updates
        self.initial = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}

    def on_step_begin(self, args, state, control, **_):
        if state.global_step % self.updates == 0 and self.channel.wait() is None:
            raise UserError("the benchmark ended before the last turn")

    def on_step_end(self, args, state, control, **_):
        """Reports the turn after its last update."""
        if state.global_step % self.updates:
            return
        noted = self.trainer.noted
        self.channel.answer(updates=self.updates, reward=self.trainer._metrics["train"]["reward"][-1], **noted)
        with torch.no_grad():
            for name, weight in self.trainer.model.named_parameters():
                weight.copy_(self.initial[name])
