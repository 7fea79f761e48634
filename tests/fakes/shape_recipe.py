"""The recipe t2i-shapes with small numbers, for tests of its stages and of its graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from stages.foundations.tables.prompt import PROMPT, prompt_id
from stages.foundations.tables.table import write_table
from stages.t2i_prompts.params import T2iPromptsParams
from stages.t2i_prompts.prompts import make_prompts

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
    params["generators"] = {
        name: params["generators"][name] | {"steps": 2, "images_per_prompt": 1} for name in GENERATORS
    }
    return params


def shape_prompts(path: Path, also: Sequence[str] = ()) -> Path:
    """Writes the miniature's table of prompts, and further ones to train on."""
    params = TypeAdapter(T2iPromptsParams).validate_python(mini_shapes()["t2i_prompts"])
    rows, _, _ = make_prompts(params, seed=0)
    rows += [
        {"prompt_id": prompt_id(text), "prompt": text, "split": "train", "source": "test"} for text in also
    ]
    write_table(rows, path, PROMPT)
    return path
