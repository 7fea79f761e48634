"""Recall and precision of a model as extractor on the books' pages: what to write as `extract_web.method.confidence`.

    python -m benchmarks.model_extraction --data DATA_FOLDER --params params.yaml [--every N]

The model reads every page, including those that rules can read, and rows of rules do not count; scored like
`benchmarks.extraction`. The books label their exercises well, so a page that no rule can read may be harder for a
model too.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.extraction import BOOKS, matches, pairs, require_pages, rows, told
from stages.engines.samplers.params import SamplerParams
from stages.extract_web.second_reading import read_again
from stages.extract_web.shards import Extracted
from stages.extract_web.stage import ExtractWebParams, ModelMethod
from stages.foundations.errors import UserError
from stages.foundations.params import load_section
from stages.foundations.tables import PAGE, write_table
from stages.observe.command import run_stage


def main(argv: Sequence[str] | None = None) -> None:
    """Prints one line per book, and the rejected rows."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.model_extraction",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--params", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1, help="take every Nth page")
    given = parser.parse_args(argv)
    require_pages(parser, given.data)
    params = load_section(given.params, "extract_web", ExtractWebParams).model_copy(update={"min_confidence": 0.0})
    if not isinstance(params.method, ModelMethod):
        raise UserError(f"{given.params}: extract_web.method.kind is {params.method.kind}: set it to model")
    sampler = load_section(given.params, "sampler", SamplerParams)
    for book in BOOKS:
        pages = rows(given.data / "pages" / f"{book}.pages.jsonl.gz")[:: given.every]
        names = {page["page"] for page in pages}
        gold = pairs(row for row in rows(given.data / "pages" / f"{book}.gold.jsonl.gz") if row["page"] in names)
        table = [
            {"page_id": page["page"], "url": "", "format": "html", "content": page["html"], "licence": ""}
            for page in pages
        ]
        unread = [{"reason": "no_exercise", "row_id": name, "row": json.dumps({"page_id": name})} for name in names]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pages.parquet"
            write_table(table, path, PAGE)
            first = Extracted([], unread, {"candidates/low_confidence": 0})
            found = read_again(path, first, params, params.method, sampler, Path(folder))
        predicted = pairs({**row, "page": row["page_id"]} for row in found.candidates)
        print(f"{book:24} {told(*matches(predicted, gold))} pages {len(pages)}", flush=True)
        print(f"{'':24} { ({name: count for name, count in found.counts.items() if name.startswith('model/')}) }")


if __name__ == "__main__":
    run_stage(main)
