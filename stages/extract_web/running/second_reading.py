"""Pages that the rules could not read, or only with little confidence, read again by a model.

Source: "MAmmoTH2: Scaling Instructions from the Web" (arXiv 2405.03548), whose WebInstruct has a model extract pairs of
question and answer from pages. Deviations: 1. the model names spans, and what a row holds is the page's own text; there
is no refinement, which would add text that no page has; 2. rules read first; 3. the prompt's wording is our own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from stages.engines.pieces import are_whole, seal
from stages.engines.samplers.params import SamplerParams
from stages.extract_web.asking.candidates import model_candidates
from stages.extract_web.asking.windows import SHOWN, page_windows, request
from stages.extract_web.params import AddressModel, ExtractWebParams, ModelMethod, PolicyModel
from stages.extract_web.running.page_readers import PageLimits, in_readers
from stages.extract_web.running.page_table import Extracted
from stages.extract_web.running.shards import find_shards
from stages.foundations.files import write_json
from stages.foundations.funnel import Funnel
from stages.foundations.params import chosen
from stages.foundations.tables.page import PAGE
from stages.foundations.tables.table import read_table
from stages.observe.progress import say


class Extractor(Protocol):
    """Who is asked: `asking/policy.py` or `asking/address.py`."""

    def ask(self, requests: Sequence[str]) -> list[str | None]:
        """The answer to each request, in order; None for one that is too long."""

    def close(self) -> None:
        """Ends what it has open."""


def read_again(
    pages: Path,
    first: Extracted,
    params: ExtractWebParams,
    method: ModelMethod,
    sampler: SamplerParams | None,
    scratch: Path,
) -> Extracted:
    """`first` with the model's rows behind the rules'. A page of which a row goes on is no drop any more.

    Pages are those on which the rules found nothing, or something that they doubt. Each piece of work is kept in
    `scratch`, where a run that was killed finds it. UserError when the model cannot be asked.
    """
    known: dict[str, list[str]] = {}
    for row in first.candidates:
        known.setdefault(row["page_id"], []).append(row["problem"])
    limits = PageLimits(params.max_answer_characters, params.page_timeout_seconds, params.page_memory_mib)
    counts = Counter({f"model/{name}": 0 for name in ("pages", "windows", "rows", "low_confidence")})
    candidates, drops = list(first.candidates), Funnel("extract_web", 0)
    asked = _pages_to_ask(pages, first)
    pieces = iter(lambda: list(islice(asked, method.pages_at_once)), [])
    with ExitStack() as open_extractor:
        extractor: Extractor | None = None
        for number, piece in enumerate(pieces):
            place = scratch / f"model-{number:06d}.json"
            if not are_whole(place):
                if extractor is None:
                    extractor = open_extractor.enter_context(closing(_extractor(method, sampler)))
                write_json(place, _ask(piece, known, method, extractor, limits, params.engine.processes))
                seal(place)
            said = json.loads(place.read_text())
            counts.update(said["counts"])
            for row in said["rows"]:
                is_kept = row["confidence"] >= params.min_confidence
                counts["model/rows" if is_kept else "model/low_confidence"] += 1
                if is_kept:
                    candidates.append(row)
                else:
                    drops.drop(row, "low_confidence", f"{row['confidence']:g}: {row['evidence']}")
            for row in said["refused"]:
                counts[f"model/{row['reason']}"] += 1
                drops.drop(row, row["reason"], row["said"])
            say(f"extract_web: {counts['model/pages']} pages asked about, {counts['model/rows']} rows kept")
    return _joined(first, candidates, drops, counts)


def _extractor(method: ModelMethod, sampler: SamplerParams | None) -> Extractor:
    match chosen("extract_web.method.model", method.model):
        case PolicyModel() as model:
            from stages.extract_web.asking.policy import PolicyExtractor

            return PolicyExtractor(model, sampler, method.max_response_tokens)
        case AddressModel() as model:
            from stages.extract_web.asking.address import AddressExtractor

            return AddressExtractor(model, method.max_response_tokens)


def _pages_to_ask(pages: Path, first: Extracted) -> Iterator[dict[str, Any]]:
    """In the order of the table, or of the shards; one that could not be read is a drop already."""
    doubtful = {
        json.loads(drop["row"])["page_id"]
        for drop in first.drops
        if drop["reason"] in ("no_exercise", "low_confidence")
    }
    failed = {drop["row_id"] for drop in first.drops if drop["reason"] == "shard_failed"}
    for table in find_shards(pages) if pages.is_dir() else [pages]:
        if table.name not in failed:
            for page in read_table(table, PAGE).to_dict("records"):
                if page["page_id"] in doubtful and page["format"] in SHOWN:
                    yield page


def _ask(
    pages: Sequence[dict[str, Any]],
    known: Mapping[str, list[str]],
    method: ModelMethod,
    extractor: Extractor,
    limits: PageLimits,
    processes: int,
) -> dict[str, Any]:
    """Rows, refusals and counts of one piece. Pages are hostile: their text, and what a model says of it, is read in
    processes that can be killed."""
    counts = Counter({"model/pages": len(pages)})
    refused: list[dict[str, str]] = []

    def read(function: Callable[..., Any], requests: dict[int, dict[str, Any]]) -> Iterator[tuple[int, Any]]:
        """What the function makes of each page, by its place; a page that its process failed on is refused."""
        answers = in_readers(function, list(requests.values()), limits, processes)
        for place, (value, reason, detail) in zip(requests, answers, strict=True):
            if reason:
                refused.append({"page_id": pages[place]["page_id"], "reason": reason, "said": detail})
            else:
                yield place, value

    shown = {
        place: {
            "page": page,
            "window_characters": method.window_characters,
            "max_windows": method.max_windows,
        }
        for place, page in enumerate(pages)
    }
    windows: list[tuple[int, str]] = []
    for place, (texts, left_out) in read(page_windows, shown):
        windows += [(place, text) for text in texts]
        counts["model/windows_left_out"] += left_out
    counts["model/windows"] = len(windows)
    said: dict[int, dict[str, Any]] = {}
    answers = extractor.ask([request(text) for _, text in windows])
    for (place, text), answer in zip(windows, answers, strict=True):
        if answer is None:
            counts["model/windows_too_long"] += 1
            continue
        said.setdefault(
            place,
            {
                "page": pages[place],
                "windows": [],
                "answers": [],
                "known": known.get(pages[place]["page_id"], []),
                "max_answer_characters": limits.max_answer_characters,
                "precision": method.confidence,
            },
        )
        said[place]["windows"].append(text)
        said[place]["answers"].append(answer)
    rows: list[dict[str, Any]] = []
    for place, (found, not_taken) in read(model_candidates, said):
        rows += found
        refused += [{"page_id": pages[place]["page_id"], **one} for one in not_taken]
    return {"rows": rows, "refused": refused, "counts": dict(counts)}


def _joined(
    first: Extracted, candidates: list[dict[str, Any]], drops: Funnel, counts: Mapping[str, int]
) -> Extracted:
    """Pages that the rules had nothing of and the model has are kept after all; the funnel still adds up."""
    found = {row["page_id"] for row in candidates}
    before = [
        drop
        for drop in first.drops
        if drop["reason"] != "no_exercise" or json.loads(drop["row"])["page_id"] not in found
    ]
    regained = len(first.drops) - len(before)
    metrics = {**first.counts, **counts}
    metrics["rows/kept"] = metrics.get("rows/kept", 0) + regained
    metrics["dropped/no_exercise"] = metrics.get("dropped/no_exercise", 0) - regained
    metrics |= {
        "candidates/all": len(candidates),
        "candidates/with_solution": sum(row["solution"] is not None for row in candidates),
        "candidates/with_answer": sum(row["answer"] is not None for row in candidates),
    }
    metrics["candidates/low_confidence"] = (
        first.counts["candidates/low_confidence"] + counts["model/low_confidence"]
    )
    return Extracted(candidates, [*before, *drops.dropped_frame().to_dict("records")], metrics)
