"""Writes the page of the text-to-image branch: who was believed, which scorer agrees with people, what feedback did.

    python -m stages.t2i_report --params params.yaml --graph dvc.yaml --metrics data/metrics --curves data/curves \\
        --rankings data/preferences --pool data/images/pool --scores data/image_scores \\
        --feedback data/images/feedback --out reports/text_to_image.html --result reports/pictures.json

The page holds its pictures and loads nothing but `timings.js` beside it, which holds the run's times.
"""

from __future__ import annotations

from stages.foundations.files import write_json, write_text_atomically
from stages.foundations.params import load_section
from stages.foundations.paths import parse_paths
from stages.observe.command import run_stage
from stages.t2i_report.inputs import read_inputs
from stages.t2i_report.page import render_page
from stages.t2i_report.params import T2iReportParams
from stages.t2i_report.result import describe_result


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    folders = ["metrics", "curves", "rankings", "pool", "scores", "feedback"]
    paths = parse_paths("t2i_report", argv, __doc__, ["graph", *folders], ["out", "result"])
    params = load_section(paths.params, "t2i_report", T2iReportParams)
    inputs = read_inputs(paths)
    write_text_atomically(paths.out, render_page(inputs, params))
    write_json(paths.result, describe_result(inputs, params))


if __name__ == "__main__":
    run_stage(main)
