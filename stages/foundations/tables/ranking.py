"""An annotator's ranking of the images of a task.

`task_id` names the images that were shown together: two annotators agree or not on one task. `ranks` are slots, 1 is
best and equal ranks are ties. `is_gold` marks the reference answer of a task, against which annotators are checked.
`annotator_id` is empty for an anonymous vote, which is a ranking of two; `weight` is 1 but for votes that come with
one. `seconds` is null where nobody took the time.
"""

from __future__ import annotations

import pyarrow

from stages.foundations.tables.table import TEXT, TableSchema

RANKING = TableSchema(
    "ranking",
    {
        **dict.fromkeys(("task_id", "prompt_id", "annotator_id", "source"), TEXT),
        "is_gold": pyarrow.bool_(),
        "image_ids": pyarrow.list_(TEXT),
        "ranks": pyarrow.list_(pyarrow.int32()),
        "weight": pyarrow.float64(),
        "seconds": pyarrow.float64(),
    },
)
