"""What a scorer says of an image for its prompt; higher is better, and scales differ between scorers."""

from __future__ import annotations

import pyarrow

from stages.foundations.tables.table import TEXT, TableSchema

IMAGE_SCORE = TableSchema(
    "image_score", {**dict.fromkeys(("prompt_id", "image_id", "scorer"), TEXT), "score": pyarrow.float64()}
)
