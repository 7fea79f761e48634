"""Part `engines`: the tests that need a GPU, token statistics, updates, the torch sampler, a profiler trace."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.measuring import Bench, Row, passing_tests
from benchmarks.gpu.shapes import micro_batch, random_model, random_trainer, shape_of, trainer_params
from pipelines.planning.memory import CONTEXT_BYTES, training_memory
from pipelines.planning.sizes import find_gpu
from stages.algorithms.token_statistics import token_statistics
from stages.engines.policies.packing import ResponseBatch
from stages.engines.policies.statistics import PolicyStatistics
from stages.engines.samplers.params import TorchSamplerParams
from stages.engines.samplers.protocol import SamplingSettings, Trajectory
from stages.engines.samplers.torch_sampler import TorchSampler

GPU_TESTS = (
    "tests/engines/test_on_gpu.py",
    "tests/engines/policies/test_packing.py",
    "tests/benchmarks/test_planned_memory.py",
    "tests/algorithms/test_token_statistics_kernels.py",
)
PEAK = find_gpu("H100").bfloat16_flops
"""MFU is relative to an H100's 989 TFLOP/s (data sheet), on any device."""


def tests(bench: Bench) -> list[Row]:
    """Runs the tests marked `gpu` that need no vLLM."""
    return passing_tests(bench, GPU_TESTS, least=20)


