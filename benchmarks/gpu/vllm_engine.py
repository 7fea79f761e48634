"""Part `vllm`: tokens per second by runner, seeds and graphs; weight transfer; sleep and wake-up; agreement."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.measuring import Bench, Row, passing_tests
from benchmarks.gpu.shapes import random_model, shape_of, write_policy
from stages.engines.policies.packing import TokenSequence, pack
from stages.engines.policies.statistics import policy_statistics
from stages.engines.samplers.params import VllmSamplerParams
from stages.engines.samplers.protocol import SamplingSettings, Trajectory
from stages.engines.samplers.vllm_sampler import VllmSampler

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
NAME = "Qwen2.5-0.5B"
GPU_TESTS = (
    "tests/engines/samplers/test_vllm_on_gpu.py",
    "tests/engines/replicas/test_replicas_on_gpu.py",
    "tests/stages/rl_round/test_rounds_on_gpu.py",
)


def tests(bench: Bench) -> list[Row]:
    """Runs the tests marked `gpu` that need vLLM, two of which also need Ray."""
    return passing_tests(bench, GPU_TESTS, least=3)


def sizes(bench: Bench) -> tuple[int, int, int]:
    """Returns sequences at once, tokens of a prompt, and tokens of a response."""
    return (4, 4, 8) if bench.is_miniature else (512, 50, 300)


def engine(bench: Bench, folder: Path, **more: Any) -> Any:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    from vllm import LLM

    sequences, prompt, tokens = sizes(bench)
    cpu = {"kv_cache_memory_bytes": 2**26} if bench.device.type == "cpu" else {"gpu_memory_utilization": 0.5}
    return LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="float32" if bench.device.type == "cpu" else "bfloat16",
        max_model_len=prompt + tokens + 16,
        max_num_seqs=sequences,
        generation_config="vllm",
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
        **cpu,
        **more,
    )


def speed(
    bench: Bench, told: str, is_seeded: bool, least: float | None = None, is_eager: bool = False, runner: str = ""
) -> list[Row]:
    from vllm import SamplingParams

    if runner:
        os.environ[RUNNER] = runner
    sequences, prompt, tokens = sizes(bench)
    shape = shape_of(bench, NAME)
    with tempfile.TemporaryDirectory() as place:
        folder = write_policy(bench, shape, Path(place))
        llm = engine(bench, folder, enforce_eager=is_eager or bench.is_miniature)
        prompts = [{"prompt_token_ids": [2 + number % 200] * prompt} for number in range(sequences)]

        def asked(number: int) -> SamplingParams:
            seed = number if is_seeded else None
            return SamplingParams(max_tokens=tokens, ignore_eos=True, logprobs=0, seed=seed, detokenize=False)

        settings = [asked(number) for number in range(sequences)]
        seconds = bench.seconds(lambda: llm.generate(prompts, settings, use_tqdm=False), warm_ups=1)
    rates = [sequences * tokens / one for one in seconds]
    return [Row(f"vLLM {NAME}, {sequences} at once, log-probs, {told}", rates, "tokens/s", least=least)]


seeded = partial(speed, told="seeded", is_seeded=True, least=60_000)
unseeded = partial(speed, told="not seeded", is_seeded=False)
eager = partial(speed, told="seeded, without CUDA graphs", is_seeded=True, is_eager=True)
old_runner = partial(speed, told="seeded, V1 runner", is_seeded=True, runner="0")
old_runner_unseeded = partial(speed, told="not seeded, V1 runner", is_seeded=False, runner="0")


def adapter(bench: Bench) -> list[Row]:
    """Measures our sampler: tokens per second, loading weights, and log-probs compared with the trainer's."""
    sequences, prompt, tokens = sizes(bench)
    shape = shape_of(bench, NAME if bench.is_miniature else "Qwen2.5-1.5B")
    params = VllmSamplerParams(
        kind="vllm",
        dtype="float32" if bench.device.type == "cpu" else "bfloat16",
        max_model_tokens=prompt + tokens + 16,
        max_sequences=sequences,
        memory_fraction=0.5,
        kv_cache_gib=0.0625,
        tensor_parallel=1,
        enforce_eager=bench.is_miniature,
    )
    with tempfile.TemporaryDirectory() as place:
        sampler = VllmSampler(params, write_policy(bench, shape, Path(place)))
        model = random_model(bench, shape, bench.dtype).eval()
        asked = [Trajectory([2 + number % 200] * prompt, number) for number in range(sequences)]
        settings = SamplingSettings(1.0, 1.0, 0, tokens, None)
        drawn: dict[int, Any] = {}
        seconds = bench.seconds(lambda: drawn.update(sampler.stream(asked, settings)), warm_ups=1)
        rates = [sum(len(one.token_ids) for one in drawn.values()) / second for second in seconds]
        weights = list(model.named_parameters())
        synced = [bench.wall_seconds(lambda: sampler.load_weights(iter(weights), 1)) for _ in range(bench.repeats + 1)]
        kept = list(drawn)[:16]
        sampler.close()
        own = [_logprobs(bench, model, asked[number], drawn[number]) for number in kept]
        exact = [_logprobs(bench, model.float(), asked[number], drawn[number]) for number in kept]
    engine = [torch.tensor(drawn[number].logprobs) for number in kept]
    rounding = _gap(own, exact)[0]
    mean, largest = _gap(engine, own)
    return [
        Row(f"our sampler {shape.name}, {sequences} at once, log-probs", rates, "tokens/s"),
        Row(f"new weights of {shape.name} in process", synced[1:], "s", most=0.3),
        # Two independent roundings differ by 1.4 times the error of one of them.
        Row("log-prob gap to the trainer's pass, mean", [mean], "", most=max(2 * rounding, 1e-4)),
        Row("  of the trainer's pass to float32's, mean", [rounding], ""),
        Row("log-prob gap to the trainer's pass, largest", [largest], "", most=0.5),
    ]


@torch.no_grad()
def _logprobs(bench: Bench, model: Any, asked: Trajectory, drawn: Any) -> Tensor:
    batch = pack([TokenSequence(asked.prompt, drawn.token_ids)]).to(bench.device)
    return policy_statistics(model, batch).logprobs[0].float().cpu()


def _gap(ones: list[Tensor], others: list[Tensor]) -> tuple[float, float]:
    """Returns the mean and the largest difference."""
    gaps = torch.cat([(one - other).abs() for one, other in zip(ones, others, strict=True)])
    return float(gaps.mean()), float(gaps.max())


def sleep(bench: Bench) -> list[Row]:
    """Measures sleep level 2: weights and cache are freed, then weights are loaded from the trainer."""
    if bench.device.type == "cpu":
        raise SystemExit("vLLM's CPU build does not sleep: this measurement needs a GPU")
    shape = shape_of(bench, NAME)
    with tempfile.TemporaryDirectory() as place:
        llm = engine(bench, write_policy(bench, shape, Path(place)), enable_sleep_mode=True)
        held = [torch.cuda.mem_get_info()[0]]
        slept, woken = [], []
        for _ in range(bench.repeats):
            slept.append(bench.wall_seconds(lambda: llm.sleep(level=2)))
            held.append(torch.cuda.mem_get_info()[0])
            woken.append(bench.wall_seconds(llm.wake_up))
        total = torch.cuda.mem_get_info()[1]
    freed = (held[1] - held[0]) / (total - held[0])
    return [
        Row("sleep frees, of what was taken", [freed], "", least=0.9),
        Row("sleep, level 2", slept, "s"),
        Row("wake up, before weights are loaded", woken, "s", most=2.0),
    ]
