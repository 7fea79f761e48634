"""Measures how fast this machine's CPU runs a policy of a given shape: the project's trainer and sampler on few layers.

A random policy of one layer and one of two, at the recipe's sizes, precision and thread count, are trained, evaluated
and decoded briefly. The time added by the second layer is a layer's; the rest of one layer is the head, with all work
that does not grow with layers. Each is timed several times and the shortest counts, because other work on the machine
can only slow it down. Nothing is fitted to a finished run.

How well threads share the work shows only on a free machine. On a busy one everything is measured in CPU time on one
thread, and further threads and lanes are assumed to gain nothing. That is about right for small policies, too slow
for large ones.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

import torch

from pipelines.planning.sizes import Shape
from stages.engines.policies.packing import ResponseBatch, TokenSequence, pack
from stages.engines.policies.policy_folders import random_model
from stages.engines.policies.statistics import PolicyStatistics, policy_statistics
from stages.engines.samplers.decoder import Decoder
from stages.engines.samplers.protocol import SamplingSettings, Trajectory
from stages.engines.samplers.torch_decoding import TorchDecoding
from stages.engines.trainers.params import AdamwParams, MuonParams, TorchTrainerParams
from stages.engines.trainers.protocol import TrainedModel
from stages.engines.trainers.torch_trainer import TorchTrainer

SECONDS_EACH = 0.4
"""Time for one figure: it is repeated for so long, and at least four times."""
MOST_TOKENS = 2048
"""Tokens of a micro-batch, and of prompts read before decoding: more would take minutes for a large policy."""
MOST_VOCABULARY = 32_768
"""Figures of the head are scaled up from this size: AdamW on an untied head and embedding of 152,064 needs 17 GB."""
DECODED_ROWS = (16, 256)
MOST_STEPS = 64
FREE_SHARE = 0.9
"""CPU time per elapsed time on one thread: a machine with less is busy."""
MODEL_STAGE = "stages.engines.samplers.build, stages.engines.policies.policy_folders, mlflow"
TABLE_STAGE = "stages.foundations.tables, mlflow"
"""Packages loaded by a stage with a policy, and by one without."""
OPTIMIZERS = {
    "adamw": AdamwParams(kind="adamw", learning_rate=1e-6, beta1=0.9, beta2=0.95, weight_decay=0.0),
    "muon": MuonParams(
        kind="muon", learning_rate=1e-6, adamw_learning_rate=1e-6, beta1=0.9, beta2=0.95, weight_decay=0.0
    ),
}


@dataclass(frozen=True)
class CpuProbe:
    """Seconds, measured on this machine."""

    threads: int
    """Number of threads in the training figures: 1 on a busy machine."""
    layer_training_token: float
    """One token forward and backward through one layer."""
    layer_forward_token: float
    head_training_token: float
    """One response token."""
    head_forward_token: float
    layer_step: tuple[float, float]
    """One decoding step of one layer: a fixed part, and a part per row."""
    head_step: tuple[float, float]
    lane_slowdown: float
    """Slowdown of a step beside those of the other lanes; the number of lanes where they gain nothing."""
    update: Mapping[str, float]
    """One update of all weights, by the optimizer's kind."""
    model_stage_start: float
    """Time to load the packages of a stage with a policy, in CPU seconds: one thread does that."""
    table_stage_start: float
    free_share: float
    """CPU time per elapsed time on one thread."""
    seconds: float
    """Duration of the probe itself."""

    @property
    def is_busy(self) -> bool:
        return self.free_share < FREE_SHARE


@dataclass(frozen=True)
class ProbeSettings:
    """The work of the recipe."""

    dtype: str
    """For the trainer."""
    threads: int
    micro_batch_tokens: int
    sequence_tokens: int
    response_share: float
    """Per sequence: only these tokens pass through the head."""
    optimizers: frozenset[str]
    context: int
    """Tokens attended to while decoding, on average."""
    steps: int
    """Tokens of a mean response."""
    samples: int
    """Responses to one prompt."""
    lanes: int
    """Batches decoded at the same time, one on each thread (see TorchSampler); 1 uses all threads."""


Timed = Callable[..., float]
"""(action, prepare) -> seconds of the action on the result of `prepare`, which is not timed."""


