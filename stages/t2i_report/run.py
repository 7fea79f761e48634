"""Writes the page of the text-to-image branch: who was believed, which scorer agrees with people, what feedback did.

The page holds its pictures and loads nothing but `timings.js` beside it, which holds the run's times.
"""

from __future__ import annotations

from stages.foundations.files import write_json, write_text_atomically
from stages.foundations.job import Job
from stages.t2i_report.inputs import read_inputs
from stages.t2i_report.page import render_page
from stages.t2i_report.params import T2iReportParams
from stages.t2i_report.result import describe_result


def main(job: Job) -> None:
    """Writes the page, and beside it the result that the terminal shows."""
    params: T2iReportParams = job.sections["t2i_report"]
    inputs = read_inputs(job.paths)
    write_text_atomically(job.paths.out, render_page(inputs, params))
    write_json(job.paths.result, describe_result(inputs, params))
