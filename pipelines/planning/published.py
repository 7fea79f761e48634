"""Published runs that say how long a step took, and what the formulas say of them."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.planning.devices import GPUS, NUMBER_BYTES
from pipelines.planning.gpu_time import GpuSpeed
from pipelines.planning.shapes import named_shape
from stages.foundations.planned_work import ResponseLengths, Sampling, Training

MEMORY_SHARE_OF_SAMPLER = 0.8


@dataclass(frozen=True)
class PublishedRun:
    """One synchronous RL step of a run: every GPU samples, then every GPU trains."""

    name: str
    source: str
    model: str
    gpu: str
    gpus: int
    gpus_per_replica: int
    responses: int
    """Trained on in one step."""
    drawn_per_trained: float
    prompt: float
    response: float
    """Mean tokens."""
    longest: int
    forward_passes: int
    """Over all trained tokens without gradient: proximal and reference log-probs."""
    is_checkpointed: bool
    step_seconds: float
    assumed: str
    """What the source does not say."""


NEMO = "NVIDIA NeMo RL 0.4, docs/about/performance-summary.md, on policy"
PUBLISHED_RUNS = (
    PublishedRun(
        "DAPO Qwen2.5-32B, 128 A800",
        "verl issue 795: 230 rollout steps in 5 days with DAPO's settings",
        "Qwen2.5-32B",
        "A800",
        128,
        4,
        512 * 16,
        1.0,
        150,
        0.3 * 20480,
        20480,
        1,
        True,
        5 * 86400 / 230,
        "mean lengths (prompt 150, response 0.3 of 20,480), no dynamic sampling, one log-prob pass, recomputation",
    ),
    PublishedRun(
        "GRPO Qwen3-32B, 32 H100",
        NEMO,
        "Qwen3-32B",
        "H100",
        32,
        4,
        2048,
        1.0,
        150,
        3206 - 150,
        4096 - 150,
        2,
        True,
        393,
        "prompt 150 of the mean 3,206; two log-prob passes, recomputation",
    ),
    PublishedRun(
        "GRPO Llama-3.1-8B, 16 H100",
        NEMO,
        "Llama-3.1-8B",
        "H100",
        16,
        1,
        2048,
        1.0,
        150,
        1060 - 150,
        4096 - 150,
        2,
        True,
        97.7,
        "prompt 150 of the mean 1,060; two log-prob passes, recomputation",
    ),
)


@dataclass(frozen=True)
class Compared:
    """Seconds of one step by the formulas, and how far they are from the published figure."""

    training: float
    sampling: float
    published: float

    @property
    def seconds(self) -> float:
        return self.training + self.sampling

    @property
    def deviation(self) -> float:
        return self.seconds / self.published - 1


def compare(run: PublishedRun, mfu: float, bandwidth_share: float) -> Compared:
    """Plans one step of `run` as any recipe is planned."""
    shape, gpu = named_shape(run.model), GPUS[run.gpu]
    replicas = run.gpus // run.gpus_per_replica
    speed = GpuSpeed(
        gpu,
        run.gpus,
        replicas,
        run.gpus_per_replica,
        "bfloat16",
        "bfloat16",
        run.is_checkpointed,
        10**9,
        mfu,
        bandwidth_share,
    )
    lengths = ResponseLengths(run.response, run.longest)
    sequence = run.prompt + run.response
    square = run.prompt**2 + 2 * run.prompt * run.response + lengths.mean_square
    tokens = run.responses * sequence
    training = Training(
        tokens=tokens,
        response_tokens=run.responses * run.response,
        forward_tokens=run.forward_passes * tokens,
        context=square / sequence,
        longest=int(run.prompt) + run.longest,
        updates=1,
        kind="adamw",
    )
    sampling = Sampling(1, run.drawn_per_trained * run.responses / 16, 16, run.prompt, lengths)
    weights = shape.parameters * NUMBER_BYTES["bfloat16"]
    room = gpu.memory_gb * 1e9 * MEMORY_SHARE_OF_SAMPLER * run.gpus_per_replica - weights
    kv_tokens = room / shape.kv_bytes_per_token(NUMBER_BYTES["bfloat16"])
    return Compared(
        speed.training_seconds(shape, training),
        speed.sampling_seconds(shape, sampling, kv_tokens),
        run.step_seconds,
    )
