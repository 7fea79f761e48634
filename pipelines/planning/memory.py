"""Memory of one GPU, in bytes: how much training and sampling need, and what does not fit.

Training state: Rajbhandari et al., ZeRO (arXiv 1910.02054), section 3.1 and figure 1. Activations: counted as in
Korthikanti et al. (arXiv 2205.05198), section 4.1. They are adapted to three things: a gated feed-forward without
biases, attention that never stores its scores (flash attention), and the trainer's head, whose logits exist only in
chunks.

`problems_of` lists the parts of a planned stage that do not fit its devices, each with what to change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.planning.sizes import GIB, NUMBER_BYTES, Gpu, Shape
from pipelines.planning.work import SideBySide, Work
from stages.engines.trainers.params import BUCKET_ELEMENTS, CHUNK_TOKENS

CONTEXT_BYTES = 1.0 * GIB
"""The CUDA context and the libraries' workspaces on each GPU; an assumption."""


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes on one GPU while a policy is trained."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    reference: float
    buffers: float

    @property
    def total(self) -> float:
        return sum(vars(self).values())


@dataclass(frozen=True)
class SamplingMemory:
    """Bytes on one GPU while a policy is sampled."""

    weights: float
    kv_cache: float
    """Bytes left for the cache, or the bytes it needs if nothing limits it."""
    kv_tokens: float
    """Tokens that fit into the cache, over all GPUs of the replica."""
    buffers: float

    @property
    def total(self) -> float:
        return self.weights + max(0.0, self.kv_cache) + self.buffers


def training_memory(
    shape: Shape,
    trainer: Any,
    optimizer: str,
    ranks: int,
    longest: int,
    has_reference: bool,
    adapter: Any = None,
    critic: str | None = None,
) -> TrainingMemory:
    """Returns the state by ZeRO stage over `ranks` (only of an `adapter` if given) and the largest micro-batch's
    activations.

    `critic` is the kind of its optimizer, if there is one: its state is added, and it learns while the policy does not.
    """
    count, width = shape.parameters, NUMBER_BYTES[trainer.dtype]
    learned = shape.adapter_weights(adapter.rank, adapter.targets) if adapter else count
    state = _state_bytes(shape, trainer, optimizer, ranks, count, learned)
    if critic:
        # The body alone, with one vector as its head; a tied head is the embedding.
        body = count - (0 if shape.is_tied else shape.vocabulary * shape.hidden)
        of_critic = _state_bytes(shape, trainer, critic, ranks, body, body)
        state = tuple(sum(parts) for parts in zip(state, of_critic, strict=True))
    weights, gradients, moments, buffers = state
    # A sequence is never split: one longer than a micro-batch gives a larger micro-batch.
    tokens = max(trainer.micro_batch_tokens, longest)
    return TrainingMemory(
        weights=weights,
        gradients=gradients,
        optimizer=moments,
        activations=activation_bytes(shape, tokens, width, trainer.gradient_checkpointing),
        reference=count * width if has_reference else 0.0,
        buffers=CONTEXT_BYTES + buffers,
    )


def _state_bytes(shape: Shape, trainer: Any, optimizer: str, ranks: int, count: int, learned: int) -> tuple[float, ...]:
    """Returns bytes of weights, gradients, optimizer and buffers of a model of `count` weights, of which some are
    `learned`. Learned weights of an adapter are additional weights."""
    width = NUMBER_BYTES[trainer.dtype]
    # Muon has one moment. It leaves the embedding to AdamW, which has two.
    moments = 2.0 if optimizer == "adamw" else 1.0 + shape.vocabulary * shape.hidden / count
    # Mixed: float32 master weights in addition to the weights; gradients are summed in float32.
    is_mixed, buffers = trainer.dtype == "mixed", 0.0
    weights, gradients, state = count * width, learned * 4, learned * 4 * (moments + is_mixed)
    weights += learned * width if learned != count else 0
    if trainer.kind == "deepspeed":
        zero = trainer.zero_stage
        # Two buckets of float32, for reducing gradients and for gathering weights.
        buffers = 2 * 4 * BUCKET_ELEMENTS if zero else 0.0
        # ZeRO 1 divides the optimizer state among the ranks, ZeRO 2 also the gradients, ZeRO 3 also the weights.
        state /= ranks if zero >= 1 else 1
        gradients /= ranks if zero >= 2 else 1
        weights /= ranks if zero == 3 else 1
        # Offloaded state is in host memory, which is not counted.
        state *= 0 if trainer.offload_optimizer else 1
    return weights, gradients, state, buffers


