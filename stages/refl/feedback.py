"""What every kind of feedback does: it makes the micro-batches of an update, and a loss of what comes out of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from stages.engines.generators.generator import Generator
from stages.foundations.seeds import derive_seed, endless_order


@dataclass(frozen=True)
class FeedbackBatch:
    """Images, or pairs of images, that feedback is given on."""

    prompts: tuple[str, ...]
    token_ids: Tensor
    """[images, tokens]."""
    tensors: Mapping[str, Tensor]
    """What the kind needs besides: noise to draw from, latents of pairs."""
    position: int = 0
    """Of the draw's step that has the gradient, where there is one such."""

    @property
    def is_empty(self) -> bool:
        """True when it has no image."""
        return not self.prompts

    def to(self, device: torch.device) -> FeedbackBatch:
        """The same batch on `device`."""
        moved = {name: value.to(device) for name, value in self.tensors.items()}
        return replace(self, token_ids=self.token_ids.to(device), tensors=moved)


class Feedback(Protocol):
    """One kind of feedback. Everything random in it is a function of the seed and the update."""

    figures: Mapping[str, float]
    """Metrics of what it learns from."""

    def batch(self, update: int, positions: Sequence[int]) -> FeedbackBatch:
        """The images of these `positions` of update `update` (from 0)."""

    def outputs(self, generator: Generator, batch: FeedbackBatch) -> Any:
        """What the generator makes of a batch: a tensor, or a tuple of tensors."""

    def to(self, device: torch.device) -> None:
        """Moves what it holds besides the generator, once."""

    def losses(self, outputs: Any, batch: FeedbackBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each image, [images], and figures for the curve, each [images]."""


class UpdatePrompts:
    """Training prompts in a new order each time all were had."""

    def __init__(self, prompts: Sequence[str], batch_images: int, seed: int, stream: str) -> None:
        self.prompts, self.batch_images, self.seed, self.stream = prompts, batch_images, seed, stream

    def at(self, update: int, positions: Sequence[int]) -> list[str]:
        """The prompts of these positions of an update."""
        places = [update * self.batch_images + position for position in positions]
        return [
            self.prompts[
                endless_order(place, place + 1, len(self.prompts), self.seed, self.stream, "prompts")[0]
            ]
            for place in places
        ]

    def seeds(self, update: int, positions: Sequence[int]) -> list[int]:
        """A seed for each of these positions of an update."""
        return [derive_seed(self.seed, self.stream, update, position) for position in positions]
