"""The sampler that section `sampler` describes."""

from __future__ import annotations

from pathlib import Path

from stages.engines.samplers.params import Mismatch, TorchSamplerParams, VllmSamplerParams
from stages.engines.samplers.protocol import Sampler
from stages.foundations.params import chosen


def build_sampler(
    params: TorchSamplerParams | VllmSamplerParams, policy_folder: Path, mismatch: Mismatch | None = None
) -> Sampler:
    """The sampler that `params` describes, holding the policy of `policy_folder` as version 0.

    A `mismatch` makes the built-in sampler's weights differ from those that it is given; vLLM's cannot (ValueError).
    """
    match chosen("sampler", params):
        case TorchSamplerParams():
            from stages.engines.samplers.torch_sampler import TorchSampler

            return TorchSampler.from_folder(params, policy_folder, mismatch)
        case VllmSamplerParams():
            if mismatch:
                raise ValueError("a mismatch is simulated in the built-in sampler: take sampler.kind torch")
            from stages.engines.samplers.vllm_sampler import VllmSampler

            return VllmSampler(params, policy_folder)
