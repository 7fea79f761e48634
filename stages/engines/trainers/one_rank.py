"""A single process with the interface of ranks; and the ranks of a stage that trains nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stages.observe.quick_imports import quick_imports

if TYPE_CHECKING:  # the hub of the asynchronous loop clears checkpoints, and does not import torch
    from torch import Tensor

    from stages.engines.trainers.protocol import Ranks


class OneRank:
    """See `stages.engines.trainers.protocol.Ranks`."""

    rank = 0
    world_size = 1

    def broadcast(self, value: Any) -> Any:
        return value

    def scatter(self, values: Sequence[Any]) -> Any:
        return values[0]

    def gather(self, value: Any) -> list[Any]:
        return [value]

    gather_to_first = gather

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        return values


@contextmanager
def launched_ranks() -> Iterator[Ranks]:
    """Yields the ranks that `torchrun` has started, or a single rank without `torchrun`."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield OneRank()
        return
    with quick_imports():
        from stages.engines.trainers.process_group import ProcessGroup

    group = ProcessGroup()
    yield group
    # Without `finally`: after an error this process ends, which ends the waiting of the others.
    group.leave()
