"""Writes the page that a person looks at first: who is better, how it was learned, what was dropped and why.

    python -m stages.report --params params.yaml --graph dvc.yaml --metrics data/metrics --curves data/curves \\
        --verdicts data/verdicts --responses data/responses --problems data/problems --web data/web \\
        --demonstrations data/demonstrations --schedules data/schedules --out reports/index.html \\
        --result reports/result.json

The page loads nothing but `timings.js` beside it, which holds the run's times; they are no output of the graph.
"""

from __future__ import annotations

import json

from stages.foundations.files import write_text_atomically
from stages.foundations.params import load_section
from stages.foundations.paths import parse_paths
from stages.observe.command import run_stage
from stages.report.inputs import read_inputs
from stages.report.page import render_page
from stages.report.params import ReportParams
from stages.report.result import describe_result


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    folders = ["metrics", "curves", "verdicts", "responses", "problems", "web", "demonstrations", "schedules"]
    paths = parse_paths("report", argv, __doc__, ["graph", *folders], ["out", "result"])
    params = load_section(paths.params, "report", ReportParams)
    inputs = read_inputs(paths)
    write_text_atomically(paths.out, render_page(inputs, params))
    write_text_atomically(paths.result, json.dumps(describe_result(inputs, params), indent=2) + "\n")


if __name__ == "__main__":
    run_stage(main)
