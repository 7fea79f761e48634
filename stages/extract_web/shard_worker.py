"""One shard's process: its tables first, its metrics last, so that their presence means success.

    python -m stages.extract_web.shard_worker REQUEST

The request is JSON: see `shard_processes._start`.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

from stages.foundations.tables.candidate import CANDIDATE
from stages.foundations.tables.dropped import DROPPED
from stages.foundations.tables.page import PAGE
from stages.observe.lifetime import die_with_parent


def main(request: str) -> None:
    """A shard that cannot be read, or needs too much memory, is told in place of its metrics."""
    asked = json.loads(request)
    die_with_parent()
    if os.getppid() != asked["parent"]:
        return
    resource.setrlimit(resource.RLIMIT_AS, (asked["address_space_bytes"],) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from stages.extract_web.page_table import extract
    from stages.extract_web.params import ExtractWebParams
    from stages.foundations.errors import UserError
    from stages.foundations.files import write_json
    from stages.foundations.tables.table import read_table, write_table

    candidates, dropped, metrics = map(Path, asked["outputs"])
    params = ExtractWebParams.model_validate(asked["params"])
    try:
        frame = read_table(Path(asked["shard"]), PAGE)
        found, funnel, counts = extract(frame, params, processes=1)
        write_table(found, candidates, CANDIDATE)
        write_table(funnel.dropped_frame(), dropped, DROPPED)
        write_json(metrics, {"metrics": counts})
    except (UserError, MemoryError, ValueError, OSError) as error:
        write_json(metrics, {"failure": f"{type(error).__name__}: {error}"[:500]})


if __name__ == "__main__":
    main(sys.argv[1])
