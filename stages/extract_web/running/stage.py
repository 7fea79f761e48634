"""The stage: a page table, or a folder of shards, to candidates, drops and metrics."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from stages.extract_web.params import ExtractWebParams, LocalEngine, RayEngine
from stages.extract_web.running.page_table import extract
from stages.extract_web.running.shards import cut_into_shards, extract_shards, find_shards, rows_of
from stages.foundations.errors import UserError
from stages.foundations.files import sha256_of
from stages.foundations.funnel import Funnel
from stages.foundations.scratch import state_folder
from stages.foundations.tables.candidate import CANDIDATE
from stages.foundations.tables.dropped import DROPPED
from stages.foundations.tables.page import PAGE
from stages.foundations.tables.table import read_table, require_rows, write_table


def run(pages: Path, candidates: Path, dropped: Path, params: ExtractWebParams) -> dict[str, int]:
    """Writes both tables and returns the metrics; UserError when there is no page to read."""
    work = state_folder() / "scratch" / "extract_web-shards"
    if pages.is_dir():
        return _run_shards(pages, find_shards(pages), work, candidates, dropped, params)
    match params.engine:
        case RayEngine(pages_per_shard=pages_per_shard):
            cut = work / f"cut-{sha256_of(pages)[:16]}-{pages_per_shard}"
            shards = cut_into_shards(pages, cut, pages_per_shard)
            counts = _run_shards(pages, shards, work, candidates, dropped, params)
            shutil.rmtree(cut)
        case LocalEngine(processes=processes):
            frame = require_rows(read_table(pages, PAGE), pages, "check the sources of `collect_web`")
            found, funnel, counts = extract(frame, params, processes)
            write_table(found, candidates, CANDIDATE)
            write_table(funnel.dropped_frame(), dropped, DROPPED)
    return counts


def _run_shards(
    pages: Path, shards: Sequence[Path], work: Path, candidates: Path, dropped: Path, params: ExtractWebParams
) -> dict[str, int]:
    """Shards that failed are rows of the dropped table; UserError only when all did."""
    results = extract_shards(shards, work, params)
    failed = [result for result in results if result.failure]
    if len(failed) == len(results):
        raise UserError(
            f"extract_web: every shard of {pages} failed, the first: {failed[0].name}: {failed[0].failure}"
        )
    poisoned = Funnel("extract_web", len(failed))
    for result in failed:
        poisoned.drop({"shard_id": result.name}, "shard_failed", result.failure)
    counts: Counter[str] = Counter({"shards/all": len(results), "shards/failed": len(failed)})
    for result in results:
        counts.update(result.metrics)
    write_table(list(rows_of(results, CANDIDATE)), candidates, CANDIDATE)
    drops = [*rows_of(results, DROPPED), *poisoned.dropped_frame().to_dict("records")]
    write_table(drops, dropped, DROPPED)
    return dict(counts)
