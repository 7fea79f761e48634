"""What stage `t2i_report` runs with, and what others may ask of it."""

from __future__ import annotations

from stages.foundations.stage import About, Stage
from stages.t2i_report.params import T2iReportParams

STAGE = Stage(
    sections={"t2i_report": T2iReportParams},
    inputs={
        "metrics": "data/metrics",
        "curves": "data/curves",
        "rankings": "data/preferences",
        "pool": "data/images/pool",
        "scores": "data/image_scores",
        "feedback": "data/images/feedback",
    },
    outputs={"out": "reports/text_to_image.html", "result": "reports/pictures.json"},
    not_compared={"graph": "dvc.yaml"},
    also_depends_on=("params.yaml",),
    foreach="t2i",
)


ABOUT = About(
    description="One page with pictures, who was believed, which scorer agrees with people, and what feedback did.",
    is_varied=True,
    lane="Report",
)
