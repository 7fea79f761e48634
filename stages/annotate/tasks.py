"""Which images an annotator sees side by side."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas

from stages.foundations.seeds import derive_seed


@dataclass(frozen=True)
class Task:
    """Images of a prompt that are ranked side by side."""

    prompt_id: str
    image_ids: tuple[str, ...]


def by_prompt(images: pandas.DataFrame) -> dict[str, list[tuple[str, str]]]:
    """Prompt id -> (image id, generator) of each of its images."""
    return {
        str(name): list(zip(own["image_id"], own["generator"], strict=True))
        for name, own in images.groupby("prompt_id", sort=True)
    }


def set_tasks(
    images: Mapping[str, Sequence[tuple[str, str]]], images_per_task: int, tasks_per_prompt: int, seed: int
) -> list[Task]:
    """Tasks of each prompt's images, given as (image id, generator): no image twice, generators mixed evenly.

    The last task of a prompt may have fewer images, never one.
    """
    tasks = []
    for prompt_id in sorted(images):
        drawn = random.Random(derive_seed(seed, "tasks", prompt_id))
        left: dict[str, list[str]] = {}
        for image_id, generator in sorted(images[prompt_id]):
            left.setdefault(generator, []).append(image_id)
        for own in left.values():
            drawn.shuffle(own)
        mixed = []  # one of each generator in turn: a task is to compare generators, not draws of one
        while any(left.values()):
            turn = [name for name in sorted(left) if left[name]]
            drawn.shuffle(turn)
            mixed += [left[name].pop() for name in turn]
        cut = [
            tuple(mixed[start : start + images_per_task]) for start in range(0, len(mixed), images_per_task)
        ]
        tasks += [Task(prompt_id, part) for part in cut[:tasks_per_prompt] if len(part) > 1]
    return tasks
