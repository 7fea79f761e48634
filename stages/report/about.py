"""What others may ask of stage `report`."""

from __future__ import annotations

from typing import Any

from stages.foundations.about import About, Sections


def _sections() -> dict[str, Any]:
    from stages.report.params import ReportParams

    return {"report": ReportParams}


def _contradictions(sections: Sections) -> list[str]:
    baseline, policies = sections["report"].baseline_policy, sections.get("policies")
    if not policies or baseline in policies:
        return []
    return [f"report.baseline_policy {baseline!r} must be one of policies"]


ABOUT = About(sections=_sections, contradictions=_contradictions, is_varied=True, lane="Evaluation")
