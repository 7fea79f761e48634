"""A scorer as a trainer learns it: which caption belongs to a picture (scorer base), what people prefer (reward model).

Captions train the contrastive and the matching head together. Preferences train a reward head on top, with the first
layers frozen. Source of the latter: ImageReward (arXiv 2304.05977, section 3.1 and appendix B; code at c1392c6d).

Deviations from it:
1. `fan_in` as the head's initialisation. The released one, N(0, 1/769) over five linear layers, gives gradients below
   Adam's epsilon: at a learning rate of 1e-5 the loss stays at 0.69315 for hundreds of steps (ImageReward#45).
2. Whole layers are frozen. There, freezing 70% stops inside the layer after the last one.
3. Dropout is drawn from the batch's own seed, so that a resumed run repeats it.
4. Ratings may be learnt beside the ranking, from the same state, by a head that is thrown away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from stages.algorithms.text_to_image_losses import contrastive_loss, matching_loss, pairwise_ranking_loss
from stages.engines.image_scorers.config import RewardHeadSizes
from stages.engines.image_scorers.scorer import ImageScorer, Tokens, reward_head, save_scorer
from stages.engines.trainers.protocol import LossFunction, TrainedModel
from stages.foundations.errors import UserError

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
        return replace(self, images=self.images.to(device), ids=self.ids.to(device), mask=self.mask.to(device))


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
    return TrainedModel(scorer, caption_outputs, lambda weights, folder: save_scorer(scorer, folder, weights), filler)


MATCHING_SCALE = 0.2
"""Log-odds of a match are surer than people's preferences: a difference of 5 is made one of 1, 73% of pairs."""
ASPECTS = 3
"""Ratings of a picture: overall, alignment, fidelity."""


@dataclass(frozen=True)
class RewardBatch:
    """Pictures of some prompts, each picture once, and the pairs among them."""

    images: Tensor
    """[images, 3, side, side] in 0..1"""
    ids: Tensor
    """[images, tokens]"""
    mask: Tensor
    better: Tensor
    """[pairs]: rows of the preferred images"""
    worse: Tensor
    weights: Tensor
    """[pairs]"""
    ratings: Tensor
    """[images, 3], standardised; NaN where nobody rated"""
    seed: int
    """Of dropout."""

    @property
    def is_empty(self) -> bool:
        return len(self.images) == 0

    def to(self, device: torch.device) -> RewardBatch:
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: one.to(device) for name, one in tensors.items() if isinstance(one, Tensor)})


class RewardOutputs(NamedTuple):
    """Scores of a batch's images."""

    rewards: Tensor
    """[images], before normalisation"""
    ratings: Tensor
    """[images, 3]"""


class RewardLearner(nn.Module):
    """A scorer and, for training alone, a head for the ratings."""

    def __init__(self, scorer: ImageScorer, seed: int) -> None:
        super().__init__()
        self.scorer = scorer
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.rating_head = nn.Linear(scorer.config.text.hidden_size, ASPECTS)


def add_reward_head(
    scorer: ImageScorer, sizes: RewardHeadSizes, initialisation: Literal["fan_in", "released", "matching"], seed: int
) -> None:
    """Gives the scorer a reward head, in place of the one it may have; equal seeds give equal heads.

    `matching` starts from the matching head: the reward is the log-odds of a match times `MATCHING_SCALE`. UserError
    where there is none, or where the reward head is more than one layer.
    """
    width = scorer.config.text.hidden_size
    head = reward_head(width, sizes)
    generator = torch.Generator().manual_seed(seed)
    if initialisation == "matching":
        if not scorer.config.has_matching_head or sizes.widths or sizes.dropouts:
            raise UserError(
                "reward_model.head_initialisation is matching: set `head: {widths: [], dropouts: []}` and take a base "
                "scorer that has a matching head, or use fan_in"
            )
        with torch.no_grad():
            for mine, matching in zip(head[0].parameters(), scorer.matching_head.parameters(), strict=True):
                mine.copy_(MATCHING_SCALE * (matching[1:] - matching[:1]))
    for layer in head:
        if isinstance(layer, nn.Linear) and initialisation != "matching":
            spread = layer.in_features**-0.5 if initialisation == "fan_in" else 1 / (width + 1)
            nn.init.normal_(layer.weight, std=spread, generator=generator)
            nn.init.zeros_(layer.bias)
    scorer.reward_head = head
    scorer.config = scorer.config.model_copy(update={"reward_head": sizes, "reward_mean": 0.0, "reward_std": 1.0})


