"""A page table to candidates, drops and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas

from stages.extract_web.params import ExtractWebParams
from stages.extract_web.running.page_readers import PageLimits, read_pages
from stages.foundations.funnel import Funnel
from stages.observe.progress import progress


@dataclass(frozen=True, slots=True)
class Extracted:
    """Rows of the tables `candidate` and `dropped`, and metrics."""

    candidates: list[dict[str, Any]]
    drops: list[dict[str, Any]]
    counts: dict[str, int]


def extract(
    pages: pandas.DataFrame, params: ExtractWebParams, processes: int
) -> tuple[list[dict[str, Any]], Funnel, dict[str, int]]:
    """All candidates in page order, the funnel, and metrics. `processes` does not change the result.

    The funnel counts pages; candidates of too little confidence are kept aside in it and are a metric of their own.
    """
    records = [
        {name: value if isinstance(value, str) else None for name, value in row.items()}
        for row in pages.to_dict("records")
    ]
    funnel = Funnel("extract_web", len(records))
    doubtful: list[dict[str, Any]] = []
    candidates: list[dict[str, Any]] = []
    limits = PageLimits(params.max_answer_characters, params.page_timeout_seconds, params.page_memory_mib)
    whole = [row for row in records if not _missing(row)]
    outcomes = progress(read_pages(whole, limits, processes), len(whole), "extracting", "pages")
    for page in records:
        missing = _missing(page)
        found, reason, detail = ([], "row_malformed", f"no text in {missing}") if missing else next(outcomes)
        for row in (_table_row(row, params.shared_instructions) for row in found):
            (candidates if row["confidence"] >= params.min_confidence else doubtful).append(row)
        if reason:
            known = {name: page[name] for name in ("page_id", "url", "format")}
            funnel.drop({**known, "beginning": (page["content"] or "")[:500]}, reason, detail)
    kept = len(records) - len(funnel.dropped_frame())
    metrics = {
        **funnel.metrics(kept),
        "candidates/low_confidence": len(doubtful),
        "candidates/all": len(candidates),
        "candidates/with_solution": sum(row["solution"] is not None for row in candidates),
        "candidates/with_answer": sum(row["answer"] is not None for row in candidates),
    }
    for row in doubtful:
        funnel.drop(row, "low_confidence", f"{row['confidence']:g}: {row['evidence']}")
    return candidates, funnel, metrics


def _missing(page: dict[str, Any]) -> list[str]:
    return [name for name in ("page_id", "format", "content") if page[name] is None]


def _table_row(candidate: dict[str, Any], shared_instructions: str) -> dict[str, Any]:
    """The candidate as the table has it: with the instructions in front of the problem, or without them."""
    row = {name: value for name, value in candidate.items() if name != "instructions"}
    if candidate["instructions"] and shared_instructions == "prepended":
        row["problem"] = f"{candidate['instructions']}\n{candidate['problem']}"
    return row
