"""Reads web pages and writes the exercises found in them: problem, worked solution, short answer.

    python -m stages.extract_web --params params.yaml --pages data/web/pages.parquet \\
        --candidates data/web/candidates.parquet --dropped data/dropped/extract_web.parquet \\
        --metrics data/metrics/extract_web.json
"""

from __future__ import annotations

from stages.foundations.command import parse_paths, run_stage


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    paths = parse_paths(
        "extract_web", argv, __doc__, inputs=["pages"], outputs=["candidates", "dropped", "metrics"]
    )
    from stages.extract_web.extraction import extract
    from stages.extract_web.params import ExtractWebParams
    from stages.foundations.metrics import write_metrics
    from stages.foundations.params import load_section
    from stages.foundations.tables import read_table, require_rows, write_table
    from stages.foundations.tracking import track

    params = load_section(paths.params, "extract_web", ExtractWebParams)
    pages = require_rows(read_table(paths.pages, "page"), paths.pages, "check the sources of `collect_web`")
    with track("extract_web", params.model_dump(), {"pages": paths.pages}) as run:
        candidates, funnel, metrics = extract(pages, params)
        write_table(candidates, paths.candidates, "candidate")
        write_table(funnel.dropped_frame(), paths.dropped, "dropped")
        write_metrics(paths.metrics, metrics)
        run.summary(metrics)


if __name__ == "__main__":
    run_stage(main)
