"""Teaches a scorer captions of the shape world, by the contrastive and the matching loss.

Captions come with rendered pictures, true and false ones; every batch depends only on seed and step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy
import torch
from torch import Tensor, nn

from stages.engines.trainers.build import build_trainer
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.params import DeepspeedTrainerParams, TorchTrainerParams
from stages.engines.trainers.protocol import LossFunction, TrainedModel, Trainer
from stages.engines.trainers.training_loop import Curve, Schedule, train_and_keep_best
from stages.foundations.errors import UserError
from stages.foundations.seeds import derive_seed, endless_order
from stages.images.algorithms.shape_world import changed_scenes, render, scene_of
from stages.images.algorithms.text_to_image_losses import contrastive_loss, matching_loss
from stages.images.engines.image_scorers.config import ScorerConfig
from stages.images.engines.image_scorers.scorer import (
    ImageScorer,
    PicturesBatch,
    Tokens,
    caption_tokenizer,
    new_scorer,
    save_scorer,
)
from stages.images.scorer_base.stage import TaughtScorer
from stages.observe.tracking import Run

PIXEL_MEAN, PIXEL_STD = (0.5, 0.5, 0.5), (0.3, 0.3, 0.3)
"""Approximate values of the shape world's pictures."""
SIZES = ("vision", "text", "image_size", "patch_size", "max_text_tokens", "projection_size")
"""Settings that the scorer's config has under the same names."""
VALIDATION_PICTURES = 2
"""Pictures of each validation caption."""
VALIDATION_FALSE = 4
"""False captions beside each of them."""


