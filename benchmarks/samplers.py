"""Only sampling, with log-probs of sampled tokens: our torch sampler, transformers' generate, vLLM on CPU."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.contender import Channel, Settings, of_turn, read_problems
from stages.engines.policies.policy_folders import load_policy
from stages.engines.policies.tokenizers import encode_prompt, load_tokenizer
from stages.engines.samplers.build import build_sampler
from stages.engines.samplers.params import TorchSamplerParams, VllmSamplerParams
from stages.engines.samplers.protocol import Sampler, SamplingSettings, sample_prompts
from stages.foundations.params import PromptParams, load_section
from stages.foundations.seeds import derive_seed
from stages.rl_round.params import RlParams


class Task:
    """The prompts of every turn, and the sampling settings."""

    def __init__(self, settings: Settings) -> None:
        params = Path(settings.params)
        rl = load_section(params, "rl", RlParams)
        tokenizer = load_tokenizer(Path(settings.policy))
        prompt = load_section(params, "prompt", PromptParams)
        self.settings, self.group_size = settings, rl.group_size
        self.prompts = [encode_prompt(tokenizer, prompt, row["problem"]) for row in read_problems(settings)]
        self.sampling = SamplingSettings(rl.temperature, rl.top_p, rl.top_k, rl.max_response_tokens, rl.log_threshold)
        self.responses = settings.prompts * rl.group_size

    def of_turn(self, turn: int) -> list[list[int]]:
        return of_turn(self.prompts, turn, self.settings)


def play_torch(settings: Settings, channel: Channel) -> None:
    """Plays the turns with our decoding loop, all sequences at once."""
    task = Task(settings)
    params = TorchSamplerParams(
        kind="torch", device="cpu", dtype="float32", threads=settings.threads, max_sequences=task.responses
    )
    _play_sampler(task, build_sampler(params, Path(settings.policy)), channel)


def _play_sampler(task: Task, sampler: Sampler, channel: Channel) -> None:
    def turn(number: int) -> dict[str, Any]:
        prompts = task.of_turn(number)
        names = [str(place) for place in range(len(prompts))]
        seed = task.settings.seed, number
        drawn = sample_prompts(sampler, prompts, names, task.group_size, task.sampling, *seed)
        samples = [sample for group in drawn for sample in group]
        assert all(len(sample.logprobs) == len(sample.token_ids) for sample in samples)
        return {"responses": len(samples), "tokens": sum(len(sample.token_ids) for sample in samples)}

    channel.play(turn, lambda: None)


def play_generate(settings: Settings, channel: Channel) -> None:
    """Plays the turns with `generate` on the left-padded batch with a static cache; log-probs from its logits."""
    task = Task(settings)
    model, tokenizer = load_policy(Path(settings.policy), torch.float32)
    model.eval()
    end, drawing = tokenizer.eos_token_id, task.sampling

    def turn(number: int) -> dict[str, Any]:
        started = time.perf_counter()
        prompts = task.of_turn(number)
        width = max(map(len, prompts))
        padded = torch.tensor([[end] * (width - len(prompt)) + prompt for prompt in prompts])
        is_token = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        torch.manual_seed(derive_seed(settings.seed, number))
        with torch.inference_mode():
            answered = model.generate(
                padded,
                attention_mask=is_token,
                do_sample=True,
                temperature=drawing.temperature,
                top_p=drawing.top_p,
                top_k=drawing.top_k,
                max_new_tokens=drawing.max_response_tokens,
                num_return_sequences=task.group_size,
                eos_token_id=end,
                pad_token_id=end,
                cache_implementation="static",  # a tenth faster here than the dynamic cache
                disable_compile=True,
                output_scores=True,
                return_dict_in_generate=True,
            )
            generated = time.perf_counter()
            tokens = answered.sequences[:, width:]
            logprobs = torch.stack(
                [
                    scores.gather(-1, tokens[:, step, None])[:, 0] - scores.logsumexp(-1)
                    for step, scores in enumerate(answered.scores)
                ],
                dim=1,
            )
        lengths = ((tokens == end).cumsum(1) - (tokens == end).long() == 0).sum(1).tolist()
        samples = [
            (row[:length], values[:length])
            for row, values, length in zip(tokens.tolist(), logprobs.tolist(), lengths, strict=True)
        ]
        phases = {"generate": generated - started, "log-probs": time.perf_counter() - generated}
        return {"responses": len(samples), "tokens": sum(lengths), "phases": phases}

    channel.play(turn, lambda: None)


def play_vllm(settings: Settings, channel: Channel) -> None:
    """Plays the turns with vLLM in this process through our adapter, which gives each response a separate seed."""
    task = Task(settings)
    params = VllmSamplerParams(
        kind="vllm",
        dtype="float32",
        max_model_tokens=max(map(len, task.prompts)) + task.sampling.max_response_tokens,
        max_sequences=task.responses,
        memory_fraction=0.5,
        kv_cache_gib=1.0,
        tensor_parallel=1,
        enforce_eager=True,
    )
    sampler = build_sampler(params, Path(settings.policy))
    torch.set_num_threads(settings.threads)
    _play_sampler(task, sampler, channel)
    sampler.close()
