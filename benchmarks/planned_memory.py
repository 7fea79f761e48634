"""Compares the memory of an update in `retrace plan` with torch's memory tracker on tensors without data.

The tracker (torch.distributed._tools.mem_tracker) follows every storage of a real trainer, model and loss under
FakeTensorMode: no weight exists, and a CPU counts the memory of a GPU. It measures the second micro-batch of an update,
when gradients of the first exist. Stand-ins replace code that needs data or differs on a GPU.

    attention          keeps the tensors of a flash kernel: queries, keys, values, its output, one float per row
    token statistics   in the tiles of a GPU, by kernels that write in place, as the fused ones do
    nonzero            every position has a gradient

Not counted: CUDA's context, fragmentation, workspaces of libraries.

Command: python -m benchmarks.planned_memory [--model Qwen2.5-0.5B] [--tokens 16384] [--dtype mixed] [--checkpointing]
Exit code 1 when the plan is off by more than 15%.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import AttentionInterface, PreTrainedModel

from benchmarks.gpu.engines import mean_loss
from benchmarks.gpu.measuring import Bench
from benchmarks.gpu.shapes import micro_batch, random_trainer
from pipelines.planning.memory import CONTEXT_BYTES, training_memory
from pipelines.planning.sizes import Shape, named_shape
from stages.algorithms import token_statistics
from stages.engines.policies.packing import ResponseBatch
from stages.engines.trainers.params import TorchTrainerParams
from stages.engines.trainers.torch_trainer import allocate_state

MOST = 0.15


class _FlashLike(torch.autograd.Function):
    """Allocates and keeps for the backward pass the same tensors as a flash kernel."""

    @staticmethod
    def forward(ctx, query, key, value):
        out = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, out, query.new_empty(query.shape[:-1], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx, gradient):
        return tuple(torch.empty_like(one) for one in ctx.saved_tensors[:3])


def _attention(module, query, key, value, mask, **_):
    return _FlashLike.apply(query, key, value).transpose(1, 2), None


AttentionInterface.register("counted", _attention)


def planned_bytes(shape: Shape, params: TorchTrainerParams) -> float:
    """Returns the planned bytes of one GPU, without CUDA's context."""
    return training_memory(shape, params, "adamw", 1, params.micro_batch_tokens, False).total - CONTEXT_BYTES


def tracked_bytes(shape: Shape, params: TorchTrainerParams) -> int:
    """Returns the peak of an update's second micro-batch: `micro_batch_tokens` tokens in sequences of equal length."""
    bench = Bench(torch.device("cpu"), False)
    batch = micro_batch(shape, params.micro_batch_tokens)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, _without_data():
        trainer = random_trainer(bench, shape, params)
        trainer.model.module.set_attn_implementation("counted")
        for optimizer in trainer.optimizers:
            allocate_state(optimizer)
        batch = _faked(batch, mode)
        tracker = MemTracker()
        tracker.track_external(trainer.model.module, *trainer.optimizers, *trainer.learned.values())
        with tracker:
            for _ in range(2):
                tracker.reset_mod_stats()
                share, _ = mean_loss(trainer.model.forward(trainer.model.module, batch), batch)
                share.backward()
    (held,) = tracker.get_tracker_snapshot("peak").values()
    return held["Total"]


def _faked(batch: ResponseBatch, mode: FakeTensorMode) -> ResponseBatch:
    tensors = {one.name: getattr(batch, one.name) for one in fields(batch)}
    return replace(batch, **{name: mode.from_tensor(one) for name, one in tensors.items() if isinstance(one, Tensor)})


@contextmanager
def _without_data() -> Iterator[None]:
    """Makes the code use its GPU paths and read no values of tensors, since fake tensors have none."""

    def nonzero(tensor: Tensor) -> Tensor:
        return torch.empty(len(tensor), 1, dtype=torch.long)  # as if all were nonzero, the upper limit

    with ExitStack() as stack:
        for place, name, stand_in in (
            (torch.Tensor, "nonzero", nonzero),
            (PreTrainedModel, "to", lambda model, *_: model),  # fake weights cannot be moved
            # Below, choices that depend on `is_cuda`; a CPU build of torch cannot train fake GPU tensors.
            (token_statistics, "_kernels", lambda _: _KernelsInPlace),
            (token_statistics, "PRODUCT_COLUMNS", 1 << 30),
            (token_statistics, "_tile_elements", lambda _: 1 << 27),
            (token_statistics, "_tile_tokens", lambda _: 8192),
        ):
            stack.enter_context(mock.patch.object(place, name, stand_in))
        yield


class _KernelsInPlace:
    """Stands for stages/algorithms/token_statistics_kernels.py: allocates nothing."""

    @staticmethod
    def row_statistics(*_: object) -> None:
        return

    @staticmethod
    def logit_gradient_(logits: Tensor, *_: object) -> Tensor:
        return logits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Qwen2.5-0.5B")
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--dtype", choices=["mixed", "float32"], default="mixed")
    parser.add_argument("--checkpointing", action="store_true")
    arguments = parser.parse_args()
    shape = named_shape(arguments.model)
    params = TorchTrainerParams(
        kind="torch",
        device="cpu",
        dtype=arguments.dtype,
        threads=1,
        micro_batch_tokens=arguments.tokens,
        gradient_checkpointing=arguments.checkpointing,
    )
    tracked, planned = tracked_bytes(shape, params), planned_bytes(shape, params)
    print(
        f"{shape.name}, {arguments.tokens} tokens, {arguments.dtype}"
        f"{', checkpointed' if arguments.checkpointing else ''}: tracked {tracked / 2**30:.2f} GiB, planned "
        f"{planned / 2**30:.2f} GiB ({planned / tracked - 1:+.1%})"
    )
    return 0 if abs(planned / tracked - 1) <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
