"""`retrace plan`'s memory beside what torch's memory tracker counts for the same update, without data."""

import pytest
import torch

from benchmarks.gpu.engines import mean_loss
from benchmarks.gpu.measuring import Bench
from benchmarks.gpu.shapes import micro_batch, random_trainer
from benchmarks.planned_memory import MOST, planned_bytes, tracked_bytes
from pipelines.planning.sizes import Shape
from stages.engines.trainers.params import TorchTrainerParams

SMALL = Shape("small", 512, 6, 8, 2, 64, 2048, 8000, True, has_qkv_bias=True)


@pytest.mark.parametrize(("dtype", "is_checkpointed"), [("float32", False), ("mixed", True)])
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
def test_an_update_holds_on_a_gpu_what_the_plan_says():
    params = TorchTrainerParams(
        kind="torch", device="cuda", dtype="mixed", threads=1, micro_batch_tokens=8192, gradient_checkpointing=False
    )
    bench = Bench(torch.device("cuda"), False)
    trainer, batch = random_trainer(bench, SMALL, params), micro_batch(SMALL, params.micro_batch_tokens)
    bench.forget_peak()
    trainer.update([batch, batch], mean_loss, 1.0)
    assert bench.peak_gib() * 2**30 == pytest.approx(planned_bytes(SMALL, params), rel=MOST)
