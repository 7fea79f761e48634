"""The stage around the intake: shards and a foreign list in, the pool's shards out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stages.engines.images.params import ImageParams, RankingRoundParams
from stages.engines.images.shards import write_shards
from stages.foundations.errors import UserError
from stages.foundations.job import Job
from stages.foundations.metrics import write_metrics
from stages.foundations.tables.dropped import DROPPED
from stages.foundations.tables.prompt import PROMPT
from stages.foundations.tables.table import read_table, write_table
from stages.image_pool.taking_in import Intake, foreign_entries, generated_entries
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Decodes the round's images, writes the pool and the dropped rows, metrics last; UserError when none is left."""
    paths = job.paths
    params: ImageParams = job.sections["images"]
    own: RankingRoundParams = job.sections["ranking_rounds"]
    prompts = read_table(paths.prompts, PROMPT)
    with track(job.attempt(round=job.item)) as run:
        intake = Intake(dict(zip(prompts["prompt_id"], prompts["prompt"], strict=True)), params)
        sources = [generated_entries(paths.generated)]
        if own.foreign is not None:
            sources.append(foreign_entries(own.foreign, int(params.max_file_mib * 2**20)))
        with_images: set[str] = set()

        def rows() -> Iterator[dict[str, Any]]:
            for row in intake.rows(*sources):
                with_images.add(row["prompt_id"])
                yield row

        kept = write_shards(rows(), paths.pool, params.images_per_shard)
        counts = intake.funnel.metrics(kept)
        if not kept:
            raise UserError(
                f"round `{job.item}` has no image ({counts}): name it as `ranking_round` of a generator, or give "
                f"ranking_rounds.{job.item}.foreign"
            )
        metrics = {**counts, **intake.counts, "prompts/with_images": len(with_images)}
        write_table(intake.funnel.dropped_frame(), paths.dropped, DROPPED)
        write_metrics(paths.metrics, metrics, {paths.headline: {"kept": "rows/kept"}})
        run.summary(metrics)
