"""Writes the page of the text-to-image branch: trusted annotators, agreement of scorers, effect of feedback.

The page contains its pictures and loads only `timings.js` beside it, which has the run's times. Each section states
the data that a run lacks.

Beside the page is its result as data, with the keys of stages/report/run.py. A scorer's score is the share of held-out
pairs that it orders as people do. A gain of feedback is not a fraction, but in units of the judge that `metric` names:
its `unit` is "score".
"""

from __future__ import annotations

from typing import Any

from stages.foundations.files import write_json, write_text_atomically
from stages.foundations.job import Job
from stages.images.t2i_report.findings import LEARNT, SCORERS, PicturesRun, accuracies
from stages.images.t2i_report.sections import SECTIONS
from stages.pages.page import paragraph
from stages.pages.reading import numbers_of, report_page


def main(job: Job) -> None:
    """Writes the page, and beside it the result that the terminal shows."""
    run = PicturesRun(job.paths, job.sections["t2i_report"])
    write_text_atomically(job.paths.out, render_page(run))
    write_json(job.paths.result, describe_result(run))


def render_page(run: PicturesRun) -> str:
    """Returns the whole page as HTML. Equal runs give equal text; every text is escaped: prompts are hostile."""
    names = [", ".join(one.name for one in some) or "none" for some in (run.ranked, run.feedback)]
    about = paragraph("Ranking rounds {} · rounds of feedback {} · seed {}", *names, run.seed, kind="quiet")
    return report_page(run, run.report.title, about, SECTIONS)


def describe_result(run: PicturesRun) -> dict[str, Any]:
    """Returns each scorer's accuracy, the reward model last; each feedback round's gain; hacked rounds as warnings."""
    scores, gains, warnings = [], [], []
    for name, metrics in run.evaluated.items():
        known = accuracies(metrics)
        learnt = known.pop(SCORERS[LEARNT])
        shared = {"benchmark": f"preferences {name}", "metric": "order as people have it"}
        shared |= {"problems": int(metrics["pairs/test"]), "unit": "pairs"}
        scores += [
            {"policy": scorer, **shared, **numbers_of(accuracy)}
            for scorer, accuracy in (known | {SCORERS[LEARNT]: learnt}).items()
        ]
    starts = run.params.get("refl_rounds") or {}
    for one in run.feedback:
        # A control is a reference for others; its numbers are not a result.
        if one.name in run.controls.values():
            continue
        gains.append(
            {
                "policy": one.name,
                "baseline": run.controls[one.name] if one.is_over_control else starts[one.name]["start_from"],
                "benchmark": "held-out prompts",
                "metric": one.judge,
                "unit": "score",
                **numbers_of(one.difference),
                "verdict": one.verdict,
            }
        )
        warnings += [f"{one.name}: {line}" for line in one.sentences if line.startswith("Hacked")]
    return {
        "title": run.report.title,
        "page": "text_to_image.html",
        "scores": scores,
        "gains": gains,
        "warnings": warnings,
    }
