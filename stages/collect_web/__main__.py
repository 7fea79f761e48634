"""Collects web pages from every source of the section `collect_web`.

    python -m stages.collect_web --params params.yaml --pages data/web/pages.parquet \\
        --dropped data/dropped/collect_web.parquet --metrics data/metrics/collect_web.json \\
        --headline data/headline/collect_web.json
"""

from __future__ import annotations

from stages.foundations.paths import parse_paths
from stages.foundations.tables.dropped import DROPPED
from stages.foundations.tables.page import PAGE
from stages.observe.command import run_stage


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    paths = parse_paths(
        "collect_web", argv, __doc__, inputs=[], outputs=["pages", "dropped", "metrics", "headline"]
    )
    from stages.collect_web.collection import collect_pages
    from stages.collect_web.params import CollectWebParams
    from stages.foundations.attempt import attempt_at
    from stages.foundations.errors import UserError
    from stages.foundations.metrics import write_metrics
    from stages.foundations.params import load_section, load_value
    from stages.foundations.tables.table import write_table
    from stages.observe.tracking import track

    params = load_section(paths.params, "collect_web", CollectWebParams)
    seed = load_value(paths.params, "seed")
    with track(attempt_at("collect_web", params.model_dump(), {}, seed=seed)) as run:
        pages, funnel, metrics = collect_pages(params, seed)
        if not pages:
            raise UserError(f"collect_web found no usable page ({metrics}): correct `collect_web.sources`")
        write_table(pages, paths.pages, PAGE)
        write_table(funnel.dropped_frame(), paths.dropped, DROPPED)
        write_metrics(paths.metrics, metrics, {paths.headline: {"kept": "rows/kept"}})
        run.summary(metrics)


if __name__ == "__main__":
    run_stage(main)
