"""What others may ask of stage `t2i_report`."""

from __future__ import annotations

from typing import Any

from stages.foundations.about import About


def _sections() -> dict[str, Any]:
    from stages.t2i_report.params import T2iReportParams

    return {"t2i_report": T2iReportParams}


ABOUT = About(sections=_sections, is_varied=True, lane="Report")
