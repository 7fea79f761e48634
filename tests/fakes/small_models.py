"""Two tiny models that are not language models, with their training data: a reward model and a denoiser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from stages.engines.trainers.protocol import LossFunction, TrainedModel
from stages.images.algorithms.text_to_image_losses import pairwise_ranking_loss

FEATURES = 4
WIDTH = 400
"""A square of this side has more than 100,000 numbers, up to which ZeRO 3 leaves a weight whole on every rank."""
PICTURE = torch.ones(1, 6, 6)
SHARES = (5, 3, 0, 4)
"""Rows of each micro-batch of a step; one of two ranks gets an empty micro-batch."""


@dataclass(frozen=True)
class Rows:
    """One micro-batch: two tensors with equal numbers of rows."""

    first: Tensor
    second: Tensor

    @property
    def is_empty(self) -> bool:
        return len(self.first) == 0

    def to(self, device: torch.device) -> Rows:
        return Rows(self.first.to(device), self.second.to(device))


@dataclass(frozen=True)
class Lesson:
    """A model and its training data; `micro_batches` are those of all ranks, the same at every step."""

    model: Callable[[], TrainedModel[Rows, Any]]
    micro_batches: list[Rows]
    loss: LossFunction[Any, Rows]


def trained_model(
    make: Callable[[], nn.Module],
    forward: Callable[[nn.Module, Rows], Any],
    row: Tensor,
    ends: Callable[[nn.Module], tuple[nn.Parameter, ...]] = lambda module: (),
) -> TrainedModel[Rows, Any]:
    """Returns a model with the same weights at every call; leaves torch's random stream unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = make()
    return TrainedModel(
        module,
        forward,
        lambda weights, folder: save_file(dict(weights), folder / "model.safetensors"),
        Rows(row[None], row[None]),
        ends(module),
    )


def reward_model() -> TrainedModel[Rows, tuple[Tensor, Tensor]]:
    """Returns a model that scores [rows] the better and the worse item of each pair."""

    def make() -> nn.Module:
        hidden = [nn.Linear(FEATURES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
        return nn.Sequential(*hidden, nn.Linear(WIDTH, 1))

    def forward(module: nn.Module, pairs: Rows) -> tuple[Tensor, Tensor]:
        return module(pairs.first)[:, 0], module(pairs.second)[:, 0]

    return trained_model(make, forward, torch.ones(FEATURES), lambda module: (module[0].weight, module[-1].weight))


def ranking_loss(scores: tuple[Tensor, Tensor], pairs: Rows) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns this micro-batch's share of the mean over all pairs."""
    share = len(pairs.first) / sum(SHARES)
    right = (scores[0] > scores[1]).sum()
    return pairwise_ranking_loss(*scores) * share, {"right": right, "pairs_max": torch.tensor(len(pairs.first))}


def denoiser() -> TrainedModel[Rows, Tensor]:
    """Returns a model of the noise [rows, 1, 6, 6] in pictures: convolutions and a normalisation, no embedding."""

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 1, 3, padding=1)
        )

    return trained_model(make, lambda module, pictures: module(pictures.first), PICTURE)


def noise_error(found: Tensor, pictures: Rows) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns this micro-batch's share of the mean square error over all pictures."""
    error = (found - pictures.second).square().mean((1, 2, 3)).sum() / sum(SHARES)
    return error, {"error": error.detach()}


def _pairs() -> list[Rows]:
    """Returns pairs in which the better item has the larger sum of features."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(sum(SHARES), FEATURES, generator=generator)
    gap = 0.1 + torch.rand(sum(SHARES), FEATURES, generator=generator)
    return [Rows(first, first - lower) for first, lower in zip(rows.split(SHARES), gap.split(SHARES), strict=True)]


def _pictures() -> list[Rows]:
    """Returns noisy pictures, each of one brightness."""
    generator = torch.Generator().manual_seed(2)
    noise = torch.randn(sum(SHARES), 1, 6, 6, generator=generator)
    noisy = noise + 2 * torch.randn(sum(SHARES), 1, 1, 1, generator=generator)
    return [Rows(*rows) for rows in zip(noisy.split(SHARES), noise.split(SHARES), strict=True)]


REWARD = Lesson(reward_model, _pairs(), ranking_loss)
DENOISING = Lesson(denoiser, _pictures(), noise_error)
LESSONS = {"reward": REWARD, "denoising": DENOISING}
