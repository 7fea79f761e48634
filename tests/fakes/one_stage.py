"""Runs one stage in this process, on files of a folder under their declared names; and rows of the picture tables."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import yaml

from stages.__main__ import main
from stages.foundations.machine import PROJECT
from stages.foundations.stage import declared_stage
from stages.foundations.tables import PROMPT, prompt_id, write_table
from stages.images.engines.pictures.shards import image_row


def stage_flags(address: str, folder: Path, **places: Path) -> list[str]:
    """Returns the stage's command. Inputs and outputs are in `folder` under their declared names, except `places`."""
    stage = declared_stage(address.partition("@")[0])
    files = {name: folder / name for name in (*stage.inputs, *stage.outputs)}
    files |= {"params": folder / "params.yaml"} | places
    return [address, *(part for name, path in files.items() for part in (f"--{name.replace('_', '-')}", str(path)))]


def run_stage(
    address: str, folder: Path, sections: Mapping[str, Any] | None = None, **places: Path
) -> dict[str, float]:
    """Runs the stage, with the given sections as its parameter file, if any, and returns its metrics."""
    folder.mkdir(parents=True, exist_ok=True)
    if sections is not None:
        (folder / "params.yaml").write_text(yaml.safe_dump(dict(sections), sort_keys=False))
    main(stage_flags(address, folder, **places))
    return json.loads((folder / "metrics").read_text())


def curve_of(folder: Path) -> list[dict[str, float]]:
    """Returns the rows of a stage's curve, each with only its existing columns."""
    with open(folder / "curves", newline="") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def recipe(name: str) -> dict[str, Any]:
    """Returns the sections of a recipe."""
    return yaml.safe_load((PROJECT / "pipelines/recipes" / f"{name}.yaml").read_text())


def write_prompts(path: Path, splits: Mapping[str, str]) -> None:
    """Writes a table of these prompts, each with its split."""
    rows = [
        {"prompt_id": prompt_id(one), "prompt": one, "split": split, "source": "s"} for one, split in splits.items()
    ]
    write_table(rows, path, PROMPT)


def picture_row(pixels: numpy.ndarray, prompt: str, **changed: Any) -> dict[str, Any]:
    """Returns a row of the image table."""
    told = {"generator": "main", "seed": 1, "source": "generated", "licence": "generated"}
    return image_row(pixels, **{"prompt_id": prompt_id(prompt), "prompt": prompt, **told, **changed})


def pair_row(prompt: str, better: str, worse: str, split: str = "test", annotator: str = "one") -> dict[str, Any]:
    """Returns a row of the pair table, with images as ids; `prompt` is the prompt's id."""
    images = {"better_image_id": better, "worse_image_id": worse}
    return {"prompt_id": prompt, "annotator_id": annotator, **images, "weight": 1.0, "split": split}
