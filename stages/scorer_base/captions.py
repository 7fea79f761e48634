"""Captions of the shape world with rendered pictures, true and false ones; every batch a function of seed and step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from stages.algorithms.shape_world.changes import changed_scenes
from stages.algorithms.shape_world.renderer import render
from stages.algorithms.shape_world.scenes import scene_of
from stages.foundations.errors import UserError
from stages.foundations.seeds import derive_seed, endless_order


@dataclass(frozen=True)
class Captions:
    """Some prompts as captions."""

    captions: list[str]
    pictures: Tensor
    """uint8[captions, pictures, 3, side, side]"""
    false: list[list[str]]
    """For each caption those with one thing changed; of training captions, such as are true of others of them."""


def render_captions(
    prompts: Sequence[str], false_among: Sequence[str], pictures_per_caption: int, seed: int
) -> Captions:
    """Renders all pictures; UserError names a prompt that the shape world does not have.

    False captions are among `false_among`: a held-out prompt that is only ever false would be learnt as false. A
    caption of which none is there takes any.
    """
    pictures, false, known = [], [], set(false_among)
    for prompt in prompts:
        scene = scene_of(prompt)
        if scene is None:
            raise UserError(
                f"scorer_base.kind is train, but the shape world has no prompt {prompt!r}: use `kind: released` or "
                "`kind: folder`, or prompts of `kind: shapes`"
            )
        seeds = (derive_seed(seed, "scorer_base", prompt, number) for number in range(pictures_per_caption))
        pictures.append(numpy.stack([render(scene, each) for each in seeds]))
        changed = [other.prompt for other in changed_scenes(scene)]
        false.append([other for other in changed if other in known] or changed)
    stacked = torch.from_numpy(numpy.stack(pictures)).permute(0, 1, 4, 2, 3)
    return Captions(list(prompts), stacked.contiguous(), false)


def drawn_rows(
    captions: Captions, step: int, batch: int, false_captions: int, max_noise: float, seed: int
) -> tuple[Tensor, list[str], list[list[str]]]:
    """Images float[batch, 3, side, side], their captions and the false ones of one step.

    No caption is twice in a batch that is at most as large as there are captions, but for the seam of two epochs.
    """
    order = endless_order(step * batch, (step + 1) * batch, len(captions.captions), seed, "scorer_base")
    generator = numpy.random.default_rng(derive_seed(seed, "scorer_base", "step", step))
    which = generator.integers(captions.pictures.shape[1], size=batch)
    images = captions.pictures[order, which].float() / 255
    # From none to much, another amount for each picture: generators are unclean by different amounts too.
    spread = max_noise * generator.random((batch, 1, 1, 1))
    images += torch.from_numpy(spread * generator.standard_normal(images.shape)).float()
    false = []
    for index in order:
        others = captions.false[index]
        # Where a scene has fewer changes than are asked for, one comes twice: every row has as many columns.
        picked = generator.choice(len(others), false_captions, replace=len(others) < false_captions)
        false.append([others[one] for one in picked])
    return images, [captions.captions[index] for index in order], false
