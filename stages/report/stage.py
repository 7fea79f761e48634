"""What stage `report` runs with, and what others may ask of it."""

from __future__ import annotations

from stages.foundations.stage import About, Sections, Stage
from stages.report.params import ReportParams

STAGE = Stage(
    sections={"report": ReportParams},
    inputs={
        "metrics": "data/metrics",
        "curves": "data/curves",
        "verdicts": "data/verdicts",
        "responses": "data/responses",
        "problems": "data/problems",
        "web": "data/web",
        "demonstrations": "data/demonstrations",
        "schedules": "data/schedules",
    },
    outputs={"out": "reports/index.html", "result": "reports/result.json"},
    not_compared={"graph": "dvc.yaml"},
    also_depends_on=("params.yaml",),
)


def _contradictions(sections: Sections) -> list[str]:
    baseline, policies = sections["report"].baseline_policy, sections.get("policies")
    if not policies or baseline in policies:
        return []
    return [f"report.baseline_policy {baseline!r} must be one of policies"]


ABOUT = About(
    description="One page with curves, tables, drops and the parameters that made them.",
    contradictions=_contradictions,
    is_varied=True,
    lane="Evaluation",
)
