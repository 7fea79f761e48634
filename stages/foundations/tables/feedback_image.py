"""Two pictures from one noise: by the generator that a round started from, and by the one that it made."""

from __future__ import annotations

import pyarrow

from stages.foundations.tables.table import TEXT, TableSchema

QUANTITIES = ("reward", "held_out", "truth", "alignment", "fidelity", "saturation")
"""Measured of each picture; those of the truth are null where nobody knows it."""

FEEDBACK_IMAGE = TableSchema(
    "feedback_image",
    {
        "prompt_id": TEXT,
        "prompt": TEXT,
        "seed": pyarrow.int64(),
        **{
            f"{quantity}_{when}": pyarrow.float64() for quantity in QUANTITIES for when in ("before", "after")
        },
        "shown_for": TEXT,
        "png_before": pyarrow.binary(),
        "png_after": pyarrow.binary(),
    },
)
"""`shown_for`: `gain`, `loss` or `middle`, the rule by which the pair's pictures are kept; for the others it is empty,
and there are no pictures."""