def freeze(scorer: ImageScorer, fraction: float) -> None:
    """Stops this share of both encoders' layers, from the input on and rounded down, from learning.

    With a share above 0 the embeddings do not learn either; the contrastive and matching heads never do.
    """
    for name in ("vision_projection", "text_projection", "matching_head"):
        if hasattr(scorer, name):
            getattr(scorer, name).requires_grad_(False)
    if hasattr(scorer, "temperature"):
        scorer.temperature.requires_grad_(False)
    if fraction == 0:
        return
    for encoder, layers in ((scorer.vision, scorer.vision.encoder.layers), (scorer.text, scorer.text.encoder.layer)):
        encoder.embeddings.requires_grad_(False)
        for layer in layers[: int(fraction * len(layers))]:
            layer.requires_grad_(False)


def reward_outputs(learner: nn.Module, batch: RewardBatch) -> RewardOutputs:
    """Rewards and ratings; each picture is encoded once, whatever number of pairs it is in."""
    assert isinstance(learner, RewardLearner)
    scorer = learner.scorer
    with _dropout_of(batch.seed, batch.images.device):
        fused = scorer.fused(scorer.encode_images(batch.images), Tokens(batch.ids, batch.mask))
        rewards = scorer.reward_head(fused)[:, 0]
    return RewardOutputs(rewards.float(), learner.rating_head(fused).float())


def reward_loss(pair_weight: float, rated: int, rating_weight: float) -> LossFunction[RewardOutputs, RewardBatch]:
    """A micro-batch's share: the pairwise loss, and `rating_weight` times the mean square error of the ratings.

    pair_weight: sum of the weights of the whole batch's pairs; rated: its ratings that are not NaN.
    """

    def loss(outputs: RewardOutputs, batch: RewardBatch) -> tuple[Tensor, dict[str, Tensor]]:
        better, worse = outputs.rewards[batch.better], outputs.rewards[batch.worse]
        ranking = pairwise_ranking_loss(better, worse, batch.weights) * batch.weights.sum() / pair_weight
        right = ((better > worse) * batch.weights).sum() / pair_weight
        shown = {"ranking": ranking.detach(), "right": right.detach()}
        if not rating_weight:
            return ranking, shown
        is_rated = batch.ratings.isfinite()
        error = (outputs.ratings - batch.ratings.nan_to_num()).square()[is_rated].sum() / max(rated, 1)
        return ranking + rating_weight * error, {**shown, "rating": error.detach()}

    return loss


def reward_model(scorer: ImageScorer, seed: int) -> TrainedModel[RewardBatch, RewardOutputs]:
    """The scorer as trainers take it; it is saved as a scorer folder, without the head for ratings.

    seed: of that head's first weights.
    """
    side = scorer.config.image_size
    tokens = scorer.encode_prompts([""])
    none = torch.zeros(0, dtype=torch.long)
    filler = RewardBatch(
        torch.zeros(1, 3, side, side), *tokens, none, none, torch.zeros(0), torch.full((1, ASPECTS), torch.nan), 0
    )

    def save(weights: Mapping[str, Tensor], folder: Path) -> None:
        save_scorer(scorer, folder, {name.removeprefix("scorer."): one for name, one in weights.items()})

    # Each micro-batch brings the seed of its dropout.
    return TrainedModel(RewardLearner(scorer, seed), reward_outputs, save, filler, set_mode=nn.Module.train)


@contextmanager
def _dropout_of(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers inside come from `seed`, and the streams outside are left alone."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
