"""A scorer as a model that learns which caption belongs to which picture: contrastive and matching head together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from stages.algorithms.image_text_losses import contrastive_loss, matching_loss
from stages.engines.image_scorers.scorer import ImageScorer, Tokens
from stages.engines.image_scorers.scorer_folders import save_scorer
from stages.engines.trainers.model import TrainedModel
from stages.engines.trainers.protocol import LossFunction

TEMPERATURES = 0.01, 0.5
"""Bounds of the learnt temperature; BLIP's are 0.001 and 0.5."""


@dataclass(frozen=True)
class CaptionBatch:
    """Pictures, each with its caption and as many false ones as the others."""

    images: Tensor
    """[images, 3, side, side] in 0..1"""
    ids: Tensor
    """[images * (1 + false), tokens]: all true captions, then the false ones of the first image, and so on."""
    mask: Tensor

    @property
    def is_empty(self) -> bool:
        return len(self.images) == 0

    def to(self, device: torch.device) -> CaptionBatch:
        return replace(
            self, images=self.images.to(device), ids=self.ids.to(device), mask=self.mask.to(device)
        )


class CaptionOutputs(NamedTuple):
    """What the two losses need."""

    images: Tensor
    """[images, projection], unit vectors"""
    texts: Tensor
    """[images * (1 + false), projection], unit vectors, in the order of `CaptionBatch.ids`"""
    matching: Tensor
    """[images, 1 + false + 1, 2]: the true caption, the false ones, that of another image"""
    temperature: Tensor


def caption_batch(
    scorer: ImageScorer, images: Tensor, captions: Sequence[str], false: Sequence[Sequence[str]]
) -> CaptionBatch:
    """Images float[N, 3, side, side] with their captions and each as many false ones."""
    tokens = scorer.encode_prompts([*captions, *(caption for many in false for caption in many)])
    return CaptionBatch(images, tokens.ids, tokens.mask)


def caption_outputs(scorer: nn.Module, batch: CaptionBatch) -> CaptionOutputs:
    """Both heads' outputs; each picture is encoded once."""
    assert isinstance(scorer, ImageScorer)
    hidden = scorer.encode_images(batch.images)
    count, false = len(hidden), len(batch.ids) // len(hidden) - 1
    image, text = scorer.contrastive_features(hidden, Tokens(batch.ids, batch.mask))
    ids, mask = (torch.cat([one, one[:count]]) for one in (batch.ids, batch.mask))
    seen = torch.cat([hidden, hidden.repeat_interleave(false, 0), hidden.roll(1, 0)])
    own, changed, other = scorer.matching_logits(seen, Tokens(ids, mask)).split([count, count * false, count])
    matching = torch.cat([own[:, None], changed.view(count, false, 2), other[:, None]], 1)
    temperature = scorer.temperature[0].clamp(*TEMPERATURES)
    return CaptionOutputs(image.float(), text.float(), matching.float(), temperature.float())


def caption_loss(ranks: int) -> LossFunction[CaptionOutputs, CaptionBatch]:
    """The sum of both losses, averaged over the ranks' micro-batches: a contrast is among the pictures of one."""

    def loss(outputs: CaptionOutputs, batch: CaptionBatch) -> tuple[Tensor, dict[str, Tensor]]:
        contrast = contrastive_loss(outputs.images, outputs.texts, outputs.temperature) / ranks
        matching = matching_loss(outputs.matching) / ranks
        return contrast + matching, {"contrastive": contrast.detach(), "matching": matching.detach()}

    return loss


def caption_model(scorer: ImageScorer) -> TrainedModel[CaptionBatch, CaptionOutputs]:
    """The scorer as trainers take it; it is saved as a scorer folder."""
    side = scorer.config.image_size
    filler = caption_batch(scorer, torch.zeros(2, 3, side, side), ["", ""], [[""], [""]])
    return TrainedModel(
        scorer, caption_outputs, lambda weights, folder: save_scorer(scorer, folder, weights), filler
    )
