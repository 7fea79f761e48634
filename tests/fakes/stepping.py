"""The built-in sampler with a pause after each decode step, which gives time for faults."""

import time
from pathlib import Path
from typing import Any

from stages.engines.samplers.params import TorchSamplerParams
from stages.engines.samplers.protocol import SamplingSettings, Trajectory, sample_trajectories
from stages.foundations.errors import UserError

SETTINGS = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_response_tokens=12, log_threshold=None)
TRAJECTORIES = {f"t{n}": Trajectory([5 + n // 2, 6], seed=100 + n) for n in range(6)}
PARAMS = TorchSamplerParams(kind="torch", device="cpu", dtype="float32", threads=1, max_sequences=4)


def stepping_sampler(policy_folder: Path, pause_seconds: float = 0.0) -> Any:
    """Builds a sampler for four sequences. Imports torch inside, because an actor unpickles this before it starts."""
    from stages.engines.samplers.torch_sampler import TorchSampler

    class SteppingSampler(TorchSampler):
        def open(self, settings):
            decoding = super().open(settings)
            step = decoding.step

            def slow_step():
                time.sleep(pause_seconds)
                return step()

            decoding.step = slow_step
            return decoding

    return SteppingSampler.from_folder(PARAMS, policy_folder)


def tokens(samples):
    return {name: sample.token_ids for name, sample in samples.items()}


def alone(policy_folder: Path):
    """Returns the tokens of `TRAJECTORIES` from one sampler, without replicas."""
    drawn = sample_trajectories(stepping_sampler(policy_folder), list(TRAJECTORIES.values()), SETTINGS)
    return tokens(dict(zip(TRAJECTORIES, drawn, strict=True)))


def broken_sampler() -> Any:
    raise FloatingPointError("no such number")


def refused_sampler() -> Any:
    raise UserError("sampler.max_sequences is too large: lower it")
