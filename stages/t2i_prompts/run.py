"""Makes the prompts of the text-to-image branch and splits them."""

from __future__ import annotations

from stages.foundations.job import Job
from stages.foundations.metrics import write_metrics
from stages.foundations.tables.dropped import DROPPED
from stages.foundations.tables.prompt import PROMPT
from stages.foundations.tables.table import write_table
from stages.observe.tracking import track
from stages.t2i_prompts.prompts import make_prompts


def main(job: Job) -> None:
    """Makes the prompts and writes them and what was dropped, metrics last."""
    paths = job.paths
    with track(job.attempt()) as run:
        rows, funnel, metrics = make_prompts(job.sections["t2i_prompts"], job.seed)
        write_table(rows, paths.prompts, PROMPT)
        write_table(funnel.dropped_frame(), paths.dropped, DROPPED)
        write_metrics(paths.metrics, metrics, {paths.headline: {"kept": "rows/kept"}})
        run.summary(metrics)
