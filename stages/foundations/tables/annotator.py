"""What is known of an annotator, and whether the work is kept.

A measure is null where there was too little to measure it. `reason` names every rule that the annotator breaks.
"""

from __future__ import annotations

import pyarrow

from stages.foundations.tables.table import TEXT, TableSchema

ANNOTATOR = TableSchema(
    "annotator",
    {
        "annotator_id": TEXT,
        "rankings": pyarrow.int32(),
        "agreement": pyarrow.float64(),
        "agreement_pairs": pyarrow.int32(),
        "consistency": pyarrow.float64(),
        "gold_accuracy": pyarrow.float64(),
        "median_seconds": pyarrow.float64(),
        "is_kept": pyarrow.bool_(),
        "reason": TEXT,
    },
)
