"""A picture with the prompt that it was made of, as PNG inside the table."""

from __future__ import annotations

import pyarrow

from stages.foundations.tables.table import TEXT, TableSchema

IMAGE = TableSchema(
    "image",
    {
        "image_id": TEXT,
        "prompt_id": TEXT,
        "prompt": TEXT,
        "generator": TEXT,
        "seed": pyarrow.int64(),
        "width": pyarrow.int32(),
        "height": pyarrow.int32(),
        "file_sha256": TEXT,
        "source": TEXT,
        "licence": TEXT,
        "png": pyarrow.binary(),
    },
)
"""`image_id` is the hash of the decoded pixels (stages/engines/images/shards.py), `file_sha256` that of the file that
came in. `seed` is -1 where nobody knows it: pandas would make floats of a column with nulls, and lose digits."""
