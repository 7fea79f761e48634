"""The stage around the kinds of annotations: reads the pool, writes tables of ratings and rankings."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pandas

from stages.foundations.errors import UserError
from stages.foundations.files import require_sha256, write_json, write_metrics
from stages.foundations.job import Job
from stages.foundations.params import chosen
from stages.foundations.tables import DROPPED, PROMPT, PROMPT_ANNOTATION, RANKING, RATING, read_table, write_table
from stages.images.annotate.annotations import (
    Found,
    Known,
    checked_tables,
    json_rows,
    prompt_annotations,
    prompts_with_problems,
    ranking_annotations,
    set_tasks,
    vote_annotations,
)
from stages.images.annotate.label_studio import export_annotations
from stages.images.annotate.stage import AnnotateParams, LabelStudioAnnotations, PanelAnnotations, RankingFile, VoteFile
from stages.images.engines.pictures.params import RankingRoundParams
from stages.images.engines.pictures.shards import pixels_of, read_image_rows, read_shards
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Reads or simulates judgements of the round's images, checks them, writes the tables; metrics last."""
    paths = job.paths
    params: AnnotateParams = job.sections["annotate"]
    this_round: RankingRoundParams = job.sections["ranking_rounds"]
    prompts = read_table(paths.prompts, PROMPT)
    images = read_image_rows(paths.pool)
    known = known_from(prompts, images)
    with track(job.attempt(round=job.item)) as run:
        annotations = list(_annotations(params, this_round, known, prompts, images, job))
        rankings, ratings, funnel, warnings = checked_tables(annotations, known)
        metrics = {
            **funnel.metrics(len(rankings)),
            **warnings,
            "ratings/all": len(ratings),
            "annotators/all": rankings.loc[~rankings["is_gold"], "annotator_id"].nunique(),
            "tasks/all": rankings["task_id"].nunique(),
            "tasks/gold": rankings.loc[rankings["is_gold"], "task_id"].nunique(),
        }
        said = prompt_annotations(annotations, known)
        # Not everybody is asked about prompts: the panel never is.
        if len(said):
            counts = Counter(said["category"]) + Counter(said["problems"].explode().dropna())
            metrics |= {f"prompt_annotations/{name}": count for name, count in sorted(counts.items()) if name}
            metrics["prompts/with_problems"] = len(prompts_with_problems(said))
        if rankings.empty:
            raise UserError(f"round `{job.item}` has no usable annotation: {metrics}")
        write_table(rankings, paths.out / "rankings.parquet", RANKING)
        write_table(ratings, paths.out / "ratings.parquet", RATING)
        if len(said):
            write_table(said, paths.out / "prompts.parquet", PROMPT_ANNOTATION)
        write_table(funnel.dropped_frame(), paths.dropped, DROPPED)
        write_metrics(paths.metrics, metrics, {paths.headline: {"kept": "rows/kept"}})
        run.summary(metrics)


def known_from(prompts: pandas.DataFrame, images: pandas.DataFrame) -> Known:
    """Returns the possible subjects of annotations: the prompts, and the pool's images by id and by foreign name.

    A source that several images share, such as all images of a generator, identifies none of them.
    """
    named = images[~images["source"].duplicated(keep=False)]
    return Known(
        dict(zip(prompts["prompt_id"], prompts["prompt"], strict=True)),
        dict(zip(images["image_id"], images["prompt_id"], strict=True)),
        dict(zip(named["source"], named["image_id"], strict=True)),
    )


def _annotations(
    params: AnnotateParams,
    this_round: RankingRoundParams,
    known: Known,
    prompts: pandas.DataFrame,
    images: pandas.DataFrame,
    job: Job,
) -> Found:
    match chosen("annotate", params):
        case PanelAnnotations() as panel:
            return _by_panel(panel, prompts, images, job)
        case LabelStudioAnnotations():
            return export_annotations(*_rows_of(this_round, job))
        case RankingFile():
            return ranking_annotations(*_rows_of(this_round, job), known)
        case VoteFile():
            return vote_annotations(*_rows_of(this_round, job), known)


def _by_panel(params: PanelAnnotations, prompts: pandas.DataFrame, images: pandas.DataFrame, job: Job) -> Found:
    from stages.images.algorithms.shape_world import true_score
    from stages.images.annotate.panel import annotate_tasks, seat_panel

    truths = {}
    for frame in read_shards(job.paths.pool):
        for image_id, prompt, png in zip(frame["image_id"], frame["prompt"], frame["png"], strict=True):
            try:
                truths[image_id] = true_score(pixels_of(png), prompt)
            except ValueError as error:
                raise UserError(f"annotate.kind panel judges pictures of the shape world only: {error}") from None
    splits = dict(zip(prompts["prompt_id"], prompts["split"], strict=True))
    careless = [one.annotator_id for one in seat_panel(params, job.seed) if one.is_careless]
    # The careless annotators, to check that quality control finds them; no stage reads it.
    write_json(job.paths.out / "panel.json", {"careless": careless})
    tasks = set_tasks(images, params.images_per_task, params.tasks_per_prompt, job.seed)
    # The same people in every round: their judgements differ because the images do.
    return annotate_tasks(tasks, truths, splits, params, job.seed)


def _rows_of(this_round: RankingRoundParams, job: Job) -> tuple[list[Any], str]:
    """Returns rows and name of the round's annotation file."""
    if this_round.annotations is None:
        raise UserError(
            f"{job.paths.params}: ranking_rounds.{job.item}.annotations is null: name the file, "
            "or set annotate.kind panel"
        )
    path = Path(this_round.annotations.path)
    if not path.is_file():
        raise UserError(f"{path} does not exist: correct `annotations.path` of the round")
    require_sha256(path, this_round.annotations.sha256, "which `annotations` of the round names: correct one of them")
    return json_rows(path.read_bytes(), this_round.annotations.path), path.name
