"""A scorer with a few hundred weights, and pictures of 8x8 pixels on disk, of which people prefer the brighter one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy

from stages.foundations.tables import PAIR, RANKING, RATING, write_table
from stages.images.engines.image_scorers.config import ScorerConfig
from stages.images.engines.image_scorers.scorer import ImageScorer, caption_tokenizer, new_scorer, save_scorer
from stages.images.engines.pictures.shards import write_shards
from tests.fakes.one_stage import pair_row, picture_row
from tests.fakes.picture_recipes import mini_shapes

PROMPTS = ["a red circle", "two blue squares", "a circle", "a red square above a blue circle"]
ENCODER = {"hidden_size": 8, "layers": 2, "heads": 2, "feed_forward_size": 16}


def tiny_scorer(seed: int = 0, prompts: Sequence[str] = PROMPTS, **changed: object) -> ImageScorer:
    """Returns a scorer with every head; equal seed, words and config changes give equal weights."""
    tokenizer = caption_tokenizer(prompts)
    config = {
        "vision": ENCODER,
        "text": ENCODER,
        "image_size": 8,
        "patch_size": 4,
        "pixel_mean": (0.5, 0.4, 0.3),
        "pixel_std": (0.2, 0.3, 0.4),
        "vocabulary": tokenizer.get_vocab_size(),
        "max_text_tokens": 12,
        "text_positions": 12,
        "text_dropout": 0.1,
        "projection_size": 4,
        "has_matching_head": True,
        "matching_token_id": None,
        "reward_head": {"widths": [6, 3], "dropouts": [0.1]},
        "reward_mean": 0.0,
        "reward_std": 1.0,
    }
    return new_scorer(ScorerConfig.model_validate(config | changed), tokenizer, 0.3, 0.3, seed)


SPLITS = ["train"] * 8 + ["validation"] * 3 + ["test"] * 3
GENERATORS = ("dark", "middle", "bright")
PARAMS: dict[str, Any] = {
    "seed": 0,
    "trainer": mini_shapes()["trainer"] | {"device": "cpu"},
    "reward_model": {
        "head": {"widths": [6, 3], "dropouts": [0.1]},
        "head_initialisation": "fan_in",
        "frozen_fraction": 0.5,
        "rating_weight": 0.0,
        "groups_per_batch": 4,
        "micro_batch_images": 6,
        "epochs": 15,
        "warmup_steps": 2,
        "final_learning_rate_fraction": 0.1,
        "max_gradient_norm": 1.0,
        "checkpoint_every_steps": 3,
        "optimizer": {"kind": "adamw", "learning_rate": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0},
    },
    "reward_evaluation": {
        "device": "cpu",
        "threads": 1,
        "images_per_batch": 5,
        "recall_at": [1, 2],
        "bootstrap_draws": 100,
    },
}


def write_ranked_pictures(folder: Path) -> None:
    """Writes a scorer, a pool of three pictures per prompt, and two annotators who always prefer the brighter one."""
    generator = numpy.random.default_rng(0)
    rows, pairs, rankings, ratings = [], [], [], []
    for number, split in enumerate(SPLITS):
        prompt_id = f"p{number:02}"
        base = 60 * numpy.arange(3) + 20 + generator.integers(0, 40)
        ids = []
        for level, name in zip(base, GENERATORS, strict=True):
            pixels = (level + generator.integers(0, 40, (8, 8, 3))).astype(numpy.uint8)
            prompt = PROMPTS[number % len(PROMPTS)]
            row = picture_row(pixels, prompt, prompt_id=prompt_id, generator=name, seed=number)
            rows.append(row)
            ids.append(row["image_id"])
        common = {"task_id": prompt_id, "prompt_id": prompt_id, "source": "test"}
        for annotator in ("one", "two"):
            rankings.append(
                common
                | {"annotator_id": annotator, "is_gold": False, "image_ids": ids, "ranks": [3, 2, 1], "weight": 1.0}
            )
            pairs += [
                pair_row(prompt_id, ids[better], ids[worse], split, annotator)
                for better, worse in ((1, 0), (2, 0), (2, 1))
            ]
            ratings += [
                common | {"image_id": name, "annotator_id": annotator, "overall": 2.0 * place + 1, "issues": []}
                for place, name in enumerate(ids)
            ]
    write_shards(rows, folder / "pool", images_per_shard=20)
    write_table(pairs, folder / "preferences/pairs.parquet", PAIR)
    write_table(rankings, folder / "preferences/rankings.parquet", RANKING)
    write_table(ratings, folder / "preferences/ratings.parquet", RATING)
    save_scorer(tiny_scorer(), folder / "base")


RANKED = {"scorer": "base", "pairs": "preferences", "pool": "pool", "earlier_pool": "pool"}


def ranked_inputs(folder: Path) -> dict[str, Path]:
    """Returns the inputs of the stage `reward_model` from `write_ranked_pictures`."""
    return {name: folder / place for name, place in RANKED.items()}
