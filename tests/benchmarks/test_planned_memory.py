"""`retrace plan`'s memory beside what torch's memory tracker counts for the same update, without data."""

import pytest
import torch

from benchmarks.gpu.measuring import Bench
from benchmarks.gpu.shapes import micro_batch, random_trainer, trainer_params
from benchmarks.planned_memory import MOST, planned_bytes, tracked_bytes
from pipelines.planning.memory import CONTEXT_BYTES, training_memory
from pipelines.planning.shapes import Shape
from stages.engines.trainers.params import TorchTrainerParams

SMALL = Shape("small", 512, 6, 8, 2, 64, 2048, 8000, True, has_qkv_bias=True)


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "mixed"])
def test_an_update_holds_what_the_plan_says(dtype, is_checkpointed):
    params = TorchTrainerParams(
        kind="torch",
        device="cpu",
        dtype=dtype,
        threads=1,
        micro_batch_tokens=4096,
        gradient_checkpointing=is_checkpointed,
    )
    assert planned_bytes(SMALL, params) == pytest.approx(tracked_bytes(SMALL, params), rel=MOST)


@pytest.mark.gpu
def test_an_update_on_a_gpu_holds_what_the_plan_says():
    shape = Shape("small", 1024, 8, 16, 4, 64, 4096, 32_000, True, has_qkv_bias=True)
    bench, tokens = Bench(torch.device("cuda"), False), 8192
    params = trainer_params(bench, tokens, False)
    trainer, batch = random_trainer(bench, shape, params), micro_batch(shape, tokens)
    torch.cuda.reset_peak_memory_stats()
    trainer.update([batch], lambda found, _: (-found.logprobs.mean(), {}), 1.0)
    planned = training_memory(shape, params, "adamw", 1, tokens, False).total - CONTEXT_BYTES
    assert torch.cuda.max_memory_allocated() == pytest.approx(planned, rel=0.15)
