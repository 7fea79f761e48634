"""Collects web pages from every source of the section `collect_web`."""

from __future__ import annotations

from stages.collect_web.collection import collect_pages
from stages.foundations.errors import UserError
from stages.foundations.job import Job
from stages.foundations.metrics import write_metrics
from stages.foundations.tables.dropped import DROPPED
from stages.foundations.tables.page import PAGE
from stages.foundations.tables.table import write_table
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Reads every source and writes its pages and what was dropped, metrics last; UserError when no page is usable."""
    paths = job.paths
    with track(job.attempt()) as run:
        pages, funnel, metrics = collect_pages(job.sections["collect_web"], job.seed)
        if not pages:
            raise UserError(f"collect_web found no usable page ({metrics}): correct `collect_web.sources`")
        write_table(pages, paths.pages, PAGE)
        write_table(funnel.dropped_frame(), paths.dropped, DROPPED)
        write_metrics(paths.metrics, metrics, {paths.headline: {"kept": "rows/kept"}})
        run.summary(metrics)
