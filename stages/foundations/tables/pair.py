"""Two images of a prompt of which an annotator preferred one."""

from __future__ import annotations

import pyarrow

from stages.foundations.tables.table import TEXT, TableSchema

PAIR = TableSchema(
    "pair",
    {
        **dict.fromkeys(("prompt_id", "annotator_id", "better_image_id", "worse_image_id"), TEXT),
        "weight": pyarrow.float64(),
        "split": TEXT,
    },
)