def teach(
    params: TaughtScorer,
    trainer_params: TorchTrainerParams | DeepspeedTrainerParams,
    train_prompts: list[str],
    validation_prompts: list[str],
    seed: int,
    checkpoints: Checkpoints,
    run: Run,
) -> tuple[Curve, Path]:
    """Trains from random weights; returns one row per step, and the scorer folder with the lowest validation loss."""
    every = [*train_prompts, *validation_prompts]
    train = render_captions(train_prompts, train_prompts, params.pictures_per_caption, seed)
    # False captions of validation may be true of training pictures: nothing is learnt from them here.
    validation = render_captions(validation_prompts, every, params.pictures_per_caption, seed)
    scorer = _untaught_scorer(params, train_prompts, seed)
    trainer = build_trainer(trainer_params, params.optimizer, params.max_gradient_norm, caption_model(scorer))
    # A contrast is among the captions of one rank.
    each = -(-params.batch_captions // trainer.world_size)

    def update(step: int, scale: float) -> dict[str, float]:
        images, captions, false = drawn_rows(
            train, step, params.batch_captions, params.false_captions, params.max_pixel_noise, seed
        )
        mine = slice(trainer.rank * each, (trainer.rank + 1) * each)
        batch = caption_batch(scorer, images[mine], captions[mine], false[mine])
        done = trainer.update([batch], caption_loss(trainer.world_size), scale)
        return {
            "loss/train": done.loss,
            "loss/contrastive": done.diagnostics["contrastive"],
            "loss/matching": done.diagnostics["matching"],
            "optim/gradient_norm": done.gradient_norm,
        }

    def validate() -> dict[str, float]:
        return _validated(scorer, trainer, validation, each)

    curve, best = train_and_keep_best("scorer_base", Schedule.of(params), trainer, checkpoints, run, update, validate)
    trainer.close()
    return curve, best


def _untaught_scorer(params: TaughtScorer, captions: list[str], seed: int) -> ImageScorer:
    """Returns a scorer with random weights and the words of `captions`."""
    tokenizer = caption_tokenizer(captions)
    config = ScorerConfig(
        **{name: getattr(params, name) for name in SIZES},
        pixel_mean=PIXEL_MEAN,
        pixel_std=PIXEL_STD,
        vocabulary=tokenizer.get_vocab_size(),
        text_positions=params.max_text_tokens,
        # No dropout: pictures and false captions are new at every step.
        text_dropout=0.0,
        has_matching_head=True,
        matching_token_id=None,
        reward_head=None,
        reward_mean=0.0,
        reward_std=1.0,
    )
    own_seed = derive_seed(seed, "scorer_base")
    return new_scorer(config, tokenizer, params.initializer_range, params.position_range, own_seed)


def _validated(scorer: ImageScorer, trainer: Trainer, captions: Captions, at_once: int) -> dict[str, float]:
    """Mean loss and how often the true caption beats one with one thing changed, on rendered pictures.

    Every rank computes all of it: there are few. A caption's false ones are spread over the possible changes: colours
    are first, places last.
    """
    losses, right = [], {"clip": [], "blip": []}
    spread = VALIDATION_FALSE * VALIDATION_PICTURES
    for picture in range(min(VALIDATION_PICTURES, captions.pictures.shape[1])):
        for start in range(0, len(captions.captions), at_once):
            rows = slice(start, start + at_once)
            images = captions.pictures[rows, picture].float() / 255
            false = [
                [others[place * len(others) // spread] for place in range(picture, spread, VALIDATION_PICTURES)]
                for others in captions.false[rows]
            ]
            batch = caption_batch(scorer, images, captions.captions[rows], false)
            outputs = trainer.evaluate(batch)
            losses.append((float(caption_loss(1)(outputs, batch)[0]), len(images)))
            for name, points in _right(outputs).items():
                right[name].append(points.cpu())
    loss = numpy.average([one for one, _ in losses], weights=[size for _, size in losses])
    return {
        "loss/validation": float(loss),
        **{f"caption_accuracy/{name}": float(torch.cat(points).mean()) for name, points in right.items()},
    }


def _right(outputs: CaptionOutputs) -> dict[str, torch.Tensor]:
    """Returns 1 for each false caption that scores below the true one, by both scores."""
    count = len(outputs.images)
    changed = outputs.texts[count:].view(count, -1, outputs.texts.shape[-1])
    true_score = (outputs.images * outputs.texts[:count]).sum(-1, keepdim=True)
    contrast = true_score > (outputs.images[:, None] * changed).sum(-1)
    odds = outputs.matching[..., 1] - outputs.matching[..., 0]
    # The last column is of another image, which is easy.
    matching = odds[:, :1] > odds[:, 1:-1]
    return {"clip": contrast.flatten().float(), "blip": matching.flatten().float()}


@dataclass(frozen=True)
class Captions:
    """Some prompts as captions."""

    captions: list[str]
    pictures: Tensor
    """uint8[captions, pictures, 3, side, side]"""
    false: list[list[str]]
    """For each caption those with one thing changed; for training captions, only those true of other pictures."""


def render_captions(
    prompts: Sequence[str], false_among: Sequence[str], pictures_per_caption: int, seed: int
) -> Captions:
    """Renders all pictures; UserError names a prompt that the shape world does not have.

    False captions are among `false_among`: a held-out prompt that is only ever false would be learnt as false. A
    caption that has none there accepts any.
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
    """Returns images float[batch, 3, side, side], their captions and the false ones of one step.

    No caption is twice in a batch that has at most as many items as there are captions, except across two epochs.
    """
    order = endless_order(step * batch, (step + 1) * batch, len(captions.captions), seed, "scorer_base")
    generator = numpy.random.default_rng(derive_seed(seed, "scorer_base", "step", step))
    which = generator.integers(captions.pictures.shape[1], size=batch)
    images = captions.pictures[order, which].float() / 255
    # From none to much, another amount for each picture: generators' pictures also have different amounts of noise.
    spread = max_noise * generator.random((batch, 1, 1, 1))
    images += torch.from_numpy(spread * generator.standard_normal(images.shape)).float()
    false = []
    # Computed for every caption of the step before ranks take their share: the batch does not depend on the ranks.
    for index in order:
        others = captions.false[index]
        # If a scene has fewer changes than needed, one is repeated: every row has as many columns.
        picked = generator.choice(len(others), false_captions, replace=len(others) < false_captions)
        false.append([others[one] for one in picked])
    return images, [captions.captions[index] for index in order], false


TEMPERATURES = 0.01, 0.5
"""Bounds of the learnt temperature; BLIP's are 0.001 and 0.5."""


class CaptionOutputs(NamedTuple):
    """The inputs of the two losses."""

    images: Tensor
    """[images, projection], unit vectors"""
    texts: Tensor
    """[images * (1 + false), projection], unit vectors: all true captions, then the false ones of each image in turn"""
    matching: Tensor
    """[images, 1 + false + 1, 2]: the true caption, the false ones, that of another image"""
    temperature: Tensor


def caption_batch(
    scorer: ImageScorer, images: Tensor, captions: Sequence[str], false: Sequence[Sequence[str]]
) -> PicturesBatch:
    """Images with all true captions, then the false ones of the first image, and so on; as many for each."""
    return PicturesBatch(images, *scorer.encode_prompts([*captions, *chain.from_iterable(false)]))


def caption_outputs(scorer: nn.Module, batch: PicturesBatch) -> CaptionOutputs:
    """Both heads' outputs; each picture is encoded once."""
    assert isinstance(scorer, ImageScorer)
    hidden = scorer.encode_images(batch.images)
    count, false = len(hidden), len(batch.ids) // len(hidden) - 1
    image, text = scorer.contrastive_features(hidden, Tokens(batch.ids, batch.mask))
    ids, mask = (torch.cat([one, one[:count]]) for one in (batch.ids, batch.mask))
    # Each true caption is also matched with the previous picture: an easier mistake than one changed word.
    seen = torch.cat([hidden, hidden.repeat_interleave(false, 0), hidden.roll(1, 0)])
    true, changed, other = scorer.matching_logits(seen, Tokens(ids, mask)).split([count, count * false, count])
    matching = torch.cat([true[:, None], changed.view(count, false, 2), other[:, None]], 1)
    temperature = scorer.temperature[0].clamp(*TEMPERATURES)
    return CaptionOutputs(image.float(), text.float(), matching.float(), temperature.float())


def caption_loss(ranks: int) -> LossFunction[CaptionOutputs, PicturesBatch]:
    """The sum of both losses, averaged over the ranks' micro-batches: a contrast is among the pictures of one."""

    def loss(outputs: CaptionOutputs, batch: PicturesBatch) -> tuple[Tensor, dict[str, Tensor]]:
        contrast = contrastive_loss(outputs.images, outputs.texts, outputs.temperature) / ranks
        matching = matching_loss(outputs.matching) / ranks
        return contrast + matching, {"contrastive": contrast.detach(), "matching": matching.detach()}

    return loss


def caption_model(scorer: ImageScorer) -> TrainedModel[PicturesBatch, CaptionOutputs]:
    """The scorer in the form for trainers; it is saved as a scorer folder."""
    side = scorer.config.image_size
    # Two pictures: with one alone, another picture's caption would be its own.
    filler = caption_batch(scorer, torch.zeros(2, 3, side, side), ["", ""], [[""], [""]])
    return TrainedModel(scorer, caption_outputs, lambda weights, folder: save_scorer(scorer, folder, weights), filler)
