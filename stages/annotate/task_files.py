"""Folders for Label Studio: pictures as PNG, and for each number of images a project of tasks and configuration.

    images/<image id>.png
    6_images/labelling.xml, 6_images/tasks.json

The PNGs are written anew from pixels, so they hold no metadata: text chunks of a foreign file may hold prompts, paths
and places. `retrace annotations export` calls this.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pandas

from stages.annotate.label_studio import SOURCE
from stages.annotate.labelling import exported_annotation, labelling_configuration, labelling_task
from stages.annotate.tasks import by_prompt, set_tasks
from stages.engines.images.shards import pixels_of, png_of, read_image_rows, read_shards
from stages.foundations.errors import UserError
from stages.foundations.files import replace_folder, write_json, write_text_atomically
from stages.foundations.tables.ranking import RANKING
from stages.foundations.tables.rating import RATING
from stages.foundations.tables.table import read_table


def export_tasks(
    pool: Path, out: Path, address: str, images_per_task: int, tasks_per_prompt: int, seed: int
) -> dict[str, int]:
    """Writes the folder for the pool's images, nothing annotated yet; returns tasks by their number of images.

    address: what stands before `<image id>.png` in the tasks.
    """
    images = read_image_rows(pool)
    prompts = dict(zip(images["prompt_id"], images["prompt"], strict=True))
    tasks = [
        labelling_task(
            task.prompt_id, prompts[task.prompt_id], task.image_ids, _addresses(task.image_ids, address)
        )
        for task in set_tasks(by_prompt(images), images_per_task, tasks_per_prompt, seed)
    ]
    return _write(tasks, pool, out)


def export_annotated(pool: Path, annotations: Path, out: Path, address: str) -> dict[str, int]:
    """Writes the folder for the tasks that were annotated, with what Label Studio's annotators said of them."""
    rankings = read_table(annotations / "rankings.parquet", RANKING)
    ratings = read_table(annotations / "ratings.parquet", RATING)
    if other := sorted(set(rankings["source"]) - {SOURCE}):
        raise UserError(
            f"{annotations} has annotations of {other}: only those of Label Studio go back into it"
        )
    images = read_image_rows(pool)
    prompts = dict(zip(images["prompt_id"], images["prompt"], strict=True))
    rated = defaultdict(list)
    for row in ratings.to_dict("records"):
        rated[row["task_id"], row["annotator_id"]].append(row)
    tasks: dict[str, dict[str, Any]] = {}
    for row in rankings.to_dict("records"):
        shown = list(row["image_ids"])
        task = tasks.setdefault(
            row["task_id"],
            labelling_task(row["prompt_id"], prompts[row["prompt_id"]], shown, _addresses(shown, address))
            | {"annotations": []},
        )
        own = [] if row["is_gold"] else rated[row["task_id"], row["annotator_id"]]
        task["annotations"].append(exported_annotation(row, own, task["data"]["image_ids"]))
    return _write(list(tasks.values()), pool, out)


def _addresses(image_ids: Any, address: str) -> list[str]:
    return [f"{address}{name}.png" for name in image_ids]


def _write(tasks: list[dict[str, Any]], pool: Path, out: Path) -> dict[str, int]:
    if out.exists():
        raise UserError(f"{out} exists: give a new folder, or remove it")
    if not tasks:
        raise UserError(f"{pool} has no prompt with two images: there is nothing to rank")
    groups: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for task in tasks:
        groups[len(task["data"]["image_ids"])].append(task)
    wanted = {name for task in tasks for name in task["data"]["image_ids"]}
    with replace_folder(out) as folder:
        for count, own in groups.items():
            place = folder / f"{count}_images"
            write_json(place / "tasks.json", own)
            write_text_atomically(place / "labelling.xml", labelling_configuration(count))
        for frame in read_shards(pool):
            _write_pictures(frame[frame["image_id"].isin(wanted)], folder / "images")
    counts = Counter(len(task["data"]["image_ids"]) for task in tasks)
    return {f"{count}_images": tasks_of for count, tasks_of in sorted(counts.items())}


def _write_pictures(frame: pandas.DataFrame, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, png in zip(frame["image_id"], frame["png"], strict=True):
        (folder / f"{name}.png").write_bytes(
            png_of(pixels_of(png))
        )  # the whole folder is put in place at the end
