"""The recipe t2i-shapes with small numbers, for tests of its stages and of its graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from stages.foundations.tables import PROMPT, prompt_id, write_table
from stages.t2i_prompts.params import T2iPromptsParams
from stages.t2i_prompts.run import make_prompts

RECIPE = Path(__file__).resolve().parents[2] / "pipelines/recipes/t2i-shapes.yaml"
GENERATORS = ("main", "guided")
"""Those of the recipe that the miniature keeps."""


def mini_shapes() -> dict[str, Any]:
    """Sections of the recipe: 36 prompts, networks of a few thousand weights, 4 updates, two draws in 2 steps."""
    params = yaml.safe_load(RECIPE.read_text())
    kinds = {"place": 4, "count": 0, "list": 0, "counted_list": 8, "placed_list": 6, "relation": 6}
    params["t2i_prompts"] |= {"max_of_kind": kinds, "validation_prompts": 4, "test_prompts": 8}
    params["t2i_base"]["sizes"] |= {"channels": [8, 16], "text_width": 16, "text_layers": 1}
    params["t2i_base"] |= {"steps": 4, "batch_images": 4, "micro_batch_images": 3, "warmup_steps": 1}
    params["t2i_base"] |= {"validate_every_steps": 2, "validation_images": 5, "checkpoint_every_steps": 2}
    params["trainer"]["threads"] = params["generate"]["threads"] = 1
    params["generate"] |= {"batch_images": 5, "images_per_shard": 16}
    params["generators"] = {
        name: params["generators"][name] | {"steps": 2, "images_per_prompt": 1} for name in GENERATORS
    }
    encoder = {"hidden_size": 16, "layers": 1, "heads": 2, "feed_forward_size": 32}
    every_two = {"validate_every_steps": 2, "checkpoint_every_steps": 2}
    params["scorer_base"] |= {"vision": encoder, "text": encoder, "patch_size": 8, "projection_size": 8}
    params["scorer_base"] |= {"pictures_per_caption": 2, "steps": 4, "batch_captions": 6, "warmup_steps": 1}
    params["scorer_base"] |= every_two
    params["reward_model"] |= {"epochs": 2, "warmup_steps": 1}
    params["reward_model"] |= {"checkpoint_every_steps": 2}
    params["refl"] |= {"feedback": {"kind": "refl", "window": [1, 3], "bound": 50.0}, "sampling_steps": 4}
    params["refl"] |= {"batch_images": 4, "micro_batch_images": 2}
    params["refl"] |= {"evaluate_every_updates": 2, "checkpoint_every_updates": 1}
    params["refl"]["pretraining"]["batch_images"] = 4
    params["refl"]["measurement"] |= {"validation_images": 4, "test_images": 6, "shown_images": 3}
    for own in params["refl_rounds"].values():
        own["updates"] = 3
    return params


def shape_prompts(path: Path, also: Sequence[str] = ()) -> Path:
    """Writes the miniature's table of prompts, and further ones to train on."""
    params = TypeAdapter(T2iPromptsParams).validate_python(mini_shapes()["t2i_prompts"])
    rows, _, _ = make_prompts(params, seed=0)
    rows += [{"prompt_id": prompt_id(text), "prompt": text, "split": "train", "source": "test"} for text in also]
    write_table(rows, path, PROMPT)
    return path
