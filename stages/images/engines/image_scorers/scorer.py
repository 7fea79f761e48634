"""Scores how well a picture matches a prompt, with a BLIP-shaped network: contrastive, matching and learnt reward.

Source: BLIP (arXiv 2201.12086), ImageReward (arXiv 2304.05977, section 3.1; code at c1392c6d). The encoders are
transformers' `BlipVisionModel` and `BlipTextModel`, combined here because `BlipModel` silently starts with random text
weights (transformers#28034).

Deviations from ImageReward's code:
1. Training, evaluation and feedback to a generator call the same function; in ImageReward, training read the last
   token.
2. A picture is encoded once, however many pairs it is in.
3. Resizing is torch's antialiased bicubic and differentiable; it differs from PIL's by rounding to bytes
   (tests/engines/test_image_scorers.py).

On disk a scorer is a folder: weights in safetensors, `scorer.json`, `tokenizer.json`; no pickle, and no hub is used.
`Pictures` are its inputs: those of a pool, at its size.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Self

import numpy
import pandas
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, processors
from torch import Tensor, nn
from transformers import BlipTextConfig, BlipTextModel, BlipVisionConfig, BlipVisionModel

from stages.engines.new_tokenizers import UNKNOWN, word_tokenizer
from stages.foundations.errors import UserError
from stages.foundations.files import write_json, write_text_atomically
from stages.images.engines.image_scorers.config import RewardHeadSizes, ScorerConfig, Variant
from stages.images.engines.pictures.shards import pixels_of, read_shards
from stages.observe.progress import progress

FIRST_TEMPERATURE = 0.07
"""Of the contrastive score, as in BLIP's code."""
PAD = "[PAD]"


class Tokens(NamedTuple):
    """Prompts in the text encoder's form."""

    ids: Tensor
    """[prompts, tokens]"""
    mask: Tensor
    """[prompts, tokens]: 1 where there is a token, 0 where there is padding."""


@dataclass(frozen=True)
class PicturesBatch:
    """A micro-batch of pictures and prompts in the text encoder's form, for a trainer."""

    images: Tensor
    """[images, 3, side, side] in 0..1"""
    ids: Tensor
    """[prompts, tokens]"""
    mask: Tensor

    @property
    def is_empty(self) -> bool:
        return len(self.images) == 0

    def to(self, device: torch.device) -> Self:
        return replace(self, **{name: one.to(device) for name, one in vars(self).items() if isinstance(one, Tensor)})


