"""The stage around the filter: tables in, tables out."""

from __future__ import annotations

import shutil

from stages.engines.trainers.one_rank import launched_ranks
from stages.filter_web.filtering import Rows, filter_candidates
from stages.filter_web.stage import FilterWebParams, NoAgreement, PolicyAgreement
from stages.foundations.files import write_metrics
from stages.foundations.job import Job
from stages.foundations.params import chosen
from stages.foundations.tables import (
    BENCHMARK,
    CANDIDATE,
    CONTAMINATION,
    DROPPED,
    PROBLEM,
    Funnel,
    read_table,
    require_rows,
    write_table,
)
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Reads the candidates and benchmarks, filters, writes solutions and dropped rows, metrics last.

    Nothing left is an error of `demonstrate`, which knows whether other sources make up for it.
    """
    paths = job.paths
    params: FilterWebParams = job.sections["filter_web"]
    candidates = require_rows(
        read_table(paths.candidates, CANDIDATE), paths.candidates, "no page of `collect_web` holds an exercise"
    )
    benchmarks = read_table(paths.benchmarks, BENCHMARK)
    agreement_metrics: dict[str, int] = {}

    def agree(rows: Rows, funnel: Funnel) -> Rows:
        match chosen("filter_web.agreement", params.agreement):
            case NoAgreement():
                return rows
            case PolicyAgreement() as agreement:
                from stages.filter_web.agreement import keep_agreeing

                with run.phase("agreement"):
                    kept, found = keep_agreeing(rows, funnel, agreement, paths.params, paths.policy, attempt, ranks)
                agreement_metrics.update(found)
                return kept

    attempt = job.attempt()
    with launched_ranks() as ranks, track(attempt) as run:
        with run.phase("rules"):
            rows, hits, funnel = filter_candidates(candidates, benchmarks, params.rules, agree)
        if ranks.rank != 0:
            return
        metrics = funnel.metrics(len(rows)) | agreement_metrics
        write_table(rows, paths.solutions, PROBLEM)
        write_table(hits, paths.contamination, CONTAMINATION)
        write_table(funnel.dropped_frame(), paths.dropped, DROPPED)
        write_metrics(paths.metrics, metrics, {paths.headline: {"kept": "rows/kept"}})
        run.summary(metrics)
        shutil.rmtree(attempt.pieces, ignore_errors=True)
