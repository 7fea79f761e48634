"""Builds the sampler of section `sampler`: in this process, or as the stated number of replicas."""

from __future__ import annotations

from pathlib import Path

from stages.engines.samplers import build
from stages.engines.samplers.params import Mismatch, RayReplicas, SamplerParams
from stages.engines.samplers.protocol import Sampler
from stages.engines.turns import with_turns
from stages.foundations.errors import UserError
from stages.foundations.params import ChatPrompt, PlainPrompt, chosen


def build_sampler(
    params: SamplerParams,
    policy_folder: Path,
    mismatch: Mismatch | None = None,
    prompt: PlainPrompt | ChatPrompt | None = None,
) -> Sampler:
    """See `stages.engines.samplers.build`. With a `prompt` that has an environment, responses have several turns.

    UserError for a mismatch, which replicas do not have.
    """
    match chosen("sampler.replicas", params.replicas):
        case RayReplicas(count=count) if count > 1:
            if mismatch:
                raise UserError(
                    "a mismatch on purpose is studied with one sampler: leave sampler.replicas out, or rl.mismatch"
                )
            from stages.engines.replicas.replicated_sampler import ReplicatedSampler

            return ReplicatedSampler(params, policy_folder, prompt)
    return with_turns(build.build_sampler(params, policy_folder, mismatch, prompt), prompt, policy_folder)