def activation_bytes(shape: Shape, tokens: int, width: int, is_checkpointed: bool) -> float:
    """Returns the bytes kept for the backward pass of one micro-batch, plus the larger of two: the chunk of logits, or
    the one layer that checkpointing recomputes.

    Each layer keeps per token, for each of its two norms: the input in float32, the normalised value, and that value
    times the norm's weights. It also keeps the queries, keys and values, the output of attention, and four feed-forward
    rows (gate, its SiLU, up, their product). The model's last norm is counted in the same way.
    """
    # Queries and the result of attention for each head, keys and values for each key-value head.
    heads = (shape.heads * 2 + shape.kv_heads * 2) * shape.head_size
    norm = (4 + 2 * width) * shape.hidden * tokens
    layer = 2 * norm + (heads + 4 * shape.feed_forward) * width * tokens
    logits = width * min(tokens, CHUNK_TOKENS) * shape.vocabulary
    # Section 5 of Korthikanti et al.: a layer keeps only its input, and one layer at a time is recomputed.
    if is_checkpointed:
        return shape.layers * shape.hidden * width * tokens + norm + max(layer, logits)
    return shape.layers * layer + norm + logits


def sampling_memory(shape: Shape, sampler: Any, gpu: Gpu, sequences: float, tokens_each: float) -> SamplingMemory:
    """Plans one replica over `tensor_parallel` GPUs, with at most `sequences` of `tokens_each` at once."""
    parallel = getattr(sampler, "tensor_parallel", 1)
    width = NUMBER_BYTES[sampler.dtype]
    weights = shape.parameters * width / parallel
    # The torch sampler keeps its cache in float32 for a policy of any precision.
    per_token = shape.kv_bytes_per_token(width if sampler.kind == "vllm" else 4)
    if sampler.kind == "vllm":
        room = gpu.memory_gb * 1e9 * sampler.memory_fraction - weights - CONTEXT_BYTES
        return SamplingMemory(weights, room, max(0.0, room) * parallel / per_token, CONTEXT_BYTES)
    tokens = min(sampler.max_sequences, sequences) * tokens_each
    return SamplingMemory(weights, tokens * per_token, tokens, CONTEXT_BYTES)


def problems_of(
    name: str,
    item: Work,
    training: TrainingMemory | None,
    sampling: SamplingMemory | None,
    sections: Mapping[str, Any],
    shape: Shape,
    gpu: Gpu,
    gpus: int,
    is_split: bool,
) -> Iterator[str]:
    """Yields sentences on a stage that does not fit, each with a remedy.

    `is_split`: a stage of the recipe samples and trains side by side.
    """
    trainer, sampler, memory = sections["trainer"], sections["sampler"], gpu.memory_gb * 1e9
    longest = max((part.prompt_tokens + part.lengths.most for part in item.sampling), default=0.0)
    evaluates = any(part.is_by_trainer for part in item.sampling)
    if gpu.name == "cpu":
        # Replicas on a CPU are processes on this machine, and each holds the policy.
        copies = item.side_by_side.replicas + evaluates if item.side_by_side else 1
        total = (training.total if training else 0.0) + (sampling.total * copies if sampling else 0.0)
        if total > memory:
            yield f"{name}: needs {total / 1e9:.1f} GB and this machine has {gpu.memory_gb:.1f}"
    else:
        if training and training.total > memory:
            yield (
                f"{name}: training needs {training.total / 1e9:.0f} GB a GPU and a {gpu.name} has "
                f"{gpu.memory_gb:.0f}: " + _training_remedy(trainer, training, memory)
            )
        if sampling:
            yield from _sampling_problems(name, gpu, sampler, sampling, longest)
        if training and sampling and (item.side_by_side is None or evaluates):  # both on rank 0's GPU
            # vLLM reserves its share at the start, even if the cache never fills.
            held = memory * sampler.memory_fraction if sampler.kind == "vllm" else sampling.total
            if training.total <= memory < training.total + held:
                yield (
                    f"{name}: trainer ({training.total / 1e9:.0f} GB) and sampler ({held / 1e9:.0f} GB) share rank 0's "
                    f"GPU of {gpu.memory_gb:.0f} GB: " + _sharing_remedy(sampler, 1 - training.total / memory)
                )
        if item.side_by_side:
            yield from _too_few_gpus(name, item.side_by_side, sampler, gpus)
    if item.training and gpus > 1 and not is_split and trainer.kind == "torch":
        yield (
            f"{name}: trainer.kind torch uses one GPU of {gpus}: set trainer.kind deepspeed and "
            "launch.command.kind torchrun"
        )
    if shape.max_positions and longest > shape.max_positions:
        yield (
            f"{name}: a prompt and its longest response take {longest:,.0f} tokens, more than the policy's "
            f"{shape.max_positions:,} positions: lower max_response_tokens"
        )


