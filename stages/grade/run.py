"""Verifies the stored responses of a policy and scores each benchmark.

The headline is a folder with one file for each benchmark.
"""

from __future__ import annotations

from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from stages.foundations.job import Job
from stages.foundations.metrics import write_metrics
from stages.foundations.tables.response import RESPONSE
from stages.foundations.tables.table import read_table, require_rows, write_table
from stages.foundations.tables.verdict import VERDICT
from stages.grade.grading import judge_responses, refuse_failures
from stages.grade.params import GradeParams
from stages.grade.scores import headlines, score_benchmarks
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Verifies the responses, scores each benchmark and writes verdicts and scores, metrics last."""
    paths = job.paths
    params: GradeParams = job.sections["grade"]
    limits: VerifierParams = job.sections["verifier"]
    responses = require_rows(
        read_table(paths.responses, RESPONSE), paths.responses, "run the respond stage again"
    )
    with track(job.attempt(policy=job.item)) as run:
        with run.phase("verify"), Verifier(limits) as verifier:
            verdicts = judge_responses(responses, verifier)
        refuse_failures(verdicts, limits)
        with run.phase("score"):
            metrics = score_benchmarks(responses, verdicts, params)
        write_table(verdicts, paths.verdicts, VERDICT)
        shown = {paths.headline / f"{name}.json": columns for name, columns in headlines(metrics).items()}
        write_metrics(paths.metrics, metrics, shown)
        run.summary(metrics)
