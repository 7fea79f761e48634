"""How fast this machine's CPU is at a policy of a given shape: a few seconds of the policy's own products.

One layer and the head, at the recipe's sizes, precision and thread count, forward, backward and decoding; the
optimizer's update of one layer's matrices; the start of a stage's process. Each is timed several times and the
shortest counts, because other work on the machine can only make one slower. Nothing is fitted to a finished run.

How well threads share the work can only be seen on a machine that is free. On a busy one everything is measured in
CPU time on one thread, and more threads and lanes are taken to gain nothing: about right for small policies, too slow
for large ones.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from resource import RUSAGE_CHILDREN, getrusage

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipelines.planning.sizes import Shape
from stages.engines.trainers.torch_trainer import Float32Muon

SECONDS_EACH = 0.4
"""Of one figure: it is repeated for so long, and at least three times."""
MOST_PROBED_TOKENS = 2048
DECODED_ROWS = (16, 256)
FREE_SHARE = 0.9
"""Of the time that passes, got as CPU time on one thread: a machine with less is busy."""
MODEL_STAGE = "stages.engines.samplers.build, stages.engines.policies.policy_folders, mlflow"
TABLE_STAGE = "stages.foundations.tables, mlflow"
"""What a stage with a policy and one without load."""


@dataclass(frozen=True)
class CpuProbe:
    """Seconds, measured on this machine."""

    threads: int
    """That the figures of training are for: 1 on a busy machine."""
    layer_training_token: float
    """One token forward and backward through one layer."""
    layer_forward_token: float
    head_training_token: float
    head_forward_token: float
    layer_step: tuple[float, float]
    """One decoding step of one layer: fixed, and for each row."""
    head_step: tuple[float, float]
    lane_slowdown: float
    """How much slower a step is beside those of the other lanes; the number of lanes where they gain nothing."""
    update: dict[str, float]
    """One update of all weights, by the optimizer's kind."""
    model_stage_start: float
    """Until a stage that loads a policy has loaded its packages, in CPU seconds: one thread does that."""
    table_stage_start: float
    free_share: float
    """CPU time got on one thread per time that passed."""
    seconds: float
    """That the probe took."""

    @property
    def is_busy(self) -> bool:
        return self.free_share < FREE_SHARE


Timed = Callable[[Callable[[], object]], float]