def probe_cpu(shape: Shape, settings: ProbeSettings) -> CpuProbe:
    """Measures; takes about ten seconds for small policies."""
    started, before = time.perf_counter(), torch.get_num_threads()
    small = replace(shape, vocabulary=min(shape.vocabulary, MOST_VOCABULARY))
    scale = shape.vocabulary / small.vocabulary
    policies = [_random_policy(replace(small, layers=layers)) for layers in (1, 2)]
    try:
        torch.set_num_threads(1)
        free_share = _free_share()
        is_free = free_share >= FREE_SHARE
        threads = settings.threads if is_free else 1
        torch.set_num_threads(threads)
        timed = _shortest(time.process_time if threads == 1 else time.perf_counter)
        # Decoding first: the trainer converts a policy to its precision.
        if settings.lanes > 1:
            torch.set_num_threads(1)
        steps = [
            [_Decoding(policy, settings, rows).step_seconds(timed) for rows in DECODED_ROWS] for policy in policies
        ]
        slowdown = float(settings.lanes)
        if settings.lanes > 1 and is_free:
            slowdown = _lane_slowdown(policies[1], settings)
        torch.set_num_threads(threads)
        passes = [_training(policy, settings, threads, timed) for policy in policies]
    finally:
        # The number of threads belongs to the process, which may continue after the probe.
        torch.set_num_threads(before)
    layer_step, head_step = zip(*(_layer_and_head(*at, scale) for at in zip(*steps, strict=True)), strict=True)
    layer_training, head_training = _layer_and_head(passes[0].learn, passes[1].learn, scale)
    layer_forward, head_forward = _layer_and_head(passes[0].evaluate, passes[1].evaluate, scale)
    updates = {}
    for kind in settings.optimizers:
        of_layer, of_ends = _layer_and_head(passes[0].update[kind], passes[1].update[kind], scale)
        updates[kind] = of_layer * shape.layers + of_ends
    tokens, responses = passes[0].tokens, passes[0].response_tokens
    starts = [_start_seconds(modules) for modules in (MODEL_STAGE, TABLE_STAGE)]
    return CpuProbe(
        threads,
        layer_training / tokens,
        layer_forward / tokens,
        head_training / responses,
        head_forward / responses,
        _fixed_and_each(*layer_step),
        _fixed_and_each(*head_step),
        slowdown,
        updates,
        *starts,
        free_share,
        time.perf_counter() - started,
    )


def _layer_and_head(one: float, two: float, scale: float) -> tuple[float, float]:
    """Splits the times of one and two layers into a layer's part, and the rest at the whole vocabulary."""
    # Noise can make the difference negative, or larger than one layer with its head.
    layer = min(max(0.0, two - one), one)
    return layer, (one - layer) * scale


def _fixed_and_each(few: float, many: float) -> tuple[float, float]:
    each = max(0.0, many - few) / (DECODED_ROWS[1] - DECODED_ROWS[0])
    return max(0.0, few - DECODED_ROWS[0] * each), each


