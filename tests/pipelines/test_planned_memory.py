"""`retrace plan`'s memory beside what torch's memory tracker counts for the same update, without data."""

import pytest

from benchmarks.planned_memory import MOST, planned_bytes, tracked_bytes
from pipelines.planning.shapes import Shape
from stages.engines.trainers.params import TorchTrainerParams

SMALL = Shape("small", 512, 4, 8, 2, 64, 2048, 8000, True, has_qkv_bias=True)


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
