"""Runs the stage `extract_web`: reads a page table, or a folder of shards; writes candidates, drops and metrics."""

from __future__ import annotations

import shutil
from pathlib import Path

from stages.extract_web.shards import extract
from stages.extract_web.stage import ExtractWebParams, ModelMethod, PolicyModel
from stages.foundations.errors import UserError
from stages.foundations.files import write_metrics
from stages.foundations.job import Job
from stages.foundations.params import chosen
from stages.foundations.tables import CANDIDATE, DROPPED, write_table
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Reads the pages, writes candidates and dropped rows, metrics last; UserError when there is no page to read."""
    paths = job.paths
    params: ExtractWebParams = job.sections["extract_web"]
    inputs, shown, sampler = {"pages": paths.pages}, params.model_dump(), None
    if isinstance(params.method, ModelMethod) and isinstance(params.method.model, PolicyModel):
        # Not an input of the graph, but one of this attempt: pieces that another policy made must not be used.
        folder = inputs["policy"] = Path(params.method.model.folder)
        if not folder.is_dir():
            raise UserError(
                f"extract_web.method.model.folder {folder} is no folder: give that of a policy in transformers' layout"
            )
        sampler = job.sections["sampler"]
        # Only here, so that pieces of a run with rules alone do not depend on the sampler.
        shown["sampler"] = sampler.model_dump()
    attempt = job.attempt(shown, inputs)
    with track(attempt) as tracked:
        with tracked.phase("rules"):
            extracted = extract(paths.pages, params, attempt.pieces)
        match chosen("extract_web.method", params.method):
            case ModelMethod() as method:
                from stages.extract_web.second_reading import read_again

                with tracked.phase("model"):
                    extracted = read_again(paths.pages, extracted, params, method, sampler, attempt.pieces)
        write_table(extracted.candidates, paths.candidates, CANDIDATE)
        write_table(extracted.drops, paths.dropped, DROPPED)
        write_metrics(paths.metrics, extracted.counts, {paths.headline: {"kept": "candidates/all"}})
        tracked.summary(extracted.counts)
    shutil.rmtree(attempt.pieces, ignore_errors=True)
