"""The sampler that section `sampler` describes."""

from __future__ import annotations

from pathlib import Path

from stages.engines.samplers.params import (
    Mismatch,
    TorchSamplerParams,
    VirtualSamplerParams,
    VllmSamplerParams,
)
from stages.engines.samplers.protocol import Sampler
from stages.foundations.errors import UserError
from stages.foundations.params import chosen
from stages.observe.quick_imports import quick_imports


def build_sampler(
    params: TorchSamplerParams | VllmSamplerParams | VirtualSamplerParams,
    policy_folder: Path,
    mismatch: Mismatch | None = None,
    may_be_virtual: bool = False,
) -> Sampler:
    """The sampler that `params` describes, holding the policy of `policy_folder` as version 0.

    A `mismatch` makes the built-in sampler's weights differ from those that it is given; others cannot (ValueError).
    A virtual sampler is for callers that measure: UserError where its tokens would pass for a policy's answers.
    """
    match chosen("sampler", params):
        case TorchSamplerParams():
            with quick_imports():
                from stages.engines.samplers.torch_sampler import TorchSampler

            return TorchSampler.from_folder(params, policy_folder, mismatch)
        case VllmSamplerParams():
            _refuse_mismatch(mismatch)
            from stages.engines.samplers.vllm_sampler import VllmSampler

            return VllmSampler(params, policy_folder)
        case VirtualSamplerParams():
            _refuse_mismatch(mismatch)
            if not may_be_virtual:
                raise UserError(
                    "sampler.kind virtual draws random tokens of forced lengths, which would be written down here as "
                    "the policy's answers: set sampler.kind torch or vllm (virtual is for RL loops that are timed)"
                )
            from stages.engines.samplers.virtual_sampler import VirtualSampler

            return VirtualSampler.from_folder(params, policy_folder)


def _refuse_mismatch(mismatch: Mismatch | None) -> None:
    if mismatch:
        raise ValueError("a mismatch is simulated in the built-in sampler: take sampler.kind torch")
