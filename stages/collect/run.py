"""Collects one source of problems."""

from __future__ import annotations

from stages.collect.params import require_word
from stages.collect.rows import collect_source
from stages.foundations.job import Job
from stages.foundations.metrics import write_metrics
from stages.foundations.tables.dropped import DROPPED
from stages.foundations.tables.problem import PROBLEM
from stages.foundations.tables.table import write_table
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Reads the source and writes its problems and what was dropped, metrics last."""
    paths, source = job.paths, job.sections["sources"]
    require_word(job.item)
    described = {"source": job.item, **source.model_dump(mode="json", by_alias=True)}
    with track(job.attempt(described)) as run:
        problems, funnel = collect_source(job.item, source)
        write_table(problems, paths.problems, PROBLEM)
        write_table(funnel.dropped_frame(), paths.dropped, DROPPED)
        metrics = funnel.metrics(len(problems))
        run.summary(metrics)
        write_metrics(paths.metrics, metrics, {paths.headline: {"kept": "rows/kept"}})
