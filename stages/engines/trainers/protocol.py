"""The interface of every trainer, for any model and objective.

`TrainedModel` is all that a trainer knows about a model: a network, its forward pass on a micro-batch, and how it is
saved. So the same code trains a language model, a reward model and a denoiser.

A loss gets the outputs of the model's forward pass and the micro-batch. It returns a scalar that is already divided by
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
    @property
    def is_empty(self) -> bool:
        """Returns True when it has nothing to learn: it only keeps a rank in step with others that have more."""

    def to(self, device: torch.device) -> Self:
        """Returns the same micro-batch on `device`."""


Batch = TypeVar("Batch", bound=MicroBatch)
Outputs = TypeVar("Outputs")
LossFunction = Callable[[Outputs, Batch], tuple[Tensor, Mapping[str, Tensor | float]]]
"""A micro-batch's share of the loss, and of the diagnostics that `Update` adds up."""


@dataclass(frozen=True)
class Update:
    """The result of one optimizer update, the same on every rank."""

    loss: float
    """The batch's loss, summed over micro-batches and ranks."""
    gradient_norm: float
    """Gradient norm before clipping."""
    diagnostics: Diagnostics
    """The loss function's diagnostics, combined over micro-batches and ranks: names that end in `_max` by the maximum,
    others by the sum (a loss reports additive shares)."""


def add_diagnostics(total: Diagnostics, share: Mapping[str, float]) -> None:
    """Adds one micro-batch's diagnostics to `total` in place, by the rule of `Update.diagnostics`."""
    for name, value in share.items():
        if name.endswith("_max"):
            total[name] = max(total.get(name, float("-inf")), value)
        else:
            total[name] = total.get(name, 0.0) + value


def add_up(shares: Sequence[Tensor], shown: Sequence[Mapping[str, Tensor | float]]) -> tuple[float, Diagnostics]:
    """Returns the loss and the diagnostics of an update from those of its micro-batches.

    They stay on their device until the last micro-batch and are copied in one transfer. Reading each separately would
    make the host wait about twenty times per micro-batch, while the GPU is idle.
    """
    tensors = [*shares, *(value for row in shown for value in row.values() if isinstance(value, Tensor))]
    device = tensors[0].device if tensors else None
    # float64 represents a float32 exactly, so the sum on the host does not change.
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
        """Returns every rank's `value` (any picklable object) on every rank, by rank; collective."""

    def gather_to_first(self, value: Any) -> list[Any]:
        """Returns every rank's `value` (any picklable object) on rank 0, by rank; empty elsewhere; collective."""

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """Elementwise sum of a tensor over the ranks, on its own device; collective."""


def set_mode(module: nn.Module, is_training: bool) -> None:
    """Sets the training or evaluation mode; dropout and other noise stay off in both.

    Noise comes from torch's global random stream and would differ from run to run. Without it, a policy's log-probs in
    an update are those of sampling. Only parts that recompute activations in the backward pass, or keep running
    statistics, are in training mode; the modules inside them are not.
    """
    for part in module.modules():
        # Checkpointing in transformers and running statistics in torch both depend on the attribute `training`.
        needs_it = any(getattr(part, name, False) for name in ("gradient_checkpointing", "track_running_stats"))
        part.training = is_training and needs_it


@dataclass(frozen=True)
class Adapters:
    """Weights that are trained in addition to a model's frozen weights."""

    merged: Callable[[], Iterator[tuple[str, Tensor]]]
    """Yields the model's current weights with the adapters merged, by the names of the model without adapters."""
    off: Callable[[], AbstractContextManager[None]]
    """A context in which the model computes without the adapters."""


@dataclass(frozen=True)
class TrainedModel(Generic[Batch, Outputs]):
    """A model for trainers; the trainer moves it to its device and changes its weights in place."""

    module: nn.Module
    forward: Callable[[nn.Module, Batch], Outputs]
    """Computes the outputs that a loss needs for a micro-batch: a tensor, or a tuple of tensors. It uses no random
    numbers: noise is in the batch, so that a resumed run repeats it."""
    save: Callable[[Mapping[str, Tensor], Path], None]
    """Writes a model with these weights (as `named_weights` names them, on any device) into a folder."""
    filler: Batch
    """A smallest micro-batch that is not empty. It replaces an empty one in the forward pass, because ranks must take
    part in the same reductions; its outputs are not used."""
    ends: tuple[nn.Parameter, ...] = ()
    """Matrices outside the layers, such as embeddings and head: Muon leaves them to AdamW."""
    set_mode: Callable[[nn.Module, bool], object] = set_mode
    """Called before updates with True and before evaluation with False; use `nn.Module.train` for dropout."""
    pair_cost: float = 0.0
    """Cost of attention between two tokens, if a token without attention costs 1; 0 if it is not needed."""
    adapters: Adapters | None = None
    """None if the model's own weights are trained."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields the parameters to train and save, tied ones once; with adapters only those of the adapters."""
        named = self.module.named_parameters()
        return named if self.adapters is None else ((name, weight) for name, weight in named if weight.requires_grad)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields these parameters, then the buffers that belong to a checkpoint; not copies."""
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
        """Makes one optimizer update at `learning_rate_scale` times the peak learning rate.

        `micro_batches` are this rank's share; every rank must pass the same number. The loss is not called for an empty
        one. FloatingPointError when the loss or the gradient norm is not finite: the weights are then unchanged.
        """

    def evaluate(self, micro_batch: Batch) -> Outputs:
        """Returns the model's outputs on `device` without gradient; ZeRO 3 needs equally many calls on every rank."""

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields whole weights by checkpoint name, for a sampler: tied tensors once, adapters merged; collective."""

    def learned_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields `TrainedModel.named_weights` at the precision in which they are trained; collective.

        `TrainedModel.save` and moving averages use them.
        """

    def save_model(self, folder: Path) -> None:
        """Writes the model as its `TrainedModel.save` does (rank 0 writes; collective)."""

    def save_checkpoint(self, folder: Path) -> dict[str, str]:
        """Writes weights and optimizer state so that `load_checkpoint` continues bit for bit (on CPU).

        Returns the SHA-256 of the files that this rank has written, by name, so that they need not be read again.
        """

    def load_checkpoint(self, folder: Path) -> None:
        """Restores what `save_checkpoint` wrote."""

    def reset_optimizer(self) -> None:
        """Sets the optimizer's state to that before its first step; the weights stay."""

    def close(self) -> None:
        """Frees memory and leaves the process group."""


@contextmanager
def replace_folder_together(ranks: Ranks, path: Path) -> Iterator[Path]:
    """Works like `replace_folder`, for all ranks: each may write into the folder, which appears when all have."""
    if ranks.rank == 0:
        with replace_folder(path) as folder:
            # The other ranks write only when the folder exists.
            ranks.broadcast(str(folder))
            yield folder
            # Waits until all ranks have written; the folder gets its name after this.
            ranks.sum_over_ranks(torch.zeros(1))
    else:
        yield Path(ranks.broadcast(None))
        ranks.sum_over_ranks(torch.zeros(1))
    ranks.sum_over_ranks(torch.zeros(1))
