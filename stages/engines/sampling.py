"""What every sampler does: token ids in; token ids, log-probs, stop reason and policy version out; new weights in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Protocol

from pydantic import Field
from torch import Tensor

from stages.foundations.params import StrictParams
from stages.foundations.records import Sample


@dataclass(frozen=True)
class SamplingSettings:
    """How responses are drawn."""

    temperature: float
    """0 takes the most probable token (greedy)."""
    top_p: float
    """Share of probability mass kept, in (0, 1]; 1 keeps all."""
    top_k: int
    """Number of most probable tokens kept; 0 keeps all."""
    max_response_tokens: int
    """A response that reaches this without ending is truncated."""
    log_threshold: float | None
    """Dynamic vocabulary pruning (arXiv 2512.23087): after the temperature and before the other cuts, only tokens with
    log(p / largest p) >= this, at most 0, are kept; None keeps all. Greedy responses are not pruned."""
    keeps_distributions: bool = False
    """True gives `FullSample`s: vocabulary times 4 bytes for each token."""


@dataclass(frozen=True)
class FullSample(Sample):
    """A sample with the whole distribution that each of its tokens was drawn from."""

    distributions: Tensor = field(compare=False)
    """Log-probs [tokens, vocabulary], float32, on the CPU; -inf on tokens that a cut had left out."""


class Sampler(Protocol):
    """A policy that answers prompts."""

    policy_version: int
    """Version of the weights in use, as given to `load_weights`; 0 at first."""

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        samples_per_prompt: int,
        settings: SamplingSettings,
        seed: int,
        label: str = "",
    ) -> list[list[Sample]]:
        """Responses by prompt. Log-probs are those of the distribution sampled from (temperature and cuts applied).

        The same weights, prompts, settings and seed give the same responses. A non-empty `label` shows progress.
        """

    def logprobs(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Log-probability, at temperature 1 and without cuts, of each given response token under the weights in use."""

    def load_weights(self, named_tensors: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """Replaces the weights; names are those of the transformers checkpoint (tied heads may be left out)."""

    def kept_weights(self) -> dict[str, Tensor]:
        """What a later process needs beside the newest weights to go on as this one would; empty for most samplers."""

    def restore_weights(self, kept: Mapping[str, Tensor]) -> None:
        """Takes back what `kept_weights` gave, before the first `load_weights`."""

    def close(self) -> None:
        """Frees memory and ends every process that the sampler started."""


class NoMismatch(StrictParams):
    """The sampler uses the weights that it is given."""

    kind: Literal["none"]


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


Mismatch = Annotated[NoMismatch | Bfloat16Weights | Int8Weights | StaleWeights, Field(discriminator="kind")]
"""A difference between the sampler's weights and the trainer's, made on purpose, to study on a CPU what corrections and
masks do about the mismatch of real inference engines. It is a stand-in: it does not imitate any engine's kernels."""


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
    mismatch: Mismatch
    """Off (`none`) for every purpose but to study mismatch in RL rounds; other stages draw from the exact weights."""


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


SamplerParams = Annotated[TorchSamplerParams | VllmSamplerParams, Field(discriminator="kind")]


def without_mismatch(
    params: TorchSamplerParams | VllmSamplerParams,
) -> TorchSamplerParams | VllmSamplerParams:
    """The same sampler on the policy's exact weights: for stages that measure a policy or draw data from it."""
    match params:
        case TorchSamplerParams():
            return params.model_copy(update={"mismatch": NoMismatch(kind="none")})
        case VllmSamplerParams():
            return params


def build_sampler(params: TorchSamplerParams | VllmSamplerParams, policy_folder: Path) -> Sampler:
    """The sampler that `params` describes, holding the policy of `policy_folder` as version 0."""
    match params:
        case TorchSamplerParams():
            from stages.engines.torch_sampler import TorchSampler

            return TorchSampler.from_folder(params, policy_folder)
        case VllmSamplerParams():
            from stages.engines.vllm_sampler import VllmSampler

            return VllmSampler(params, policy_folder)
