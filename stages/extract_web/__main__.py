"""Reads web pages and writes the exercises found in them: problem, worked solution, short answer.

    python -m stages.extract_web --params params.yaml --pages data/web/pages.parquet \\
        --candidates data/web/candidates.parquet --dropped data/dropped/extract_web.parquet \\
        --metrics data/metrics/extract_web.json --headline data/headline/extract_web.json

`--pages` may be a folder of Parquet shards: see shards.py.
"""

from __future__ import annotations

from stages.foundations.paths import parse_paths
from stages.observe.command import run_stage


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    paths = parse_paths(
        "extract_web",
        argv,
        __doc__,
        inputs=["pages"],
        outputs=["candidates", "dropped", "metrics", "headline"],
    )
    from stages.extract_web.running.stage import run_extract_web

    run_extract_web(paths)


if __name__ == "__main__":
    run_stage(main)