class _Layer(nn.Module):
    """The products and row operations of a Llama layer; `attend` mixes values."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        super().__init__()
        self.shape = shape
        self.queries, self.keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        sizes = {
            "q": (self.queries, shape.hidden),
            "k": (self.keys, shape.hidden),
            "v": (self.keys, shape.hidden),
            "out": (shape.hidden, self.queries),
            "gate": (shape.feed_forward, shape.hidden),
            "up": (shape.feed_forward, shape.hidden),
            "down": (shape.hidden, shape.feed_forward),
        }
        for name, size in sizes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(size, dtype=dtype) * 0.02))
        self.norms = nn.Parameter(torch.ones(2, shape.hidden, dtype=dtype))

    def forward(self, states: Tensor, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
        normed = _norm(states, self.norms[0])
        mixed = attend(F.linear(normed, self.q), F.linear(normed, self.k), F.linear(normed, self.v))
        states = states + F.linear(mixed, self.out)
        normed = _norm(states, self.norms[1])
        return states + F.linear(F.silu(F.linear(normed, self.gate)) * F.linear(normed, self.up), self.down)


def _norm(states: Tensor, weight: Tensor) -> Tensor:
    return weight * (states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + 1e-6))


def _turned(part: Tensor) -> Tensor:
    """Rotary positions cost this much: two products, a half-turn, a sum."""
    half = part.shape[-1] // 2
    return part * 0.6 + torch.cat((-part[..., half:], part[..., :half]), -1) * 0.8


class _Attention:
    """Causal attention of `rows` rows of `tokens` tokens, packed as the trainer packs them (with a mask)."""

    def __init__(self, shape: Shape, rows: int, tokens: int, dtype: torch.dtype) -> None:
        self.shape, self.rows, self.tokens = shape, rows, tokens
        self.mask = torch.full((tokens, tokens), torch.finfo(dtype).min, dtype=dtype).triu(1)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (
            part.view(self.rows, self.tokens, -1, self.shape.head_size).transpose(1, 2) for part in (query, key, value)
        )
        repeats = self.shape.heads // self.shape.kv_heads
        key, value = _turned(key).repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        mixed = F.scaled_dot_product_attention(_turned(query), key, value, attn_mask=self.mask)
        return mixed.transpose(1, 2).reshape(self.rows * self.tokens, -1)


class _CachedAttention:
    """One token of each row over a cache of `context` tokens."""

    def __init__(self, shape: Shape, rows: int, context: int) -> None:
        self.shape, size = shape, (rows * shape.kv_heads, context, shape.head_size)
        self.keys, self.values = torch.randn(size), torch.randn(size)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        shape, rows = self.shape, len(query)
        self.keys[:, -1] = _turned(key.float().view(-1, shape.head_size))
        self.values[:, -1] = value.float().view(-1, shape.head_size)
        grouped = _turned(query.float().view(rows * shape.kv_heads, -1, shape.head_size))
        weights = torch.bmm(grouped, self.keys.transpose(1, 2)).softmax(-1)
        return torch.bmm(weights, self.values).view(rows, -1).to(query.dtype)


@dataclass(frozen=True)
class ProbeSettings:
    """What the recipe runs."""

    trainer_dtype: str
    threads: int
    micro_batch_tokens: int
    row_tokens: int
    """Of a packed row."""
    context: int
    """Tokens attended to while decoding."""
    optimizers: frozenset[str]
    lanes: int
    """Batches decoded at the same time, one on each thread (see TorchSampler); 1 uses all threads."""


def probe_cpu(shape: Shape, settings: ProbeSettings) -> CpuProbe:
    """Measures; takes ten seconds for small policies."""
    started, before = time.perf_counter(), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        free_share = _free_share()
        threads = settings.threads if free_share >= FREE_SHARE else 1
        torch.set_num_threads(threads)
        timed = _shortest(time.process_time if threads == 1 else time.perf_counter)
        dtype = torch.bfloat16 if settings.trainer_dtype == "mixed" else torch.float32
        training = _training(shape, dtype, settings.micro_batch_tokens, settings.row_tokens, timed)
        updates = {kind: _update(shape, kind, timed) for kind in settings.optimizers}
        if settings.lanes > 1:
            torch.set_num_threads(1)
            timed = _shortest(time.process_time if threads == 1 else time.perf_counter)
        steps = _decoding(shape, settings.context, timed)
        slowdown = float(settings.lanes)
        if settings.lanes > 1 and free_share >= FREE_SHARE:
            slowdown = _lane_slowdown(shape, settings)
    finally:
        torch.set_num_threads(before)
    starts = [_start_seconds(modules) for modules in (MODEL_STAGE, TABLE_STAGE)]
    seconds = time.perf_counter() - started
    return CpuProbe(threads, *training, *steps, slowdown, updates, *starts, free_share, seconds)


def _free_share() -> float:
    weights = torch.randn(256, 256)
    cpu, wall = time.process_time(), time.perf_counter()
    while time.perf_counter() - wall < SECONDS_EACH:
        weights @ weights
    return min(1.0, (time.process_time() - cpu) / (time.perf_counter() - wall))


def _training(
    shape: Shape, dtype: torch.dtype, micro_batch_tokens: int, row_tokens: int, timed: Timed
) -> tuple[float, float, float, float]:
    row_tokens = min(row_tokens, MOST_PROBED_TOKENS)
    rows = max(1, min(micro_batch_tokens, MOST_PROBED_TOKENS) // row_tokens)
    tokens = rows * row_tokens
    layer, attend = _Layer(shape, dtype), _Attention(shape, rows, row_tokens, dtype)
    states = torch.randn(tokens, shape.hidden, dtype=dtype, requires_grad=True)
    head = nn.Parameter(torch.randn(shape.vocabulary, shape.hidden, dtype=dtype) * 0.02)
    ids = torch.randint(shape.vocabulary, (tokens,))

    def layer_pass() -> None:
        layer(states, attend).sum().backward()

    def head_pass() -> None:
        F.cross_entropy(F.linear(states, head).float(), ids).backward()

    both = timed(layer_pass) / tokens, timed(head_pass) / tokens
    with torch.no_grad():
        forward = timed(lambda: layer(states, attend)) / tokens
        head_forward = timed(lambda: F.cross_entropy(F.linear(states, head).float(), ids)) / tokens
    return both[0], forward, both[1], head_forward


def _update(shape: Shape, kind: str, timed: Timed) -> float:
    """One update, always in float32: one layer's matrices times the layers, and the embedding by AdamW."""
    layer = _Layer(shape, torch.float32)
    matrices = [weight for name, weight in layer.named_parameters() if name != "norms"]
    embedding = nn.Parameter(torch.randn(shape.vocabulary, shape.hidden))
    for weight in (*matrices, embedding):
        weight.grad = torch.randn_like(weight)
    first = Float32Muon(matrices) if kind == "muon" else torch.optim.AdamW(matrices, foreach=True)
    return timed(first.step) * shape.layers + timed(torch.optim.AdamW([embedding], foreach=True).step)