class ImageScorer(nn.Module):
    """Both encoders and the heads that `config` names."""

    def __init__(self, config: ScorerConfig, tokenizer: Tokenizer, initializer_range: float = 0.02) -> None:
        super().__init__()
        # A copy, because truncation and padding change the tokenizer in place.
        self.config, self.tokenizer = config, Tokenizer.from_str(tokenizer.to_str())
        self.tokenizer.enable_truncation(config.max_text_tokens)
        self.tokenizer.enable_padding(pad_id=tokenizer.token_to_id(PAD), pad_token=PAD)
        self.vision = BlipVisionModel(
            BlipVisionConfig(
                hidden_size=config.vision.hidden_size,
                intermediate_size=config.vision.feed_forward_size,
                num_hidden_layers=config.vision.layers,
                num_attention_heads=config.vision.heads,
                image_size=config.image_size,
                patch_size=config.patch_size,
                # As in BLIP; the class's default is 1e-5.
                layer_norm_eps=1e-6,
                initializer_range=initializer_range,
            )
        )
        self.text = BlipTextModel(
            BlipTextConfig(
                vocab_size=config.vocabulary,
                hidden_size=config.text.hidden_size,
                encoder_hidden_size=config.vision.hidden_size,
                intermediate_size=config.text.feed_forward_size,
                num_hidden_layers=config.text.layers,
                num_attention_heads=config.text.heads,
                max_position_embeddings=config.text_positions,
                layer_norm_eps=1e-12,
                hidden_dropout_prob=config.text_dropout,
                attention_probs_dropout_prob=config.text_dropout,
                initializer_range=initializer_range,
                # Both belong to captions that BLIP writes; their defaults are outside of a small vocabulary.
                bos_token_id=None,
                sep_token_id=None,
                # This gives the layers their cross-attention; the call decides whether attention is causal.
                is_decoder=True,
            ),
            add_pooling_layer=False,
        )
        width = config.text.hidden_size
        if config.projection_size is not None:
            self.vision_projection = nn.Linear(config.vision.hidden_size, config.projection_size)
            self.text_projection = nn.Linear(width, config.projection_size)
            # With one dimension instead of none: DeepSpeed sends parameters as bytes, which a scalar cannot be viewed
            # as.
            self.temperature = nn.Parameter(torch.tensor([FIRST_TEMPERATURE]))
        if config.has_matching_head:
            self.matching_head = nn.Linear(width, 2)
        if config.reward_head is not None:
            self.reward_head = reward_head(width, config.reward_head)

    @property
    def device(self) -> torch.device:
        return self.text.embeddings.word_embeddings.weight.device

    def score(self, images: Tensor, prompts: Sequence[str], variant: Variant = "reward") -> Tensor:
        """Scores [N] of images float[N, 3, H, W] in 0..1 for one prompt each; higher is better.

        `clip` is a cosine, `blip` the log-odds of a match, `reward` has mean 0 and spread 1 on validation images.
        Differentiable with respect to the images. Values outside of 0..1 are not clamped: a clamp has no gradient.
        UserError when the scorer lacks the head.
        """
        tokens = self.encode_prompts(prompts)
        return self.score_encoded(self.encode_images(images.to(self.device)), tokens, variant)

    def encode_prompts(self, prompts: Sequence[str]) -> Tokens:
        """Token ids, cut at `max_text_tokens` and padded to the longest."""
        encoded = self.tokenizer.encode_batch(list(prompts))
        ids, mask = ([getattr(one, name) for one in encoded] for name in ("ids", "attention_mask"))
        return Tokens(torch.tensor(ids, device=self.device), torch.tensor(mask, device=self.device))

    def encode_images(self, images: Tensor) -> Tensor:
        """Hidden states [N, 1 + patches, width] of images float[N, 3, H, W] in 0..1."""
        side, config = self.config.image_size, self.config
        mean, std = (
            torch.tensor(values, device=images.device).view(3, 1, 1) for values in (config.pixel_mean, config.pixel_std)
        )
        return self.vision((fit_to_square(images, side) - mean) / std).last_hidden_state

    def score_encoded(self, hidden: Tensor, tokens: Tokens, variant: Variant) -> Tensor:
        """`score` of images that are already encoded, row for row with the tokens."""
        match variant:
            case "clip":
                image, text = self.contrastive_features(hidden, tokens)
                return (image * text).sum(-1)
            case "blip":
                logits = self.matching_logits(hidden, tokens)
                return logits[:, 1] - logits[:, 0]
            case "reward":
                if self.config.reward_head is None:
                    raise UserError("this scorer has no reward head: `dvc repro reward_model` trains one")
                raw = self.reward_head(self.fused(hidden, tokens))[:, 0]
                return (raw - self.config.reward_mean) / self.config.reward_std

    def contrastive_features(self, hidden: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Unit vectors [images, projection] and [prompts, projection]; their product is the `clip` score."""
        if self.config.projection_size is None:
            raise UserError("this scorer has no contrastive projections: take `clip` from one that has")
        text = self.text(tokens.ids, tokens.mask).last_hidden_state[:, 0]
        return (
            nn.functional.normalize(self.vision_projection(hidden[:, 0]), dim=-1),
            nn.functional.normalize(self.text_projection(text), dim=-1),
        )

    def matching_logits(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        """[N, 2]: no match, match."""
        if not self.config.has_matching_head:
            raise UserError("this scorer has no matching head: take `blip` from one that has")
        if self.config.matching_token_id is not None:
            # A copy: the same tokens may be used for another score.
            ids = tokens.ids.clone()
            ids[:, 0] = self.config.matching_token_id
            tokens = tokens._replace(ids=ids)
        return self.matching_head(self.fused(hidden, tokens))

    def fused(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        """[N, text width]: the first token after it has attended to the image in every layer."""
        # Without `is_decoder`, which would make the attention causal.
        return self.text(tokens.ids, tokens.mask, encoder_hidden_states=hidden).last_hidden_state[:, 0]


def fit_to_square(images: Tensor, side: int) -> Tensor:
    """Images [N, 3, side, side]: the shorter side resized (bicubic, antialiased), then the centre.

    Images of that size stay as they are.
    """
    height, width = images.shape[-2:]
    if (height, width) == (side, side):
        return images
    shorter = min(height, width)
    # Rounded as in torchvision's Resize and CenterCrop, with which ImageReward prepares its pictures.
    size = [max(side, int(side * length / shorter)) for length in (height, width)]
    images = nn.functional.interpolate(images, size=size, mode="bicubic", antialias=True, align_corners=False)
    top, left = (round((length - side) / 2) for length in size)
    return images[..., top : top + side, left : left + side]


def reward_head(width: int, sizes: RewardHeadSizes) -> nn.Sequential:
    """Linear layers, a dropout after each of the first, no activation: ImageReward left its ReLUs out."""
    layers: list[nn.Module] = []
    for number, outputs in enumerate([*sizes.widths, 1]):
        layers.append(nn.Linear(width, outputs))
        if number < len(sizes.dropouts):
            layers.append(nn.Dropout(sizes.dropouts[number]))
        width = outputs
    return nn.Sequential(*layers)


CLS, SEP = "[CLS]", "[SEP]"


def caption_tokenizer(captions: Iterable[str]) -> Tokenizer:
    """One token for each word in `captions`, without case, between BERT's [CLS] and [SEP]; other words are unknown."""
    tokenizer = word_tokenizer(captions, [PAD, UNKNOWN, CLS, SEP])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}", special_tokens=[(mark, tokenizer.token_to_id(mark)) for mark in (CLS, SEP)]
    )
    return tokenizer


