"""The ranks of `torchrun` and their communication: tensors of a pass over NCCL on GPUs, everything else over gloo.

A rank that waits for an object waits on its CPU, without a time limit. Over NCCL a kernel would spin on the GPU, and
the watchdog would end the run after ten minutes of sampling. A single process is a group of one.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stages.foundations.errors import UserError

PASS_TIMEOUT = timedelta(minutes=10)
"""Timeout of the collectives of a forward and backward pass, after which a rank is considered hung."""
PATIENCE = timedelta(days=30)
"""Timeout of everything else: a rank may sample, verify or write for hours. A dead rank ends the waiting at once."""

_group_numbers = itertools.count()


class ProcessGroup:
    """See `stages.engines.trainers.protocol.Ranks`. Joins the group when created, unless it already exists."""

    def __init__(self) -> None:
        has_gpu = torch.cuda.is_available()
        if has_gpu:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        self.backend = "nccl" if has_gpu else "gloo"
        self._has_joined = not dist.is_initialized()
        if self._has_joined:
            _join(self.backend)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        # A second group, because a group has one timeout for all collectives.
        self._talk = dist.new_group(backend="gloo", timeout=PATIENCE)

    def broadcast(self, value: Any) -> Any:
        held = [value]
        with self._waiting():
            dist.broadcast_object_list(held, src=0, group=self._talk)
        return held[0]

    def scatter(self, values: Sequence[Any] | None) -> Any:
        held: list[Any] = [None]
        with self._waiting():
            dist.scatter_object_list(held, None if values is None else list(values), src=0, group=self._talk)
        return held[0]

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.world_size
        with self._waiting():
            dist.all_gather_object(values, value, group=self._talk)
        return values

    def gather_to_first(self, value: Any) -> list[Any]:
        values: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        with self._waiting():
            dist.gather_object(value, values, dst=0, group=self._talk)
        return values or []

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """Returns the elementwise sum over the ranks, on the values' device: values on a GPU are sent over NCCL."""
        # all_reduce works in place, but the caller's values must not change.
        summed = values.clone()
        with self._waiting():
            dist.all_reduce(summed, group=None if values.is_cuda else self._talk)
        return summed

    def extremes(self, value: int) -> tuple[int, int]:
        """Returns the smallest and the largest of the ranks' values."""
        # The smallest is the largest of the negatives: one collective for both.
        ends = torch.tensor([-value, value])
        with self._waiting():
            dist.all_reduce(ends, op=dist.ReduceOp.MAX, group=self._talk)
        return -int(ends[0]), int(ends[1])

    def wait_for_all(self) -> None:
        """Returns when every rank has called it."""
        with self._waiting():
            dist.barrier(group=self._talk)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Explains an error while waiting: another rank has ended, and its output says why."""
        try:
            yield
        except RuntimeError as error:
            first_line = str(error).splitlines()[0]
            raise UserError(
                f"rank {self.rank} of {self.world_size} waited for another rank, which has ended ({first_line}): "
                "see the message of that rank. The next run resumes from the last checkpoint"
            ) from error

    def leave(self) -> None:
        """Ends the group, if this object set it up."""
        if not self._has_joined:
            return
        # The module may be loaded but unused, or a part of a DeepSpeed that failed to load.
        comm = sys.modules.get("deepspeed.comm")
        if comm is not None and comm.is_initialized():
            # torch's function would leave DeepSpeed with groups that no longer exist.
            comm.destroy_process_group()
        else:
            dist.destroy_process_group()


@functools.cache
def _rendezvous(_address: str, _port: str) -> tuple[dist.Store, int, int]:
    """Returns store, rank and number of ranks; cached, because rank 0 may hold the store and a second would end it."""
    return next(dist.rendezvous("env://"))


def _join(backend: str) -> None:
    if "RANK" in os.environ:
        # The store outlives a group: a second group would find the addresses that the first one left in it.
        store, rank, world_size = _rendezvous(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])
        keys = dist.PrefixStore(f"trainer-{next(_group_numbers)}", store)
        dist.init_process_group(backend, store=keys, rank=rank, world_size=world_size, timeout=PASS_TIMEOUT)
    else:
        # DeepSpeed asserts that a launcher has set this variable.
        os.environ.setdefault("LOCAL_RANK", "0")
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=PASS_TIMEOUT)
