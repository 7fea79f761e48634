"""Parameters of section `sampler`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.foundations.params import StrictParams


class Bfloat16Weights(StrictParams):
    """Every weight is rounded to bfloat16; the computation keeps the sampler's precision."""

    kind: Literal["bfloat16_weights"]


class Int8Weights(StrictParams):
    """Every matrix, embedding and head included, is rounded to 255 levels a row (an output channel); vectors are not.

    Symmetric and simulated: the rounded weights are used at the sampler's precision, activations are not quantised.
    """

    kind: Literal["int8_weights"]


class StaleWeights(StrictParams):
    """The sampler serves the weights of some versions ago and says so in `policy_version`.

    It holds as many copies of the weights as versions on the CPU, and they are part of a round's checkpoints.
    """

    kind: Literal["stale_weights"]
    versions: int | None = Field(ge=1)
    """Versions behind the newest, version 0 while there are fewer; null serves version 0 throughout."""


Mismatch = Annotated[Bfloat16Weights | Int8Weights | StaleWeights, Field(discriminator="kind")]
"""A difference between the sampler's weights and the trainer's, made on purpose, to study on a CPU what corrections and
masks do about the mismatch of real inference engines. It is a stand-in: it does not imitate any engine's kernels."""


class RayReplicas(StrictParams):
    """Copies of the sampler in processes of their own, which Ray starts and spreads over its nodes."""

    kind: Literal["ray"]
    count: int = Field(ge=1)


StopList = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


class TorchSamplerParams(StrictParams):
    """The built-in sampler: a key-value cache loop over the policy's own weights, in this process."""

    kind: Literal["torch"]
    device: Literal["auto", "cpu", "cuda"]
    dtype: Literal["float32", "bfloat16"]
    """Precision of the sampler's forward pass; float32 agrees with a float32 trainer to about 1e-5."""
    threads: int = Field(ge=1)
    """CPU threads; part of the result, because the order of float additions depends on it."""
    max_sequences: int = Field(ge=1)
    """Sequences decoded at once."""
    stop: StopList | None = None
    """Strings that end a response as an end token does; they stay in its text. Absent: end tokens alone do."""
    replicas: RayReplicas | None = None
    """Absent: one sampler, in the process that asks."""


class VllmSamplerParams(StrictParams):
    """vLLM, in this process on one device or with worker processes for tensor parallelism."""

    kind: Literal["vllm"]
    dtype: Literal["float32", "bfloat16", "float16", "auto"]
    max_model_tokens: int = Field(ge=16)
    """Prompt and response tokens together."""
    max_sequences: int = Field(ge=1)
    """Sequences decoded at once."""
    memory_fraction: float = Field(gt=0, le=1)
    """Share of GPU memory for weights and key-value cache; ignored on CPU."""
    kv_cache_gib: float = Field(gt=0)
    """Key-value cache on CPU; ignored on a GPU."""
    tensor_parallel: int = Field(ge=1)
    """GPUs that one replica is spread over."""
    enforce_eager: bool
    """True skips CUDA graphs; always true on CPU."""
    stop: StopList | None = None
    """Strings that end a response as an end token does; they stay in its text. Absent: end tokens alone do."""
    replicas: RayReplicas | None = None
    """Absent: one sampler, in the process that asks."""


SamplerParams = Annotated[TorchSamplerParams | VllmSamplerParams, Field(discriminator="kind")]