def _random_policy(shape: Shape) -> Any:
    return random_model(
        "qwen3" if shape.has_head_norms else "qwen2" if shape.has_qkv_bias else "llama",
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_size,
        tie_word_embeddings=shape.is_tied,
        max_position_embeddings=2 * MOST_TOKENS,
        # The default special tokens of a config may be outside a small vocabulary.
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def _free_share() -> float:
    weights = torch.randn(256, 256)
    cpu, wall = time.process_time(), time.perf_counter()
    while time.perf_counter() - wall < SECONDS_EACH:
        weights @ weights
    return min(1.0, (time.process_time() - cpu) / (time.perf_counter() - wall))


@dataclass(frozen=True)
class _Passes:
    """Returns the seconds of one micro-batch of so many tokens."""

    tokens: int
    response_tokens: int
    learn: float
    """Runs forward and backward."""
    evaluate: float
    update: Mapping[str, float]


def _training(policy: Any, settings: ProbeSettings, threads: int, timed: Timed) -> _Passes:
    batch = _micro_batch(settings, policy.config.vocab_size)
    ends = policy.get_input_embeddings().weight, policy.get_output_embeddings().weight
    model = TrainedModel(policy, policy_statistics, _not_saved, batch, ends)
    params = TorchTrainerParams(
        kind="torch",
        device="cpu",
        dtype=settings.dtype,
        threads=threads,
        micro_batch_tokens=settings.micro_batch_tokens,
        gradient_checkpointing=False,
    )
    policy.requires_grad_(True)
    learn, updates = float("inf"), {}
    # A recipe that trains nothing may still evaluate, and only a trainer can do that.
    for kind in sorted(settings.optimizers) or ["adamw"]:
        trainer = TorchTrainer(params, OPTIMIZERS[kind], 1.0, model)
        once, twice = (
            timed(lambda _, count=count, trainer=trainer: trainer.update([batch] * count, _mean_loss, 1.0))
            for count in (1, 2)
        )
        # The second micro-batch adds a pass; the rest of the first update is the optimizer's.
        learn = min(learn, max(0.0, twice - once))
        updates[kind] = max(0.0, once - learn)
    evaluate = timed(lambda _: trainer.evaluate(batch))
    return _Passes(len(batch.row_places), len(batch.counted), learn, evaluate, updates)


def _micro_batch(settings: ProbeSettings, vocabulary: int) -> ResponseBatch:
    """Returns random sequences of the recipe's mean length, as the trainer packs them."""
    length = max(2, min(settings.sequence_tokens, MOST_TOKENS))
    responses = min(length - 1, max(1, round(length * settings.response_share)))
    count = max(1, min(settings.micro_batch_tokens, MOST_TOKENS) // length)
    drawn = torch.randint(vocabulary, (count, length)).tolist()
    return pack([TokenSequence(ids[:-responses], ids[-responses:]) for ids in drawn])


def _mean_loss(outputs: PolicyStatistics, batch: ResponseBatch) -> tuple[torch.Tensor, dict[str, float]]:
    return -outputs.logprobs.sum() / len(batch.counted), {}


def _not_saved(weights: object, folder: object) -> None:
    raise NotImplementedError("a random policy is not kept")


class _Decoding:
    """Batches of responses of the recipe's mean length."""

    def __init__(self, policy: Any, settings: ProbeSettings, rows: int) -> None:
        self.steps = max(1, min(settings.steps, MOST_STEPS))
        prompts = -(-rows // settings.samples)
        prompt_tokens = max(1, min(settings.context - self.steps // 2, MOST_TOKENS // prompts))
        ids = torch.randint(policy.config.vocab_size, (prompts, prompt_tokens)).tolist()
        self.trajectories = {row: Trajectory(ids[row // settings.samples], row) for row in range(rows)}
        self.decoder = Decoder(policy.eval().requires_grad_(False))

    def begin(self) -> TorchDecoding:
        """Reads all prompts, and gives each response one token."""
        # The limit is beyond the tokens decoded here, so that no response ends and every step has all rows.
        settings = SamplingSettings(1.0, top_p=1.0, top_k=0, max_response_tokens=self.steps + 2, log_threshold=None)
        # No token has the number -1, so every response continues.
        decoding = TorchDecoding(self.decoder, settings, [-1], 0, len(self.trajectories))
        decoding.admit(self.trajectories)
        decoding.step()
        return decoding

    def run(self, decoding: TorchDecoding) -> None:
        for _ in range(self.steps):
            decoding.step()

    def step_seconds(self, timed: Timed) -> float:
        return timed(self.run, self.begin) / self.steps


def _lane_slowdown(policy: Any, settings: ProbeSettings) -> float:
    """Compares a step of each lane at the same time with one alone."""
    timed = _shortest(time.perf_counter)
    batch = _Decoding(policy, settings, DECODED_ROWS[1])
    with ThreadPoolExecutor(settings.lanes) as pool:
        together = timed(
            lambda lanes: list(pool.map(batch.run, lanes)), lambda: [batch.begin() for _ in range(settings.lanes)]
        )
    return max(1.0, together / timed(batch.run, batch.begin))


def _shortest(clock: Callable[[], float]) -> Timed:
    def timed(action: Callable[[Any], object], prepare: Callable[[], Any] = lambda: None) -> float:
        times, until = [], time.perf_counter() + SECONDS_EACH
        while len(times) < 4 or time.perf_counter() < until:
            ready = prepare()
            started = clock()
            action(ready)
            times.append(clock() - started)
        return min(times)

    return timed


def _start_seconds(modules: str) -> float:
    """Returns CPU seconds of a process that loads a stage's packages, and ends, as a stage does."""
    quick = "from stages.observe.quick_imports import quick_imports"
    loads = f"import os\n{quick}\nwith quick_imports():\n    import {modules}\nos._exit(0)"
    # CPU time and not the clock: other work on the machine must not count.
    before = getrusage(RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", loads], check=True)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
