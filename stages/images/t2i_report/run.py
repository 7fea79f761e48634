"""Writes the page of the text-to-image branch: trusted annotators, agreement of scorers, effect of feedback.

The page contains its pictures and loads only `timings.js` beside it, which has the run's times. Each section states
the data that a run lacks.

Beside the page is its result as data, with the keys of stages/report/run.py. A scorer's score is the share of held-out
pairs that it orders as people do. A gain of feedback is not a fraction, but in units of the judge that `metric` names:
its `unit` is "score".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages.algorithms.estimators import Interval
from stages.foundations.files import write_json, write_text_atomically
from stages.foundations.job import Job
from stages.images.t2i_report.choosing import (
    LEARNT,
    Strip,
    best_and_worst,
    change_pictures,
    changes,
    disagreements,
    embed,
    judge_of,
)
from stages.images.t2i_report.findings import (
    SCORERS,
    Inputs,
    RankedRound,
    accuracies,
    accuracy_chart,
    accuracy_sentence,
    agreement_chart,
    feedback_charts,
    feedback_findings,
    gains_of,
    generator_table,
    read_inputs,
    scorer_tables,
)
from stages.images.t2i_report.stage import T2iReportParams
from stages.pages.page import fill_page, graph_lanes, visible_text
from stages.pages.reading import data_funnels, loss_charts, ways


def main(job: Job) -> None:
    """Writes the page, and beside it the result that the terminal shows."""
    params: T2iReportParams = job.sections["t2i_report"]
    inputs = read_inputs(job.paths)
    write_text_atomically(job.paths.out, render_page(inputs, params))
    write_json(job.paths.result, describe_result(inputs, params))


FOLDER = Path(__file__).parent
CHARACTERS = 400
"""Longest prompt, name or reason from outside that is shown."""
ANNOTATOR_ROWS = 60
"""Rows of the table of annotators: dropped ones first."""


def render_page(inputs: Inputs, params: T2iReportParams) -> str:
    """Returns the whole page as HTML. Equal arguments give equal text; every text is escaped: prompts are hostile."""
    # Jinja escapes markup; `visible_text` writes out characters that a browser obeys, such as a change of direction.
    filters = {
        "visible": lambda text: visible_text(str(text), CHARACTERS),
        "signed": lambda number: f"{number:+.3f}".replace("-", "−"),
    }
    return fill_page(FOLDER, _content(inputs, params), filters, has_times=True)


def _content(inputs: Inputs, params: T2iReportParams) -> dict[str, Any]:
    galleries = [_gallery(ranked, params) for ranked in inputs.ranked]
    controls_of = inputs.params.get("refl_controls") or {}
    # A control's pictures show the effect of training alone: its numbers state that, and a gallery adds nothing.
    feedback = {name: table for name, table in inputs.feedback.items() if name not in controls_of.values()}
    shown = {name: changes(name, table, params.shown_changes) for name, table in feedback.items()}
    pngs: dict[str, bytes] = {}
    for ranked, gallery in zip(inputs.ranked, galleries, strict=True):
        # Only shown pictures are read completely: a pool has tens of thousands.
        pngs |= ranked.pictures(_images(gallery["best_and_worst"] + gallery["disagreements"]))
    for name, table in feedback.items():
        wanted = _images([strip for strips in shown[name].values() for strip in strips])
        pngs |= {image: png for image, png in change_pictures(name, table).items() if image in wanted}
    evaluated = inputs.with_metric(f"preference/accuracy/{LEARNT}")
    return {
        "title": params.title,
        "notes": [part.strip() for part in params.notes.split("\n\n") if part.strip()],
        "seed": inputs.seed,
        "generators": inputs.with_metric("test/truth"),
        "galleries": galleries,
        "alphas": inputs.with_metric("agreement/alpha_rank"),
        "evaluated": [_evaluated(name, metrics) for name, metrics in evaluated.items()],
        "feedback": feedback_findings(inputs),
        "controlled": set(controls_of.values()),
        "feedback_charts": feedback_charts(inputs.with_column("validation/reward")),
        "losses": loss_charts(inputs.curves, "", "update"),
        "changes": shown,
        "judges": {name: judge_of(table).replace("_", "-") for name, table in feedback.items()},
        "pictures": embed(pngs, params.picture_side, params.max_pictures_mib),
        "funnels": data_funnels(inputs.stages, inputs.metrics),
        "ways": ways(inputs.stages, inputs.metrics, inputs.params),
        "graph": graph_lanes(inputs.stages, ()),
        "addresses": [stage.address for stage in inputs.stages],
        "metrics": inputs.metrics,
        "params_text": inputs.params_text,
    }


def _images(strips: list[Strip]) -> set[str]:
    return {picture.image for strip in strips for picture in strip.pictures}


def _gallery(ranked: RankedRound, params: T2iReportParams) -> dict[str, Any]:
    """People's judgements in a ranking round, and the pictures that are shown of it."""
    # False sorts before True: dropped annotators come first, and the table cuts off kept ones.
    annotators = ranked.annotators.sort_values(["is_kept", "annotator_id"], kind="stable")
    return {
        "name": ranked.name,
        "annotators": annotators.head(ANNOTATOR_ROWS).to_dict("records"),
        "more_annotators": max(0, len(annotators) - ANNOTATOR_ROWS),
        "dropped": annotators[~annotators["is_kept"]].to_dict("records"),
        "chart": agreement_chart(ranked.name, ranked.annotators),
        "best_and_worst": best_and_worst(ranked, params.shown_prompts),
        "disagreements": disagreements(ranked, params.shown_disagreements),
        "generators": generator_table(ranked).reset_index().to_dict("records"),
        "scorers": [title for name, title in SCORERS.items() if name in ranked.scores],
    }


