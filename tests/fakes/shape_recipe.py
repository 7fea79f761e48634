"""The recipe t2i-shapes with small numbers, for tests of its stages and of its graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

RECIPE = Path(__file__).resolve().parents[2] / "pipelines/recipes/t2i-shapes.yaml"
GENERATORS = ("main", "guided")
"""Those of the recipe that the miniature keeps."""


def mini_shapes() -> dict[str, Any]:
    """Sections of the recipe: 36 prompts, a generator of a few thousand weights and 4 updates, two draws in 2 steps."""
    params = yaml.safe_load(RECIPE.read_text())
    kinds = {"place": 4, "count": 0, "list": 0, "counted_list": 8, "placed_list": 6, "relation": 6}
    params["t2i_prompts"] |= {"max_of_kind": kinds, "validation_prompts": 4, "test_prompts": 8}
    params["t2i_base"]["sizes"] |= {"channels": [8, 16], "text_width": 16, "text_layers": 1}
    params["t2i_base"] |= {"steps": 4, "batch_images": 4, "micro_batch_images": 3, "warmup_steps": 1}
    params["t2i_base"] |= {"validate_every_steps": 2, "validation_images": 5, "checkpoint_every_steps": 2}
    params["trainer"]["threads"] = params["generate"]["threads"] = 1
    params["generate"] |= {"batch_images": 5, "images_per_shard": 16}
    params["generators"] = {name: params["generators"][name] | {"steps": 2} for name in GENERATORS}
    return params
