"""Collects web pages from every source of the section `collect_web`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stages.collect_web.generated_pages import arithmetic_pages, digit_pages
from stages.collect_web.sources import ReadPage, read_folder, read_jsonl, read_listed, read_warc
from stages.collect_web.stage import (
    ArithmeticPages,
    CollectWebParams,
    DigitPages,
    FolderPages,
    JsonlPages,
    ListedPages,
    WarcPages,
    WebSource,
)
from stages.foundations.errors import UserError
from stages.foundations.files import write_metrics
from stages.foundations.job import Job
from stages.foundations.tables import DROPPED, PAGE, Funnel, write_table
from stages.observe.progress import progress
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Reads every source and writes its pages and the drops, metrics last; UserError when no page is usable."""
    paths = job.paths
    with track(job.attempt()) as run:
        pages, funnel, metrics = collect_pages(job.sections["collect_web"], job.seed)
        if not pages:
            raise UserError(f"collect_web found no usable page ({metrics}): correct `collect_web.sources`")
        write_table(pages, paths.pages, PAGE)
        write_table(funnel.dropped_frame(), paths.dropped, DROPPED)
        write_metrics(paths.metrics, metrics, {paths.headline: {"kept": "rows/kept"}})
        run.summary(metrics)


def collect_pages(params: CollectWebParams, seed: int) -> tuple[list[dict[str, str]], Funnel, dict[str, int]]:
    """Returns pages of all sources in the order of the parameters, the funnel of unusable ones, and metrics."""
    rows: list[dict[str, str]] = []
    dropped: list[tuple[dict[str, Any], str, str]] = []
    metrics: dict[str, int] = {}
    for name, source in params.sources.items():
        # Names are unique within a source, and the source's name begins the id of its pages.
        before, seen = len(rows), set[str]()
        for found in progress(
            _read(name, source, params.max_page_kib * 1024, seed), label=f"reading {name}", unit="pages"
        ):
            row = {"page_id": f"{name}/{found.name}", "url": found.url, "format": found.format}
            if found.content is None:
                dropped.append((row, found.reason, found.detail))
            elif found.name in seen:
                dropped.append((row, "duplicate_page_id", ""))
            else:
                seen.add(found.name)
                rows.append({**row, "content": found.content, "licence": source.licence})
        metrics[f"pages/{name}"] = len(rows) - before
    funnel = Funnel("collect_web", len(rows) + len(dropped))
    for drop in dropped:
        funnel.drop(*drop)
    return rows, funnel, {**metrics, **funnel.metrics(len(rows))}


def _read(name: str, source: WebSource, max_bytes: int, seed: int) -> Iterator[ReadPage]:
    match source:
        case FolderPages():
            return read_folder(source, max_bytes)
        case ListedPages():
            return read_listed(name, source, max_bytes)
        case JsonlPages():
            return read_jsonl(source, max_bytes)
        case WarcPages():
            return read_warc(source, max_bytes)
        case ArithmeticPages():
            return arithmetic_pages(source, seed)
        case DigitPages():
            return digit_pages(source, seed)
