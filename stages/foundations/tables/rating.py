"""What an annotator says of one image of a task, in points from 1 to 7."""

from __future__ import annotations

import pyarrow

from stages.foundations.tables.table import TEXT, TableSchema

ASPECTS = ("overall", "alignment", "fidelity")
"""The three ratings of an image; null where the annotator gave none."""
ISSUES = ("repeated_generation", "body_problem", "blur", "discomfort", "sexual", "violent", "defamatory")
"""What may be wrong with an image (ImageReward, arXiv 2304.05977, section 2.2)."""
RATING = TableSchema(
    "rating",
    {
        **dict.fromkeys(("task_id", "prompt_id", "image_id", "annotator_id", "source"), TEXT),
        **dict.fromkeys(ASPECTS, pyarrow.float64()),
        "issues": pyarrow.list_(TEXT),
        "seconds": pyarrow.float64(),
        "created": TEXT,
    },
)