def new_scorer(
    config: ScorerConfig, tokenizer: Tokenizer, initializer_range: float, position_range: float, seed: int
) -> ImageScorer:
    """A scorer with random weights, `position_range` for the patches' positions; equal arguments, equal weights."""
    # The caller's stream stays unchanged.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        scorer = ImageScorer(config, tokenizer, initializer_range)
        torch.nn.init.normal_(scorer.vision.embeddings.position_embedding, std=position_range)
        return scorer


WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "scorer.json", "tokenizer.json"


def load_scorer(folder: Path, device: torch.device | str) -> ImageScorer:
    """Loads the scorer of a folder on `device`, ready to score: in evaluation mode, its weights without gradient.

    UserError when the folder is not a scorer, or lacks a weight, or has one too many.
    """
    try:
        config = ScorerConfig.model_validate(json.loads((folder / CONFIG).read_text(encoding="utf-8")))
        tokenizer = Tokenizer.from_buffer((folder / TOKENIZER).read_bytes())
        scorer = ImageScorer(config, tokenizer)
        scorer.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, ValueError, SafetensorError, KeyError, RuntimeError) as error:
        raise UserError(
            f"{folder} is not a scorer ({str(error)[:300]}): `dvc repro scorer_base` makes one, "
            "docs/explanation/reward-models.md says how released weights become one"
        ) from error
    return scorer.eval().requires_grad_(False).to(device)


def save_scorer(scorer: ImageScorer, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Writes the scorer into `folder` (which the caller makes appear complete); equal weights give equal bytes.

    `weights`, by parameter name, replace its weights, which a trainer may have sharded over ranks; weights without a
    parameter in the scorer are left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parameters = dict(scorer.named_parameters())
    chosen = parameters if weights is None else {name: weights[name] for name in parameters}
    save_file(
        {name: weight.detach().float().cpu().contiguous() for name, weight in chosen.items()},
        folder / WEIGHTS,
        metadata={"format": "pt"},
    )
    write_json(folder / CONFIG, scorer.config.model_dump())
    write_text_atomically(folder / TOKENIZER, scorer.tokenizer.to_str(pretty=True))


class Pictures:
    """Pictures in memory, fitted to the scorer's square and rounded to bytes as if they had been saved so."""

    def __init__(self, rows: pandas.DataFrame, pixels: dict[str, Tensor]) -> None:
        self.rows = rows
        """Returns the pool's rows of these pictures without the column `png`; the index is the image id."""
        # As bytes: a quarter of the memory of floats.
        self._pixels = pixels

    def images(self, image_ids: Collection[str]) -> Tensor:
        """Returns float[N, 3, side, side] in 0..1, in this order."""
        return torch.stack([self._pixels[one] for one in image_ids]).float() / 255

    def prompts(self, image_ids: Collection[str]) -> list[str]:
        """Returns the prompt of each."""
        return self.rows["prompt"].loc[list(image_ids)].tolist()


def load_pictures(pools: Sequence[Path], image_ids: Collection[str], side: int) -> Pictures:
    """Reads the pictures with these ids from the pools' shards, fitted to `side`; UserError when one is missing."""
    wanted, pixels, kept = set(image_ids), {}, []
    for frame in chain.from_iterable(map(read_shards, pools)):
        frame = frame[frame["image_id"].isin(wanted)]
        for name, png in zip(frame["image_id"], frame["png"], strict=True):
            # A copy, because Pillow's array is read-only, and torch warns of sharing such memory.
            image = torch.from_numpy(numpy.array(pixels_of(png))).permute(2, 0, 1)
            pixels[name] = fit_to_square(image[None].float(), side)[0].round().clamp(0, 255).to(torch.uint8)
        kept.append(frame.drop(columns="png"))
    missing = sorted(wanted - pixels.keys())
    if missing:
        raise UserError(
            f"{' and '.join(map(str, pools))} lack {len(missing)} of {len(wanted)} images that were "
            f"ranked, {missing[0]} for one: run `dvc repro`, so that pool and annotations belong together"
        )
    # An image of two rounds is in both pools.
    rows = pandas.concat(kept, ignore_index=True).drop_duplicates("image_id").set_index("image_id")
    return Pictures(rows, pixels)


@torch.no_grad()
def score_pictures(
    scorer: ImageScorer, variants: Sequence[Variant], pictures: Pictures, image_ids: Sequence[str], at_once: int
) -> dict[Variant, numpy.ndarray]:
    """Returns variant -> score of each image id, float64; each picture is encoded once."""
    scores: dict[Variant, list[Tensor]] = {variant: [] for variant in variants}
    for start in progress(range(0, len(image_ids), at_once), label=f"score: {', '.join(variants)}", unit="batches"):
        part = image_ids[start : start + at_once]
        hidden = scorer.encode_images(pictures.images(part).to(scorer.device))
        tokens = scorer.encode_prompts(pictures.prompts(part))
        for variant in variants:
            scores[variant].append(scorer.score_encoded(hidden, tokens, variant).double().cpu())
    return {variant: torch.cat(parts).numpy() for variant, parts in scores.items()}
