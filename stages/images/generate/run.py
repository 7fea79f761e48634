"""Generates pictures in pieces, so that a killed run resumes after the last finished piece.

A picture's noise comes from a seed of only its prompt and its number. So two generators start the same prompt from the
same noise. No picture depends on which others are generated, except for the order of float sums in a batch.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pandas
import torch

from stages.engines.devices import pick_device
from stages.engines.pieces import are_whole, seal
from stages.foundations.errors import UserError
from stages.foundations.files import replace_folder, write_metrics
from stages.foundations.job import Job
from stages.foundations.seeds import derive_seed
from stages.foundations.tables import PROMPT, read_table
from stages.images.algorithms.shape_world import scene_of, true_score
from stages.images.engines.generators.generator import Generator, load_generator
from stages.images.engines.pictures.shards import SHARD, image_row, pixels_of, read_shards, write_shard
from stages.images.generate.stage import GenerateParams, GeneratorParams
from stages.observe.progress import progress
from stages.observe.tracking import track

Row = dict[str, Any]


def main(job: Job) -> None:
    """Reads the prompts, generates the pictures piece by piece and writes them, metrics last."""
    paths = job.paths
    params: GenerateParams = job.sections["generate"]
    drawing: GeneratorParams = job.sections["generators"]
    prompts = read_table(paths.prompts, PROMPT)
    prompts = prompts[prompts["split"].isin(drawing.splits)]
    if prompts.empty:
        raise UserError(f"no prompt is in the splits {drawing.splits}: correct `generators.<name>.splits`")
    # A prompt's pictures are adjacent. The seed ignores the generator: all of a recipe start from equal noise.
    wanted = [
        {**row, "seed": derive_seed(job.seed, "image", row["prompt_id"], index)}
        for row in prompts[["prompt_id", "prompt"]].to_dict("records")
        for index in range(drawing.images_per_prompt)
    ]
    torch.set_num_threads(params.threads)
    # The name is not part of a picture: it is in the rows, and each name needs another attempt.
    attempt = job.attempt(policy=job.item)
    with track(attempt) as run:
        generator = load_generator(paths.generator, pick_device(params.device))
        starts = range(0, len(wanted), params.images_per_shard)
        pieces = [attempt.scratch / SHARD.format(number) for number in range(len(starts))]
        for number, start in enumerate(progress(starts, label=f"generate {job.item}", unit="pieces")):
            # A seal shows that the piece is complete: the file alone may be half of one.
            if are_whole(pieces[number]):
                continue
            piece = wanted[start : start + params.images_per_shard]
            with run.phase("draw"):
                write_shard(_drawn(piece, params, drawing, job.item, generator), attempt.scratch, number)
                seal(pieces[number])
            run.log({"progress/images": start + len(piece)}, step=number)
        # Copies instead of moves: until the metrics are written, a killed run resumes from the pieces alone.
        with replace_folder(paths.images) as folder:
            for file in pieces:
                shutil.copy(file, folder)
        metrics = {"images/kept": len(wanted), "images/prompts": len(prompts), **truth_of(paths.images, prompts)}
        run.summary(metrics)
        write_metrics(paths.metrics, metrics)
        # The pieces, and one that a killed run had half written.
        for file in attempt.scratch.iterdir():
            file.unlink()


def _drawn(
    wanted: list[Row], params: GenerateParams, drawing: GeneratorParams, name: str, generator: Generator
) -> Iterator[Row]:
    left = iter(wanted)
    while batch := list(islice(left, params.batch_images)):
        pictures = generator.draw(
            [row["prompt"] for row in batch], [row["seed"] for row in batch], drawing.steps, drawing.guidance
        )
        for row, pixels in zip(batch, pictures, strict=True):
            yield image_row(pixels, **row, generator=name, source="generated", licence=params.licence)


def truth_of(images: Path, prompts: pandas.DataFrame) -> dict[str, float]:
    """Mean true scores by split, `<split>/truth|alignment|fidelity`; none where no detector knows the prompts."""
    if any(scene_of(prompt) is None for prompt in prompts["prompt"]):
        return {}
    split_of = dict(zip(prompts["prompt_id"], prompts["split"], strict=True))
    scores = pandas.DataFrame(
        {"split": split_of[row.prompt_id], **vars(true_score(pixels_of(row.png), row.prompt))}
        for frame in read_shards(images)
        for row in frame.itertuples()
    )
    means = scores.rename(columns={"overall": "truth"}).groupby("split").mean()
    return {f"{split}/{name}": value for split, row in means.to_dict("index").items() for name, value in row.items()}
