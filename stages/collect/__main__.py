"""Collects one source of problems.

    python -m stages.collect --source gsm8k_train --params params.yaml \\
        --problems data/problems/collected/gsm8k_train.parquet --dropped data/dropped/collect__gsm8k_train.parquet \\
        --metrics data/metrics/collect/gsm8k_train.json --headline data/headline/collect/gsm8k_train.json
"""

from __future__ import annotations

from stages.collect.params import load_source
from stages.collect.rows import collect_source
from stages.foundations.attempt import attempt_at
from stages.foundations.metrics import write_metrics
from stages.foundations.paths import parse_paths
from stages.foundations.tables.dropped import DROPPED
from stages.foundations.tables.problem import PROBLEM
from stages.foundations.tables.table import write_table
from stages.observe.command import run_stage
from stages.observe.tracking import track


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    paths = parse_paths(
        "collect",
        argv,
        __doc__,
        inputs=[],
        outputs=["problems", "dropped", "metrics", "headline"],
        options=["source"],
    )
    source = load_source(paths.params, paths.source)
    described = {"source": paths.source, **source.model_dump(mode="json", by_alias=True)}
    with track(attempt_at("collect", described, inputs={})) as run:
        problems, funnel = collect_source(paths.source, source)
        write_table(problems, paths.problems, PROBLEM)
        write_table(funnel.dropped_frame(), paths.dropped, DROPPED)
        metrics = funnel.metrics(len(problems))
        run.summary(metrics)
        write_metrics(paths.metrics, metrics, {paths.headline: {"kept": "rows/kept"}})


if __name__ == "__main__":
    run_stage(main)
