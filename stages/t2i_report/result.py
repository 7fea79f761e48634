"""The result of a text-to-image run as data: the same keys as in stages/report/result.py, beside the other page.

A scorer's score is the share of held-out pairs that it orders as people do. A gain of feedback is no fraction, but in
units of the judge that `metric` names: its `unit` is "score".
"""

from __future__ import annotations

from typing import Any

from stages.algorithms.estimators import Interval
from stages.t2i_report.choosing import LEARNT
from stages.t2i_report.findings import SCORERS, accuracies, feedback_findings
from stages.t2i_report.inputs import Inputs
from stages.t2i_report.params import T2iReportParams


def describe_result(inputs: Inputs, params: T2iReportParams) -> dict[str, Any]:
    """Accuracy of each scorer, the reward model last; the gain of each feedback round; hacked rounds as warnings."""
    scores, gains, warnings = [], [], []
    for name, metrics in inputs.with_metric(f"preference/accuracy/{LEARNT}").items():
        known = accuracies(metrics)
        own = known.pop(SCORERS[LEARNT])
        shared = {"benchmark": f"preferences {name}", "metric": "order as people have it"}
        shared |= {"problems": int(metrics["pairs/test"]), "unit": "pairs"}
        scores += [
            {"policy": scorer, **shared, **_numbers(found)}
            for scorer, found in (known | {SCORERS[LEARNT]: own}).items()
        ]
    controls, starts = inputs.params.get("refl_controls") or {}, inputs.params.get("refl_rounds") or {}
    for found in feedback_findings(inputs):
        if found.name in controls.values():
            continue
        gains.append(
            {
                "policy": found.name,
                "baseline": controls[found.name]
                if found.is_over_control
                else starts[found.name]["start_from"],
                "benchmark": "held-out prompts",
                "metric": found.judge,
                "unit": "score",
                **_numbers(found.difference),
                "verdict": found.verdict,
            }
        )
        warnings += [f"{found.name}: {line}" for line in found.sentences if line.startswith("Hacked")]
    return {
        "title": params.title,
        "page": "text_to_image.html",
        "scores": scores,
        "gains": gains,
        "warnings": warnings,
    }


def _numbers(interval: Interval) -> dict[str, float]:
    return {"value": interval.estimate, "low": interval.low, "high": interval.high}
