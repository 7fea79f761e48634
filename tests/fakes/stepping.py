"""The built-in sampler with a pause after each decode step, to have time for faults."""

import time
from pathlib import Path
from typing import Any

from stages.engines.samplers.params import TorchSamplerParams

PARAMS = TorchSamplerParams(kind="torch", device="cpu", dtype="float32", threads=1, max_sequences=4)


def stepping_sampler(policy_folder: Path, pause_seconds: float = 0.0) -> Any:
    """With room for four sequences. An actor unpickles this function before it starts, so torch is imported in it."""
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
