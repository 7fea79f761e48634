"""The sampler that section `sampler` describes."""

from __future__ import annotations

from pathlib import Path

from stages.engines.samplers.params import TorchSamplerParams, VllmSamplerParams
from stages.engines.samplers.protocol import Sampler
from stages.foundations.params import chosen


def build_sampler(params: TorchSamplerParams | VllmSamplerParams, policy_folder: Path) -> Sampler:
    """The sampler that `params` describes, holding the policy of `policy_folder` as version 0."""
    match chosen("sampler", params):
        case TorchSamplerParams():
            from stages.engines.samplers.torch_sampler import TorchSampler

            return TorchSampler.from_folder(params, policy_folder)
        case VllmSamplerParams():
            from stages.engines.samplers.vllm_sampler import VllmSampler

            return VllmSampler(params, policy_folder)
