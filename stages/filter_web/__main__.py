"""Keeps the exercises from the web whose solutions may be trusted.

    python -m stages.filter_web --params params.yaml --candidates data/web/candidates.parquet \\
        --benchmarks data/problems/benchmarks.parquet --policy data/policies/base \\
        --solutions data/web/solutions.parquet --contamination data/web/contamination.parquet \\
        --dropped data/dropped/filter_web.parquet --metrics data/metrics/filter_web.json \\
        --headline data/headline/filter_web.json
"""

from __future__ import annotations

from stages.foundations.paths import parse_paths
from stages.observe.command import run_stage


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    paths = parse_paths(
        "filter_web",
        argv,
        __doc__,
        inputs=["candidates", "benchmarks", "policy"],
        outputs=["solutions", "contamination", "dropped", "metrics", "headline"],
    )
    from stages.filter_web.stage import run_filter_web

    run_filter_web(paths)


if __name__ == "__main__":
    run_stage(main)
