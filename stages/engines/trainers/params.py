"""Parameters of section `trainer`, and of the optimizers that training stages choose."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

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
    """Peak learning rate of the rest; both follow the same schedule."""
    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    weight_decay: float = Field(ge=0)
    """Of the matrices; the rest is not decayed."""


OptimizerParams = Annotated[AdamwParams | MuonParams, Field(discriminator="kind")]


class TorchTrainerParams(StrictParams):
    """One process, one device."""

    kind: Literal["torch"]
    device: Literal["auto", "cpu", "cuda"]
    dtype: Literal["float32", "bfloat16"]
    """Precision of weights and activations; float32 on a GPU is slow but exact. A bfloat16 weight does not feel a step
    below 1/256 of itself: train small steps in float32, or with DeepSpeed, which keeps float32 weights beside."""
    threads: int = Field(ge=1)
    """CPU threads; part of the result, because the order of float additions depends on it."""
    micro_batch_tokens: int = Field(ge=1)
    """Prompt and response tokens in one forward pass."""
    gradient_checkpointing: bool


class DeepspeedTrainerParams(StrictParams):
    """DeepSpeed ZeRO over the ranks that `torchrun` starts (`launch.train`)."""

    kind: Literal["deepspeed"]
    zero_stage: Literal[0, 1, 2, 3]
    dtype: Literal["float32", "bfloat16"]
    """Precision of weights and activations; master weights stay float32."""
    offload_optimizer: bool
    """True keeps optimizer state in CPU memory."""
    threads: int = Field(ge=1)
    micro_batch_tokens: int = Field(ge=1)
    gradient_checkpointing: bool


TrainerParams = Annotated[TorchTrainerParams | DeepspeedTrainerParams, Field(discriminator="kind")]
