"""What every trainer does, for supervised fine-tuning and reinforcement learning alike.

A loss sees token statistics of responses, never logits: `[responses, tokens, vocabulary]` does not exist. It returns
a scalar that is already divided by the divisor of the whole batch, so micro-batches and ranks add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from stages.engines.policies.packing import ResponseBatch
from stages.foundations.files import replace_folder

if TYPE_CHECKING:  # it imports transformers, which who only reads params need not
    from stages.engines.policies.statistics import PolicyStatistics

Diagnostics = dict[str, float]
LossFunction = Callable[["PolicyStatistics", ResponseBatch], tuple[Tensor, Mapping[str, Tensor | float]]]


@dataclass(frozen=True)
class Update:
    """What one optimizer update did, the same on every rank."""

    loss: float
    """The batch's loss, summed over micro-batches and ranks."""
    gradient_norm: float
    """Before clipping."""
    diagnostics: Diagnostics
    """The loss function's diagnostics over micro-batches and ranks: names that end in `_max` by their maximum, the
    others by their sum (a loss reports additive shares)."""


def add_diagnostics(total: Diagnostics, share: Mapping[str, Tensor | float]) -> None:
    """Adds one micro-batch's diagnostics to `total` in place, by the rule of `Update.diagnostics`."""
    for name, value in share.items():
        if name.endswith("_max"):
            total[name] = max(total.get(name, float("-inf")), float(value))
        else:
            total[name] = total.get(name, 0.0) + float(value)


class Trainer(Protocol):
    """A policy that learns."""

    rank: int
    world_size: int
    device: torch.device

    def update(
        self, micro_batches: Sequence[ResponseBatch], loss: LossFunction, learning_rate_scale: float
    ) -> Update:
        """One optimizer update at `learning_rate_scale` times the peak learning rate.

        `micro_batches` are this rank's share; every rank must bring the same number (empty ones are fine).
        FloatingPointError when the loss or the gradient norm is not finite: the weights are then untouched.
        """

    def evaluate(self, micro_batch: ResponseBatch) -> PolicyStatistics:
        """Token statistics [responses, tokens] without gradient, at the batch's temperature and safe vocabulary."""

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The whole weights by checkpoint name, for a sampler (tied tensors once); collective on all ranks."""

    def save_policy(self, folder: Path) -> None:
        """Writes weights, config and tokenizer as a policy folder (rank 0 writes; collective)."""

    def save_checkpoint(self, folder: Path) -> None:
        """Writes weights and optimizer state so that `load_checkpoint` continues bit for bit (on CPU)."""

    def load_checkpoint(self, folder: Path) -> None:
        """Restores what `save_checkpoint` wrote."""

    def broadcast(self, value: Any) -> Any:
        """Rank 0's `value` on every rank (any picklable object); collective."""

    def gather(self, value: Any) -> list[Any]:
        """Every rank's `value` (any picklable object) on every rank, by rank; collective."""

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """Elementwise sum of a small CPU tensor over the ranks; collective."""

    def close(self) -> None:
        """Frees memory and leaves the process group."""


@contextmanager
def replace_folder_together(trainer: Trainer, path: Path) -> Iterator[Path]:
    """`replace_folder` for all ranks: each may write into the folder; it appears when all have."""
    if trainer.rank == 0:
        with replace_folder(path) as folder:
            trainer.broadcast(str(folder))
            yield folder
            trainer.sum_over_ranks(torch.zeros(1))
    else:
        yield Path(trainer.broadcast(None))
        trainer.sum_over_ranks(torch.zeros(1))
    trainer.sum_over_ranks(torch.zeros(1))
