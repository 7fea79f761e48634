"""The scores of pictures by every scorer that there is: each picture is encoded once by each scorer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas
import torch

from stages.algorithms.shape_world.scenes import scene_of
from stages.algorithms.shape_world.truth import true_score
from stages.engines.image_scorers.config import Variant
from stages.engines.image_scorers.pictures import Pictures
from stages.engines.image_scorers.scorer import ImageScorer
from stages.engines.images.shards import pixels_of, read_shards
from stages.observe.progress import progress


def scores_by(
    scorer: ImageScorer, variants: Sequence[Variant], pictures: Pictures, images_per_batch: int
) -> dict[str, pandas.Series]:
    """Variant -> score by image id."""
    ids = pictures.rows.index.tolist()
    found: dict[str, list[torch.Tensor]] = {variant: [] for variant in variants}
    starts = range(0, len(ids), images_per_batch)
    with torch.no_grad():
        for start in progress(starts, label=f"reward_evaluation: {', '.join(variants)}", unit="batches"):
            part = ids[start : start + images_per_batch]
            hidden = scorer.encode_images(pictures.images(part).to(scorer.device))
            tokens = scorer.encode_prompts(pictures.prompts(part))
            for variant in variants:
                found[variant].append(scorer.score_encoded(hidden, tokens, variant).double().cpu())
    return {variant: pandas.Series(torch.cat(parts).numpy(), index=ids) for variant, parts in found.items()}


def variants_of(base: ImageScorer) -> list[Variant]:
    """The scores that a base scorer has heads for; ImageReward's released file has neither."""
    variants: list[Variant] = []
    if base.config.projection_size is not None:
        variants.append("clip")
    if base.config.has_matching_head:
        variants.append("blip")
    return variants


def truths(pools: Sequence[Path], pictures: Pictures) -> pandas.Series | None:
    """The true score by image id; None unless all prompts are of the shape world."""
    if any(scene_of(prompt) is None for prompt in pictures.rows["prompt"].unique()):
        return None
    found = {}
    for pool in pools:
        for frame in read_shards(pool):
            frame = frame[frame["image_id"].isin(pictures.rows.index)]
            for name, prompt, png in zip(frame["image_id"], frame["prompt"], frame["png"], strict=True):
                found[name] = true_score(pixels_of(png), prompt).overall
    return pandas.Series(found).reindex(pictures.rows.index)
