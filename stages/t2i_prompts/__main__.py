"""Makes the prompts of the text-to-image branch and splits them.

    python -m stages.t2i_prompts --params params.yaml --prompts data/t2i/prompts.parquet \\
        --dropped data/dropped/t2i_prompts.parquet --metrics data/metrics/t2i_prompts.json \\
        --headline data/headline/t2i_prompts.json
"""

from __future__ import annotations

from stages.foundations.attempt import attempt_at
from stages.foundations.metrics import write_metrics
from stages.foundations.params import load_section, load_value
from stages.foundations.paths import parse_paths
from stages.foundations.tables.dropped import DROPPED
from stages.foundations.tables.prompt import PROMPT
from stages.foundations.tables.table import write_table
from stages.observe.command import run_stage
from stages.observe.tracking import track
from stages.t2i_prompts.params import T2iPromptsParams
from stages.t2i_prompts.prompts import make_prompts


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    paths = parse_paths(
        "t2i_prompts", argv, __doc__, inputs=[], outputs=["prompts", "dropped", "metrics", "headline"]
    )
    params = load_section(paths.params, "t2i_prompts", T2iPromptsParams)
    seed = load_value(paths.params, "seed")
    with track(attempt_at("t2i_prompts", params.model_dump(), {}, seed=seed)) as run:
        rows, funnel, metrics = make_prompts(params, seed)
        write_table(rows, paths.prompts, PROMPT)
        write_table(funnel.dropped_frame(), paths.dropped, DROPPED)
        write_metrics(paths.metrics, metrics, {paths.headline: {"kept": "rows/kept"}})
        run.summary(metrics)


if __name__ == "__main__":
    run_stage(main)
