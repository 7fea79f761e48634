"""Section `trainer`, and the settings of optimizer and schedule that all training stages share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from stages.foundations.params import StrictParams


class AdamwParams(StrictParams):
    """AdamW on every parameter."""

    kind: Literal["adamw"]
    learning_rate: float = Field(gt=0)
    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    weight_decay: float = Field(ge=0)


class MuonParams(StrictParams):
    """Muon on the matrices of the layers, AdamW on embeddings, head and vectors."""

    kind: Literal["muon"]
    learning_rate: float = Field(gt=0)
    """Peak learning rate of Muon."""
    adamw_learning_rate: float = Field(gt=0)
    """Peak learning rate of the other parameters; both follow the same schedule."""
    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    weight_decay: float = Field(ge=0)
    """Weight decay of the matrices; the other parameters have none."""


OptimizerParams = Annotated[AdamwParams | MuonParams, Field(discriminator="kind")]


class LoraParams(StrictParams):
    """Freezes the policy and trains LoRA (arXiv 2106.09685) for matrices of its layers, without dropout."""

    kind: Literal["lora"]
    rank: int = Field(ge=1)
    alpha: float = Field(gt=0)
    """LoRA's output is multiplied by alpha / rank; with `rslora` by alpha / sqrt(rank)."""
    targets: Literal["all_linear"] | Annotated[list[str], Field(min_length=1)]
    """Matrices, by the last part of their names (`q_proj`), or all in the layers; never embedding and head."""
    rslora: bool
    """True makes the size of updates independent of LoRA's rank (arXiv 2312.03732)."""


AdapterParams = Annotated[LoraParams | None, Field(exclude_if=lambda value: value is None)]
"""Absent: every weight is learned."""


class CriticParams(StrictParams):
    """A second network that learns the value of each token; it starts as the body of the policy, with a head of 0."""

    optimizer: OptimizerParams
    """Its learning rates follow the policy's schedule (Demystify: 9e-6, 18 times the policy's)."""
    value_clip: float | None = Field(gt=0)
    """Distance from the value before the step beyond which a value is not moved further (0.2); null for no clip."""
    warmup_steps: int = Field(ge=0)
    """Steps at the start of a round in which only the critic learns."""


class OptimizationParams(StrictParams):
    """Optimizer settings of a training stage, for any unit in which it counts its updates."""

    optimizer: OptimizerParams
    max_gradient_norm: float = Field(gt=0)
    """Gradients are clipped to this norm."""
    final_learning_rate_fraction: float = Field(ge=0, le=1)
    """Share of the peak learning rate at the end of the cosine schedule; 1 is a constant rate."""


class TrainingParams(OptimizationParams):
    """Settings of a stage that trains for a number of steps, with one optimizer update each."""

    steps: int = Field(ge=1)
    warmup_steps: int = Field(ge=0)
    """Linear warm-up from 0."""
    validate_every_steps: int = Field(ge=1)
    checkpoint_every_steps: int = Field(ge=1)
    """Steps between checkpoints; a killed run resumes from the last one."""

    @model_validator(mode="after")
    def _warmup_fits(self) -> Self:
        if self.warmup_steps >= self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} must be less than steps {self.steps}")
        return self


def _refuse_bfloat16(dtype: object) -> object:
    if dtype == "bfloat16":
        raise ValueError(
            "weights and moments in bfloat16 do not learn: an update below a 512th of a weight is rounded away, which "
            "is nearly every update at a learning rate of 1e-6. `mixed` computes in bfloat16 and learns in float32"
        )
    return dtype


TrainingDtype = Annotated[Literal["float32", "mixed"], BeforeValidator(_refuse_bfloat16)]
"""float32, or mixed: forward and backward pass in bfloat16; weights, gradient sums and moments in float32."""


Compiled = Annotated[Literal["body"] | None, Field(exclude_if=lambda value: value is None)]
"""The part that `torch.compile` compiles: a policy's layers, in one graph without a break. Absent: nothing. Compiling
takes a minute at the start, and on a CPU it needs a compiler."""


# Two sizes of the trainers' buffers, which `retrace plan` counts without loading torch.
CHUNK_TOKENS = 4096
"""Tokens whose logits exist at once: 4,096 x 151,936 in float32 is 2.5 GB; small vocabularies lose no speed."""
BUCKET_ELEMENTS = 100_000_000
"""Gradients that DeepSpeed reduces at once; its default of 500 million would add 2 GB to a small policy."""


class TorchTrainerParams(StrictParams):
    """One process, one device."""

    kind: Literal["torch"]
    device: Literal["auto", "cpu", "cuda"]
    dtype: TrainingDtype
    """float32 on a GPU is exact, but 15 times slower."""
    threads: int = Field(ge=1)
    """CPU threads; they affect the result, because the order of float additions depends on them."""
    micro_batch_tokens: int = Field(ge=1)
    """Prompt and response tokens in one forward pass."""
    gradient_checkpointing: bool
    compile: Compiled = None


class DeepspeedTrainerParams(StrictParams):
    """DeepSpeed ZeRO over the ranks that section `launch` starts."""

    kind: Literal["deepspeed"]
    zero_stage: Literal[0, 1, 2, 3]
    dtype: TrainingDtype
    offload_optimizer: bool
    """True keeps optimizer state in CPU memory."""
    threads: int = Field(ge=1)
    micro_batch_tokens: int = Field(ge=1)
    gradient_checkpointing: bool
    compile: Compiled = None

    @model_validator(mode="after")
    def _refuse_to_compile_spread_weights(self) -> Self:
        if self.compile and self.zero_stage == 3:
            raise ValueError(
                "compile: body makes one graph of the layers, and zero_stage 3 gathers weights between them: set "
                "zero_stage: 2, or leave compile out"
            )
        return self


TrainerParams = Annotated[TorchTrainerParams | DeepspeedTrainerParams, Field(discriminator="kind")]


def adapter_contradictions(
    section: str, adapter: LoraParams | None, optimizer: AdamwParams | MuonParams, trainer: TrainerParams
) -> Iterator[str]:
    """Yields contradictions of adapters with the optimizer of their section, and with section `trainer`."""
    if adapter and optimizer.kind == "muon":
        yield (
            f"{section}.optimizer.kind muon makes the update of a whole matrix orthogonal, and {section}.adapter "
            "learns two thin ones in its place: set optimizer.kind adamw, or leave adapter out"
        )
    if adapter and trainer.kind == "deepspeed" and trainer.zero_stage == 3:
        yield (
            f"{section}.adapter merges whole matrices, and trainer.zero_stage 3 has them in parts: set zero_stage 2, "
            "which divides all that LoRA learns"
        )