def _evaluated(name: str, metrics: dict[str, float]) -> dict[str, Any]:
    known = accuracies(metrics)
    return {
        "name": name,
        "own": known[SCORERS[LEARNT]],
        "sentence": accuracy_sentence(metrics),
        "chart": accuracy_chart(name, known, SCORERS[LEARNT]),
        "tables": scorer_tables(metrics),
        "gains": gains_of(metrics),
    }


def describe_result(inputs: Inputs, params: T2iReportParams) -> dict[str, Any]:
    """Returns each scorer's accuracy, the reward model last; each feedback round's gain; hacked rounds as warnings."""
    scores, gains, warnings = [], [], []
    for name, metrics in inputs.with_metric(f"preference/accuracy/{LEARNT}").items():
        known = accuracies(metrics)
        learnt = known.pop(SCORERS[LEARNT])
        shared = {"benchmark": f"preferences {name}", "metric": "order as people have it"}
        shared |= {"problems": int(metrics["pairs/test"]), "unit": "pairs"}
        scores += [
            {"policy": scorer, **shared, **_numbers(accuracy)}
            for scorer, accuracy in (known | {SCORERS[LEARNT]: learnt}).items()
        ]
    controls, starts = inputs.params.get("refl_controls") or {}, inputs.params.get("refl_rounds") or {}
    for one in feedback_findings(inputs):
        # A control is a reference for others; its numbers are not a result.
        if one.name in controls.values():
            continue
        gains.append(
            {
                "policy": one.name,
                "baseline": controls[one.name] if one.is_over_control else starts[one.name]["start_from"],
                "benchmark": "held-out prompts",
                "metric": one.judge,
                "unit": "score",
                **_numbers(one.difference),
                "verdict": one.verdict,
            }
        )
        warnings += [f"{one.name}: {line}" for line in one.sentences if line.startswith("Hacked")]
    return {"title": params.title, "page": "text_to_image.html", "scores": scores, "gains": gains, "warnings": warnings}


def _numbers(interval: Interval) -> dict[str, float]:
    return {"value": interval.estimate, "low": interval.low, "high": interval.high}