@torch.inference_mode()
def _decoding(shape: Shape, context: int, timed: Timed) -> tuple[tuple[float, float], tuple[float, float]]:
    """Fixed seconds and seconds a row, of a layer and of the head with drawing from its softmax."""
    layer = _Layer(shape, torch.float32)
    head = torch.randn(shape.vocabulary, shape.hidden) * 0.02
    layers, heads = [], []
    for rows in DECODED_ROWS:
        states, attend = torch.randn(rows, shape.hidden), _CachedAttention(shape, rows, context)
        layers.append(timed(lambda states=states, attend=attend: layer(states, attend)))
        heads.append(timed(lambda states=states: _draw(F.linear(states, head))))
    few, many = DECODED_ROWS
    return tuple(
        (max(0.0, low - few * (high - low) / (many - few)), max(0.0, high - low) / (many - few))
        for low, high in (layers, heads)
    )


def _lane_slowdown(shape: Shape, settings: ProbeSettings) -> float:
    """A step of each lane at the same time, against one alone."""
    rows, steps = DECODED_ROWS[1], 20
    layer = _Layer(shape, torch.float32)
    lanes = [
        (torch.randn(rows, shape.hidden), _CachedAttention(shape, rows, settings.context))
        for _ in range(settings.lanes)
    ]

    @torch.inference_mode()
    def decode(lane: tuple[Tensor, _CachedAttention]) -> None:
        for _ in range(steps):
            layer(*lane)

    timed = _shortest(time.perf_counter)
    with ThreadPoolExecutor(settings.lanes) as pool:
        together = timed(lambda: list(pool.map(decode, lanes)))
    return max(1.0, together / timed(lambda: decode(lanes[0])))


def _draw(logits: Tensor) -> Tensor:
    logprobs = logits.log_softmax(-1)
    return logprobs.gather(-1, logprobs.exp().multinomial(1))


def _shortest(clock: Callable[[], float]) -> Timed:
    def timed(action: Callable[[], object]) -> float:
        action()
        times, until = [], time.perf_counter() + SECONDS_EACH
        while len(times) < 3 or time.perf_counter() < until:
            started = clock()
            action()
            times.append(clock() - started)
        return min(times)

    return timed


def _start_seconds(modules: str) -> float:
    """CPU seconds of a process that loads what a stage loads."""
    before = getrusage(RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", f"import {modules}"], check=True)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
