"""The recipes t2i-shapes and imagereward-blip-large with small numbers, and generated inputs for the latter."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from diffusers import AutoencoderKL
from pydantic import TypeAdapter

from stages.foundations.machine import PROJECT
from stages.foundations.tables import PROMPT, prompt_id, write_table
from stages.images.algorithms.shape_world import all_prompts, render, scene_of
from stages.images.engines.generators.generator import new_generator, save_generator
from stages.images.engines.generators.params import GeneratorSizes
from stages.images.engines.pictures.shards import png_of
from stages.images.t2i_prompts.run import make_prompts
from stages.images.t2i_prompts.stage import T2iPromptsParams
from tests.fakes.one_stage import recipe
from tests.fakes.released_blip import published_blip, write_published

GENERATORS = ("main", "guided")
"""Generators of the recipe that the miniature keeps."""


def mini_shapes() -> dict[str, Any]:
    """Returns sections of the recipe: 36 prompts, networks of a few thousand weights, 4 updates, 2 draws in 2 steps."""
    params = recipe("t2i-shapes")
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


def tiny_sizes(**changed: Any) -> GeneratorSizes:
    """Returns the sizes of a generator with a few thousand weights."""
    sizes = {"image_side": 24, "patch_side": 2, "channels": (8, 16), "layers_per_block": 1, "attention_heads": 2}
    sizes |= {"text_width": 16, "text_layers": 1, "text_heads": 2, "max_prompt_tokens": 12}
    return GeneratorSizes.model_validate({**sizes, "prediction_type": "epsilon", **changed})


def tiny_vae(**changed: Any) -> AutoencoderKL:
    """Returns an untrained VAE that halves the side; equal arguments give equal weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoencoderKL(
            block_out_channels=(8, 8),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            norm_num_groups=4,
            **changed,
        ).requires_grad_(False)


def shape_prompts(path: Path, also: Sequence[str] = ()) -> Path:
    """Writes the miniature's table of prompts, and further training prompts."""
    params = TypeAdapter(T2iPromptsParams).validate_python(mini_shapes()["t2i_prompts"])
    rows, _, _ = make_prompts(params, seed=0)
    rows += [{"prompt_id": prompt_id(text), "prompt": text, "split": "train", "source": "test"} for text in also]
    write_table(rows, path, PROMPT)
    return path


IMAGEREWARD = PROJECT / "pipelines/recipes/imagereward-blip-large.yaml"
TRAIN, TEST, IMAGES = 14, 4, 3
"""Prompts of each split (TRAIN includes validation); images per prompt."""


def write_downloads(folder: Path) -> dict[str, Any]:
    """Writes the recipe's inputs; returns its sections with small numbers and the paths of `folder`."""
    params = yaml.safe_load(IMAGEREWARD.read_text())
    prompts = sorted(all_prompts())[:: len(all_prompts()) // (TRAIN + TEST)][: TRAIN + TEST]
    _prompt_files(params["t2i_prompts"], folder, prompts)
    _rankings(params["ranking_rounds"]["round_1"], folder, prompts)
    _generator(folder / "generator", prompts)
    blip = published_blip() | {"temp": torch.tensor(0.07)}
    weights, vocabulary = write_published(folder, {"model": blip}, "model_large.pth")
    params["t2i_base"]["path"] = str(folder / "generator")
    params["scorer_base"] |= {"path": str(weights), "tokenizer": str(vocabulary)}
    return _small(params)


def _small(params: dict[str, Any]) -> dict[str, Any]:
    params["trainer"] |= {"device": "cpu", "threads": 1}
    params["t2i_prompts"]["validation_prompts"] = 4
    params["generate"] |= {"device": "cpu", "threads": 1}
    for own in params["generators"].values():
        own["steps"] = 2
    params["images"] |= {"min_side": 16, "workers": 1}
    params["preferences"]["annotator_rules"]["min_pairs"] = 1
    params["reward_model"] |= {"head": {"widths": [8, 4], "dropouts": [0.2]}, "epochs": 2}
    params["reward_evaluation"] |= {"device": "cpu", "threads": 1, "bootstrap_draws": 100}
    refl = params["refl"]
    refl["feedback"]["window"] = [2, 3]
    refl |= {"sampling_steps": 4, "batch_images": 4, "evaluate_every_updates": 2, "checkpoint_every_updates": 2}
    refl["pretraining"] |= {"batch_images": 4, "images": {"kind": "shards", "path": "data/images/pool/round_1"}}
    refl["measurement"] |= {"validation_images": 8, "test_images": 8, "draw_images": 8, "shown_images": 3}
    for own in params["refl_rounds"].values():
        own["updates"] = 2
    return params


def _prompt_files(section: dict[str, Any], folder: Path, prompts: list[str]) -> None:
    parts = {"ranked": prompts[:TRAIN], "ranked_test": prompts[TRAIN:], "feedback": prompts[:3]}
    for name, texts in parts.items():
        source = section["sources"][name]
        source["path"] = str(folder / f"{name}.jsonl")
        _lines(folder / f"{name}.jsonl", [{source["prompt_field"]: text} for text in texts])


def _rankings(section: dict[str, Any], folder: Path, prompts: list[str]) -> None:
    """Writes renders of the right scene and of others, ranked in their order; the last two are equal."""
    listed, ranked = [], []
    for number, prompt in enumerate(prompts):
        names = [f"{number:02}_{place}.png" for place in range(IMAGES)]
        for place, name in enumerate(names):
            shown = prompts[(number + place) % len(prompts)]
            (folder / name).write_bytes(png_of(render(scene_of(shown), 10 * number + place)))
            listed.append({"image": name, "prompt": prompt, "generator": f"sd_{place}"})
        ranked.append({"prompt": prompt, "generations": names, "ranking": [1, 2, 2]})
    for key, rows in (("foreign", listed), ("annotations", ranked)):
        path = folder / f"{key}.jsonl"
        _lines(path, rows)
        section[key]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    section["foreign"] |= {"folder": str(folder), "list_path": str(folder / "foreign.jsonl")}
    section["annotations"]["path"] = str(folder / "annotations.jsonl")


def _generator(folder: Path, prompts: list[str]) -> None:
    """Writes an untrained folder in Stable Diffusion's format, including the VAE."""
    generator = new_generator(tiny_sizes(), prompts, seed=0)
    generator.vae = tiny_vae(latent_channels=12)
    save_generator(generator, folder)


def _lines(path: Path, rows: list[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
