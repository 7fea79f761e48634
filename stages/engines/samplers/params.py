"""Parameters of section `sampler`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.foundations.params import StrictParams


class Bfloat16Weights(StrictParams):
    """Rounds every weight to bfloat16; the computation keeps the sampler's precision."""

    kind: Literal["bfloat16_weights"]


class Int8Weights(StrictParams):
    """Rounds each matrix, also embedding and head, to 255 levels per row (an output channel), and no vectors.

    Symmetric and simulated: the rounded weights are used at the sampler's precision, activations are not quantised.
    """

    kind: Literal["int8_weights"]


class StaleWeights(StrictParams):
    """Makes the sampler serve the weights of some versions ago; `policy_version` says which.

    The sampler holds `versions` copies of the weights on the CPU, and they are part of a round's checkpoints.
    """

    kind: Literal["stale_weights"]
    versions: int | None = Field(ge=1)
    """Number of versions before the newest; version 0 while there are fewer; null serves version 0 throughout."""


Mismatch = Annotated[Bfloat16Weights | Int8Weights | StaleWeights, Field(discriminator="kind")]
"""A deliberate difference between the sampler's weights and the trainer's. It serves to study on a CPU how corrections
and masks handle the mismatch of real inference engines. It does not imitate any engine's kernels."""


class RayReplicas(StrictParams):
    """Copies of the sampler in separate processes, which Ray starts and spreads over its nodes."""

    kind: Literal["ray"]
    count: int = Field(ge=1)


StopList = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


class TorchSamplerParams(StrictParams):
    """The built-in sampler: a decoding loop with a key-value cache over the policy's weights, in this process."""

    kind: Literal["torch"]
    device: Literal["auto", "cpu", "cuda"]
    dtype: Literal["float32", "bfloat16"]
    """Precision of the sampler's forward pass; float32 agrees with a float32 trainer to about 1e-5."""
    threads: int = Field(ge=1)
    """CPU threads; they affect the result, because the order of float additions depends on them."""
    max_sequences: int = Field(ge=1)
    """Maximum number of sequences decoded at the same time."""
    stop: StopList | None = None
    """Strings that end a response as an end token does; they stay in its text. Absent: only end tokens do."""
    replicas: RayReplicas | None = None
    """Absent: one sampler, in the calling process."""


class VllmSamplerParams(StrictParams):
    """vLLM, in this process on one device or with worker processes for tensor parallelism."""

    kind: Literal["vllm"]
    dtype: Literal["float32", "bfloat16", "float16", "auto"]
    max_model_tokens: int = Field(ge=16)
    """Maximum of prompt and response tokens together."""
    max_sequences: int = Field(ge=1)
    """Maximum number of sequences decoded at the same time."""
    memory_fraction: float = Field(gt=0, le=1)
    """Share of GPU memory for weights and key-value cache; ignored on CPU."""
    kv_cache_gib: float = Field(gt=0)
    """GiB of key-value cache on CPU; ignored on a GPU."""
    tensor_parallel: int = Field(ge=1)
    """Number of GPUs over which one replica is spread."""
    enforce_eager: bool
    """True skips CUDA graphs; always true on CPU."""
    stop: StopList | None = None
    """Strings that end a response as an end token does; they stay in its text. Absent: only end tokens do."""
    replicas: RayReplicas | None = None
    """Absent: one sampler, in the calling process."""


SamplerParams = Annotated[TorchSamplerParams | VllmSamplerParams, Field(discriminator="kind")]
