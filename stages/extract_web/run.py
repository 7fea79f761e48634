"""Runs the stage `extract_web`: reads a page table, or a folder of shards; writes candidates, drops and metrics."""

from __future__ import annotations

import shutil

from stages.extract_web.shards import extract
from stages.extract_web.stage import ExtractWebParams
from stages.foundations.files import write_metrics
from stages.foundations.job import Job
from stages.foundations.tables import CANDIDATE, DROPPED, write_table
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Reads the pages, writes candidates and dropped rows, metrics last; UserError when there is no page to read."""
    paths = job.paths
    params: ExtractWebParams = job.sections["extract_web"]
    attempt = job.attempt(params.model_dump(), {"pages": paths.pages})
    with track(attempt) as tracked:
        candidates, drops, counts = extract(paths.pages, params, attempt.pieces)
        write_table(candidates, paths.candidates, CANDIDATE)
        write_table(drops, paths.dropped, DROPPED)
        write_metrics(paths.metrics, counts, {paths.headline: {"kept": "candidates/all"}})
        tracked.summary(counts)
    shutil.rmtree(attempt.pieces, ignore_errors=True)
