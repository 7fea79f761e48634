"""The built-in sampler with a pause after each decode step, to have time for faults."""

import time
from pathlib import Path

from stages.engines.samplers.params import TorchSamplerParams
from stages.engines.samplers.torch_sampler import TorchSampler

PARAMS = TorchSamplerParams(kind="torch", device="cpu", dtype="float32", threads=1, max_sequences=4)


class SteppingSampler(TorchSampler):
    pause_seconds = 0.0

    def open(self, settings):
        decoding = super().open(settings)
        step = decoding.step

        def slow_step():
            time.sleep(self.pause_seconds)
            return step()

        decoding.step = slow_step
        return decoding


def stepping_sampler(policy_folder: Path, pause_seconds: float = 0.0) -> SteppingSampler:
    """With room for four sequences."""
    sampler = SteppingSampler.from_folder(PARAMS, policy_folder)
    sampler.pause_seconds = pause_seconds
    return sampler
