"""Writes the page that a person looks at first: who is better, how it was learned, what was dropped and why.

The page loads nothing but `timings.js` beside it, which holds the run's times; they are no output of the graph."""

from __future__ import annotations

import json

from stages.foundations.files import write_text_atomically
from stages.foundations.job import Job
from stages.report.inputs import read_inputs
from stages.report.page import render_page
from stages.report.params import ReportParams
from stages.report.result import describe_result


def main(job: Job) -> None:
    """Writes the page, and beside it the result that the terminal shows."""
    params: ReportParams = job.sections["report"]
    inputs = read_inputs(job.paths)
    write_text_atomically(job.paths.out, render_page(inputs, params))
    write_text_atomically(job.paths.result, json.dumps(describe_result(inputs, params), indent=2) + "\n")
