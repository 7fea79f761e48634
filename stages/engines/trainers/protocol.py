"""What every trainer does with the model that it is given, whatever that model is and learns for.

`TrainedModel` is all that a trainer knows of a model: a network, how a micro-batch goes through it, and how it is
saved. So a language model, a reward model and a denoiser learn by the same code.

A loss sees the outputs of the model's forward pass and the micro-batch. It returns a scalar that is already divided by
the divisor of the whole batch, so micro-batches and ranks add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from stages.foundations.files import replace_folder

Diagnostics = dict[str, float]


class MicroBatch(Protocol):
    """What goes through a model at once."""

    @property
    def is_empty(self) -> bool:
        """True when there is nothing in it to learn: it keeps a rank in step with others that have more."""

    def to(self, device: torch.device) -> Self:
        """The same micro-batch on `device`."""


Batch = TypeVar("Batch", bound=MicroBatch)
Outputs = TypeVar("Outputs")
LossFunction = Callable[[Outputs, Batch], tuple[Tensor, Mapping[str, Tensor | float]]]
"""A micro-batch's share of the loss, and of the diagnostics that `Update` adds up."""


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


def add_diagnostics(total: Diagnostics, share: Mapping[str, float]) -> None:
    """Adds one micro-batch's diagnostics to `total` in place, by the rule of `Update.diagnostics`."""
    for name, value in share.items():
        if name.endswith("_max"):
            total[name] = max(total.get(name, float("-inf")), value)
        else:
            total[name] = total.get(name, 0.0) + value


def add_up(shares: Sequence[Tensor], shown: Sequence[Mapping[str, Tensor | float]]) -> tuple[float, Diagnostics]:
    """The loss and the diagnostics of an update from those of its micro-batches.

    They stay on their device until the last micro-batch and come in one transfer: reading each of them would make the
    host wait some twenty times a micro-batch, and leave a GPU without work meanwhile.
    """
    tensors = [*shares, *(value for row in shown for value in row.values() if isinstance(value, Tensor))]
    device = tensors[0].device if tensors else None
    # float64 holds a float32 exactly: the sum on the host is the one that it was before.
    scalars = [tensor.detach().reshape(()).to(device, torch.float64) for tensor in tensors]
    numbers = iter(torch.stack(scalars).tolist() if scalars else [])
    total, diagnostics = sum(next(numbers) for _ in shares), Diagnostics()
    for row in shown:
        add_diagnostics(
            diagnostics, {name: next(numbers) if isinstance(value, Tensor) else value for name, value in row.items()}
        )
    return total, diagnostics


class Ranks(Protocol):
    """The processes that run one program side by side."""

    rank: int
    world_size: int

    def broadcast(self, value: Any) -> Any:
        """Rank 0's `value` on every rank (any picklable object); collective."""

    def scatter(self, values: Sequence[Any] | None) -> Any:
        """This rank's element of rank 0's `values`, one (any picklable object) for each rank; collective."""

    def gather(self, value: Any) -> list[Any]:
        """Every rank's `value` (any picklable object) on every rank, by rank; collective."""

    def gather_to_first(self, value: Any) -> list[Any]:
        """Every rank's `value` (any picklable object) on rank 0, by rank; empty elsewhere; collective."""

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """Elementwise sum of a tensor over the ranks, on its own device; collective."""


def set_mode(module: nn.Module, is_training: bool) -> None:
    """Dropout and other noise stay off: drawn from torch's global stream, they would differ from run to run.

    A policy's log-probs in an update are then those that it samples by. In training mode are only parts that compute
    their activations again in the backward pass, or keep statistics of what they see. What is inside them is not.
    """
    for part in module.modules():
        # Checkpointing in transformers and running statistics in torch both ask `training` whether to work.
        needs_it = any(getattr(part, name, False) for name in ("gradient_checkpointing", "track_running_stats"))
        part.training = is_training and needs_it


@dataclass(frozen=True)
class Adapters:
    """Weights beside those of a model, which are frozen, that are learned in their place."""

    merged: Callable[[], Iterator[tuple[str, Tensor]]]
    """The model's present weights with the adapters in them, by the names that it has without."""
    off: Callable[[], AbstractContextManager[None]]
    """Inside, the model computes what it did before it had them."""


