"""The model that a trainer learns: a network, how a micro-batch goes through it, and how it is written down.

A trainer knows nothing else of it, so a language model, a reward model and a denoiser learn by the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn


class MicroBatch(Protocol):
    """What goes through a model at once."""

    @property
    def is_empty(self) -> bool:
        """True when there is nothing in it to learn: it keeps a rank in step with others that have more."""

    def to(self, device: torch.device) -> Self:
        """The same micro-batch on `device`."""


Batch = TypeVar("Batch", bound=MicroBatch)
Outputs = TypeVar("Outputs")


def set_mode(module: nn.Module, is_training: bool) -> None:
    """Dropout and other noise stay off: drawn from torch's global stream, they would differ from run to run.

    A policy's log-probs in an update are then those that it samples by. In training mode are only parts that compute
    their activations again in the backward pass, or keep statistics of what they see. What is inside them is not.
    """
    for part in module.modules():
        needs_it = any(
            getattr(part, name, False) for name in ("gradient_checkpointing", "track_running_stats")
        )
        part.training = is_training and needs_it


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

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters, tied ones once, then the buffers that belong to a checkpoint: the tensors themselves."""
        yield from self.module.named_parameters()
        saved = self.module.state_dict(keep_vars=True)
        yield from ((name, buffer) for name, buffer in self.module.named_buffers() if name in saved)
