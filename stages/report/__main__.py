"""Writes the page that a person looks at first: who is better, how it was learned, what was dropped and why.

    python -m stages.report --params params.yaml --graph dvc.yaml --metrics data/metrics --curves data/curves \\
        --verdicts data/verdicts --responses data/responses --problems data/problems --web data/web \\
        --demonstrations data/demonstrations --schedules data/schedules --out reports/index.html

The page loads nothing but `timings.js` beside it, which holds the run's times; they are no output of the graph.
"""

from __future__ import annotations

from stages.foundations.files import write_text_atomically
from stages.foundations.params import load_section
from stages.foundations.paths import parse_paths
from stages.observe.command import run_stage
from stages.report.inputs import read_inputs
from stages.report.page import render_page
from stages.report.params import ReportParams


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    folders = ["metrics", "curves", "verdicts", "responses", "problems", "web", "demonstrations", "schedules"]
    paths = parse_paths("report", argv, __doc__, ["graph", *folders], ["out"])
    params = load_section(paths.params, "report", ReportParams)
    page = render_page(read_inputs(paths), params)
    write_text_atomically(paths.out, page)


if __name__ == "__main__":
    run_stage(main)