@dataclass(frozen=True)
class TrainedModel(Generic[Batch, Outputs]):
    """A model as trainers take it; the trainer moves it to its device and changes its weights in place."""

    module: nn.Module
    forward: Callable[[nn.Module, Batch], Outputs]
    """What a loss needs to know of a micro-batch: a tensor, or a tuple of tensors. It draws nothing at random: noise
    comes with the batch, so that a resumed run repeats it."""
    save: Callable[[Mapping[str, Tensor], Path], None]
    """Writes a model with these weights (as `named_weights` names them, on any device) into a folder."""
    filler: Batch
    """A smallest micro-batch with something in it. It goes through the model in place of an empty one, because ranks
    must take part in the same reductions; what comes out counts nowhere."""
    ends: tuple[nn.Parameter, ...] = ()
    """Matrices that are no layer's, such as embeddings and head: Muon leaves them to AdamW."""
    set_mode: Callable[[nn.Module, bool], object] = set_mode
    """Called before updates with True and before evaluation with False; `nn.Module.train` where dropout is wanted."""
    pair_cost: float = 0.0
    """What attention between two tokens costs, where a token without attention costs 1; 0 where nobody asks."""
    adapters: Adapters | None = None
    """None where the model's own weights are learned."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What trainers learn and keep, tied ones once: of a model with adapters these alone."""
        named = self.module.named_parameters()
        return named if self.adapters is None else ((name, weight) for name, weight in named if weight.requires_grad)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Those parameters, then the buffers that belong to a checkpoint: the tensors themselves."""
        yield from self.named_parameters()
        saved = self.module.state_dict(keep_vars=True)
        yield from ((name, buffer) for name, buffer in self.module.named_buffers() if name in saved)


class Trainer(Ranks, Protocol[Batch, Outputs]):
    """A model that learns, on one rank or many."""

    device: torch.device
    model: TrainedModel[Batch, Outputs]

    def update(
        self, micro_batches: Sequence[Batch], loss: LossFunction[Outputs, Batch], learning_rate_scale: float
    ) -> Update:
        """One optimizer update at `learning_rate_scale` times the peak learning rate.

        `micro_batches` are this rank's share; every rank must bring the same number. Of an empty one no loss is asked.
        FloatingPointError when the loss or the gradient norm is not finite: the weights are then untouched.
        """

    def evaluate(self, micro_batch: Batch) -> Outputs:
        """The model's outputs on `device` without gradient; under ZeRO 3 every rank must call it as often."""

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The whole weights by checkpoint name, for a sampler: tied tensors once, adapters merged; collective."""

    def learned_weights(self) -> Iterator[tuple[str, Tensor]]:
        """`TrainedModel.named_weights` at the precision in which they are learned; collective.

        `TrainedModel.save` takes them, and a moving average follows them.
        """

    def save_model(self, folder: Path) -> None:
        """Writes the model as its `TrainedModel.save` does (rank 0 writes; collective)."""

    def save_checkpoint(self, folder: Path) -> dict[str, str]:
        """Writes weights and optimizer state so that `load_checkpoint` continues bit for bit (on CPU).

        Returns the SHA-256 of the files that this rank has written, by name: nobody needs to read them for it.
        """

    def load_checkpoint(self, folder: Path) -> None:
        """Restores what `save_checkpoint` wrote."""

    def close(self) -> None:
        """Frees memory and leaves the process group."""


@contextmanager
def replace_folder_together(ranks: Ranks, path: Path) -> Iterator[Path]:
    """`replace_folder` for all ranks: each may write into the folder; it appears when all have."""
    if ranks.rank == 0:
        with replace_folder(path) as folder:
            # The others write only when the folder is there.
            ranks.broadcast(str(folder))
            yield folder
            # Waits until all have written; the folder gets its name behind this.
            ranks.sum_over_ranks(torch.zeros(1))
    else:
        yield Path(ranks.broadcast(None))
        ranks.sum_over_ranks(torch.zeros(1))
    ranks.sum_over_ranks(torch.zeros(1))
