"""The images of the pre-training loss: none of them was drawn by the generator that learns."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from stages.engines.generators.denoising import DenoisingBatch, denoising_batch
from stages.engines.generators.generator import Generator, images_of
from stages.foundations.errors import UserError
from stages.foundations.params import chosen
from stages.foundations.seeds import derive_seed, endless_order
from stages.refl.params import PretrainingParams, ShapeWorldImages, ShardImages


class ImageSource(Protocol):
    """Images with prompts, without end."""

    def at(self, place: int) -> tuple[Tensor, str]:
        """The image of a place, float[1, 3, side, side] in 0..1, and its prompt."""


class Pretraining:
    """The batches of the pre-training loss, each a function of the seed and the update."""

    def __init__(
        self, params: PretrainingParams, generator: Generator, source: ImageSource, seed: int, stream: str
    ) -> None:
        self.params, self.generator, self.source = params, generator, source
        self.seed, self.stream = seed, stream

    def batch(self, update: int, positions: Sequence[int]) -> DenoisingBatch:
        """The images of these positions of update `update` (from 0), some without their prompt."""
        images, prompts, seeds = [], [], []
        for position in positions:
            image, prompt = self.source.at(update * self.params.batch_images + position)
            stream = random.Random(derive_seed(self.seed, self.stream, "empty", update, position))
            images.append(image)
            prompts.append("" if stream.random() < self.params.empty_prompt_fraction else prompt)
            seeds.append(derive_seed(self.seed, self.stream, "pretraining", update, position))
        return denoising_batch(self.generator, torch.cat(images), prompts, seeds)


def image_source(
    params: PretrainingParams, prompts: Sequence[str], side: int, seed: int, stream: str
) -> ImageSource:
    """The source that `params.images` describes; UserError when it has no image."""
    match chosen("refl.pretraining.images", params.images):
        case ShapeWorldImages():
            return RenderedScenes(prompts, seed, stream)
        case ShardImages(path=path):
            return StoredImages(Path(path), side, seed, stream)


class RenderedScenes:
    """Renders of the training prompts, another picture each time a prompt comes round."""

    def __init__(self, prompts: Sequence[str], seed: int, stream: str) -> None:
        from stages.algorithms.shape_world.scenes import scene_of

        self.scenes = {prompt: scene_of(prompt) for prompt in prompts}
        foreign = [prompt for prompt, scene in self.scenes.items() if scene is None]
        if foreign:
            raise UserError(
                f"refl.pretraining.images.kind is shape_world, but that world has no prompt {foreign[0]!r}: set "
                "kind shards and a folder of images"
            )
        self.prompts, self.seed, self.stream = list(prompts), seed, stream

    def at(self, place: int) -> tuple[Tensor, str]:
        """See `ImageSource`."""
        from stages.algorithms.shape_world.renderer import render

        (chosen_place,) = endless_order(
            place, place + 1, len(self.prompts), self.seed, self.stream, "rendered"
        )
        prompt = self.prompts[chosen_place]
        pixels = render(self.scenes[prompt], derive_seed(self.seed, self.stream, "render", place))
        return images_of(pixels[None]), prompt


class StoredImages:
    """The images of a folder of shards, brought to the generator's size."""

    def __init__(self, folder: Path, side: int, seed: int, stream: str) -> None:
        from stages.engines.images.shards import read_shards

        self.rows = [(row.prompt, row.png) for shard in read_shards(folder) for row in shard.itertuples()]
        if not self.rows:
            raise UserError(
                f"refl.pretraining.images.path {folder} has no images: give a folder that has some"
            )
        self.side, self.seed, self.stream = side, seed, stream

    def at(self, place: int) -> tuple[Tensor, str]:
        """See `ImageSource`."""
        from stages.engines.image_scorers.scorer import fit_to_square
        from stages.engines.images.shards import pixels_of

        (chosen_place,) = endless_order(place, place + 1, len(self.rows), self.seed, self.stream, "stored")
        prompt, png = self.rows[chosen_place]
        return fit_to_square(images_of(pixels_of(png)[None]), self.side), prompt