def token_statistics_inputs(bench: Bench, tokens: int, hidden: int, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator(bench.device).manual_seed(0)
    kind = {"device": bench.device, "dtype": bench.dtype}
    states = torch.randn(1, tokens, hidden, generator=generator, **kind).requires_grad_()
    head = (torch.randn(vocabulary, hidden, generator=generator, **kind) * 0.02).requires_grad_()
    ids = torch.randint(0, vocabulary, (1, tokens), generator=generator, device=bench.device)
    return states, head, ids


def token_statistics_rows(bench: Bench, tokens: int, hidden: int, vocabulary: int) -> list[Row]:
    states, head, ids = token_statistics_inputs(bench, tokens, hidden, vocabulary)
    told = f"{tokens} x {hidden} x {vocabulary}, forward and backward"
    bench.forget_peak()
    before = bench.peak_gib()

    def ours() -> None:
        token_statistics(states, head, ids).logprobs.sum().backward()

    def plain() -> None:
        logits = (states[0] @ head.T).float()
        torch.log_softmax(logits, -1).gather(1, ids[0][:, None]).sum().backward()

    def products() -> None:
        """Computes logits twice, and both gradients: the least that any method must compute."""
        for start in range(0, tokens, 4096):
            part = states.detach()[0, start : start + 4096]
            logits = part @ head.detach().T
            logits = part @ head.detach().T
            logits @ head.detach()
            logits.T @ part

    found = bench.seconds(ours)
    peak = bench.peak_gib() - before
    alone = bench.seconds(products)
    rows = [
        Row(f"token statistics, {told}", found, "s"),
        Row("  above its inputs", [peak], "GiB", most=3.0),
        Row("  its four products alone", alone, "s"),
        Row("  ours / products", [ours / sorted(alone)[len(alone) // 2] for ours in found], "", most=1.5),
    ]
    for name, work in (("logits and log_softmax", plain), ("liger", _liger(states, head, ids))):
        if work is None:
            continue
        try:
            rows.append(Row(f"  {name}", bench.seconds(work), "s"))
        except torch.OutOfMemoryError:
            rows.append(Row(f"  {name}", [float("inf")], "s", note="out of memory"))
    return rows


def _liger(states: Tensor, head: Tensor, ids: Tensor) -> Callable[[], None] | None:
    """Returns liger's fused linear cross entropy: only the log-prob, no entropy or sum of squares. None if missing."""
    if states.device.type == "cpu" or importlib.util.find_spec("liger_kernel") is None:
        return None
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    def work() -> None:
        LigerFusedLinearCrossEntropyFunction.apply(states[0], head, ids[0])[0].backward()

    return work


def statistics(bench: Bench) -> list[Row]:
    if bench.is_miniature:
        return token_statistics_rows(bench, 64, 16, 97)
    return [row for hidden in (896, 1536) for row in token_statistics_rows(bench, 16_384, hidden, 151_936)]


def mean_loss(outputs: PolicyStatistics, batch: ResponseBatch) -> tuple[Tensor, dict[str, float]]:
    return -(outputs.logprobs * batch.response_mask).sum() / batch.counted.numel(), {}


def update_rows(bench: Bench, name: str, least: float, is_checkpointed: bool) -> list[Row]:
    """Measures one update from one micro-batch: forward, backward, optimizer."""
    shape, tokens = shape_of(bench, name), 256 if bench.is_miniature else 16_384
    params = trainer_params(bench, tokens, is_checkpointed)
    trainer, batch = random_trainer(bench, shape, params), micro_batch(shape, tokens)
    bench.forget_peak()
    seconds = bench.seconds(lambda: trainer.update([batch], mean_loss, 1.0))
    rates = [tokens / one for one in seconds]
    told = f"update {name} random, {tokens} tokens, {params.dtype}" + (", checkpointed" if is_checkpointed else "")
    planned = training_memory(shape, params, "adamw", 1, tokens, False).total - CONTEXT_BYTES
    rows = [
        Row(told, rates, "tokens/s", least=least),
        Row("  MFU (6 x parameters a token)", [6 * shape.parameters * rate / PEAK for rate in rates], ""),
    ]
    if bench.device.type == "cuda":
        share = bench.peak_gib() * 2**30 / planned
        note = f"{bench.peak_gib():.1f} GiB held, {planned / 2**30:.1f} planned"
        rows.append(Row("  peak memory / retrace plan", [share], "", most=1.15, note=note))
    return rows


update_small = partial(update_rows, name="Qwen2.5-0.5B", least=60_000, is_checkpointed=False)
update_large = partial(update_rows, name="Qwen2.5-1.5B", least=25_000, is_checkpointed=True)


def torch_sampler(bench: Bench) -> list[Row]:
    """Compares with transformers' `generate` with a static cache; both return log-probs of the sampled tokens."""
    shape = shape_of(bench, "Qwen2.5-0.5B")
    model = random_model(bench, shape, bench.dtype).eval()
    tokens, prompt = (8, 4) if bench.is_miniature else (128, 50)
    params = TorchSamplerParams(
        kind="torch",
        device=bench.device.type,
        dtype="float32" if bench.device.type == "cpu" else "bfloat16",
        threads=torch.get_num_threads(),
        max_sequences=512,
    )
    sampler, rows = TorchSampler(params, model, [1]), []
    settings = SamplingSettings(1.0, 1.0, 0, tokens, None)
    for sequences in (4,) if bench.is_miniature else (64, 256, 512):
        ids = torch.randint(2, shape.vocabulary, (sequences, prompt), generator=torch.Generator().manual_seed(0))
        asked = [Trajectory(one, seed) for seed, one in enumerate(ids.tolist())]

        placed = ids.to(bench.device)

        def ours(asked: list[Trajectory] = asked) -> None:
            list(sampler.stream(asked, settings))

        def generate(ids: Tensor = placed) -> None:
            with torch.inference_mode():
                answered = model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=True,
                    top_k=0,
                    max_new_tokens=tokens,
                    min_new_tokens=tokens,
                    cache_implementation="static",
                    disable_compile=True,
                    output_logits=True,
                    return_dict_in_generate=True,
                )
                for step, logits in enumerate(answered.logits):
                    logits.float().log_softmax(-1).gather(1, answered.sequences[:, prompt + step, None])

        for name, work in (("torch sampler", ours), ("generate, static cache", generate)):
            rates = [sequences * tokens / one for one in bench.seconds(work, warm_ups=1)]
            rows.append(Row(f"{name}, {shape.name}, {sequences} at once", rates, "tokens/s"))
    return rows


def trace(bench: Bench) -> list[Row]:
    """Returns the slowest kernels of one update, and the number of kernels."""
    from torch.profiler import ProfilerActivity, profile

    shape, tokens = shape_of(bench, "Qwen2.5-0.5B"), 256 if bench.is_miniature else 16_384
    trainer = random_trainer(bench, shape, trainer_params(bench, tokens, False))
    batch = micro_batch(shape, tokens)
    trainer.update([batch], mean_loss, 1.0)
    on_gpu = bench.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as found:
        trainer.update([batch], mean_loss, 1.0)
        bench.wait()
    kernels = [
        one for one in found.key_averages() if (one.self_device_time_total if on_gpu else one.self_cpu_time_total)
    ]

    def seconds(one: object) -> float:
        return (one.self_device_time_total if on_gpu else one.self_cpu_time_total) / 1e6

    kernels.sort(key=seconds, reverse=True)
    whole = sum(map(seconds, kernels))
    rows = [Row("kernels of one update", [sum(one.count for one in kernels)], "", note=f"{whole:.4f} s in all")]
    return rows + [Row(f"  {one.key[:60]}", [seconds(one) / whole], "of the time") for one in kernels[:8]]