def _sampling_problems(name: str, gpu: Gpu, sampler: Any, sampling: SamplingMemory, longest: float) -> Iterator[str]:
    """Yields problems of sampling; `longest` is in prompt and response tokens."""
    if sampler.kind != "vllm":
        if sampling.total > gpu.memory_gb * 1e9:
            yield (
                f"{name}: sampling needs {sampling.total / 1e9:.0f} GB and a {gpu.name} has {gpu.memory_gb:.0f}: lower "
                "sampler.max_sequences, or take sampler.kind vllm, which pages its cache"
            )
        return
    if sampling.kv_cache <= 0:
        yield (
            f"{name}: the sampler's weights take {sampling.weights / 1e9:.0f} GB a GPU, more than "
            f"sampler.memory_fraction {sampler.memory_fraction} of it: raise sampler.tensor_parallel (now "
            f"{sampler.tensor_parallel}) or memory_fraction"
        )
    elif sampling.kv_tokens < longest:
        yield (
            f"{name}: the key-value cache holds {sampling.kv_tokens:,.0f} tokens, less than one sequence of "
            f"{longest:,.0f}: raise sampler.memory_fraction or tensor_parallel, or lower max_response_tokens"
        )
    if longest > sampler.max_model_tokens:
        yield (
            f"{name}: a prompt and its longest response take {longest:,.0f} tokens, more than "
            f"sampler.max_model_tokens {sampler.max_model_tokens}: raise it, or lower max_response_tokens"
        )


def _too_few_gpus(name: str, own: SideBySide, sampler: Any, gpus: int) -> Iterator[str]:
    parallel = getattr(sampler, "tensor_parallel", 1)
    needed = own.replicas * parallel + own.trainer_ranks
    if needed > gpus:
        yield (
            f"{name}: {own.replicas} replica(s) of {parallel} GPU(s) and {own.trainer_ranks} trainer rank(s) need "
            f"{needed} GPUs, but --gpus is {gpus}: raise it, or lower sampler.replicas.count, sampler.tensor_parallel "
            "or rl.loop.trainer_ranks"
        )


def _training_remedy(trainer: Any, training: TrainingMemory, memory: float) -> str:
    remedies = []
    if not trainer.gradient_checkpointing and training.activations > 0.2 * memory:
        remedies.append("set trainer.gradient_checkpointing true")
    if training.activations > 0.5 * memory:
        remedies.append("lower trainer.micro_batch_tokens or max_response_tokens")
    if trainer.kind == "torch":
        remedies.append("set trainer.kind deepspeed with zero_stage 3 and start it on several GPUs (launch)")
    elif trainer.zero_stage < 3:
        remedies.append(f"raise trainer.zero_stage (now {trainer.zero_stage})")
    elif not trainer.offload_optimizer:
        remedies.append("take more GPUs, or set trainer.offload_optimizer true")
    else:
        remedies.append("take more GPUs")
    return ", ".join(remedies)


def _sharing_remedy(sampler: Any, free_share: float) -> str:
    # Less than a twentieth of a GPU gives no useful cache, so other remedies are better.
    if sampler.kind == "vllm" and free_share >= 0.05:
        return f"lower sampler.memory_fraction to {free_share:.2f}"
    return "raise sampler.tensor_parallel, raise trainer.zero_stage, or lower sampler.max_sequences"
