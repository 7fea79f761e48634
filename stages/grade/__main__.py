"""Verifies the stored responses of a policy and scores each benchmark.

    python -m stages.grade --params params.yaml --responses data/responses/sft.parquet \\
        --verdicts data/verdicts/sft.parquet --metrics data/metrics/grade/sft.json \\
        --headline data/headline/grade/sft

`--headline` is a folder with one file for each benchmark.
"""

from __future__ import annotations

from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from stages.foundations.attempt import attempt_at
from stages.foundations.metrics import write_metrics
from stages.foundations.params import load_section
from stages.foundations.paths import parse_paths
from stages.foundations.tables.response import RESPONSE
from stages.foundations.tables.table import read_table, require_rows, write_table
from stages.foundations.tables.verdict import VERDICT
from stages.grade.grading import judge_responses, refuse_failures
from stages.grade.params import GradeParams
from stages.grade.scores import headlines, score_benchmarks
from stages.observe.command import run_stage
from stages.observe.tracking import track


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    paths = parse_paths("grade", argv, __doc__, ["responses"], ["verdicts", "metrics", "headline"])
    params = load_section(paths.params, "grade", GradeParams)
    limits = load_section(paths.params, "verifier", VerifierParams)
    responses = require_rows(
        read_table(paths.responses, RESPONSE), paths.responses, "run the respond stage again"
    )
    values = {"grade": params.model_dump(), "verifier": limits.model_dump()}
    attempt = attempt_at(
        "grade", values, {"responses": paths.responses}, seed=params.seed, policy=paths.responses.stem
    )
    with track(attempt) as run:
        with run.phase("verify"), Verifier(limits) as verifier:
            verdicts = judge_responses(responses, verifier)
        refuse_failures(verdicts, limits)
        with run.phase("score"):
            metrics = score_benchmarks(responses, verdicts, params)
        write_table(verdicts, paths.verdicts, VERDICT)
        shown = {paths.headline / f"{name}.json": columns for name, columns in headlines(metrics).items()}
        write_metrics(paths.metrics, metrics, shown)
        run.summary(metrics)


if __name__ == "__main__":
    run_stage(main)
