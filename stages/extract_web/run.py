"""The stage: a page table, or a folder of shards, to candidates, drops and metrics."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from stages.extract_web.params import ExtractWebParams, LocalEngine, ModelMethod, PolicyModel, RayEngine
from stages.extract_web.shards import Extracted, cut_into_shards, extract, extract_shards, find_shards, rows_of
from stages.foundations.errors import UserError
from stages.foundations.files import sha256_of
from stages.foundations.job import Job
from stages.foundations.machine import state_folder
from stages.foundations.metrics import write_metrics
from stages.foundations.params import chosen
from stages.foundations.tables import CANDIDATE, DROPPED, PAGE, Funnel, read_table, require_rows, write_table
from stages.observe.progress import say
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Reads the pages, writes candidates and dropped rows, metrics last; UserError when there is no page to read."""
    paths = job.paths
    params: ExtractWebParams = job.sections["extract_web"]
    inputs, shown, sampler = {"pages": paths.pages}, params.model_dump(), None
    if isinstance(params.method, ModelMethod) and isinstance(params.method.model, PolicyModel):
        inputs["policy"] = _policy_folder(params.method.model)
        sampler = job.sections["sampler"]
        shown["sampler"] = sampler.model_dump()
    attempt = job.attempt(shown, inputs)
    with track(attempt) as tracked:
        with tracked.phase("rules"):
            extracted = _read(paths.pages, params)
        match chosen("extract_web.method", params.method):
            case ModelMethod() as method:
                from stages.extract_web.second_reading import read_again

                with tracked.phase("model"):
                    extracted = read_again(paths.pages, extracted, params, method, sampler, attempt.scratch)
        write_table(extracted.candidates, paths.candidates, CANDIDATE)
        write_table(extracted.drops, paths.dropped, DROPPED)
        write_metrics(paths.metrics, extracted.counts, {paths.headline: {"kept": "candidates/all"}})
        tracked.summary(extracted.counts)
    for piece in attempt.scratch.glob("model-*"):
        piece.unlink()


def _policy_folder(params: PolicyModel) -> Path:
    folder = Path(params.folder)
    if not folder.is_dir():
        raise UserError(
            f"extract_web.method.model.folder {folder} is no folder: give that of a policy in transformers' layout"
        )
    return folder


def _read(pages: Path, params: ExtractWebParams) -> Extracted:
    """What the rules find."""
    work = state_folder() / "scratch" / "extract_web-shards"
    if pages.is_dir():
        return _run_shards(pages, find_shards(pages), work, params)
    match params.engine:
        case RayEngine(pages_per_shard=pages_per_shard):
            cut = work / f"cut-{sha256_of(pages)[:16]}-{pages_per_shard}"
            extracted = _run_shards(pages, cut_into_shards(pages, cut, pages_per_shard), work, params)
            shutil.rmtree(cut)
            return extracted
        case LocalEngine(processes=processes):
            frame = require_rows(read_table(pages, PAGE), pages, "check the sources of `collect_web`")
            found, funnel, counts = extract(frame, params, processes)
            return Extracted(found, funnel.dropped_frame().to_dict("records"), counts)


def _run_shards(pages: Path, shards: Sequence[Path], work: Path, params: ExtractWebParams) -> Extracted:
    """Shards that cannot be read are rows of the dropped table; UserError only when all are."""
    results = extract_shards(shards, work, params)
    failed = [result for result in results if result.failure]
    if len(failed) == len(results):
        raise UserError(f"extract_web: every shard of {pages} failed, the first: {failed[0].name}: {failed[0].failure}")
    if failed:
        say(
            f"WARNING: extract_web leaves out {len(failed)} of {len(results)} shards, which cannot be read, the first: "
            f"{failed[0].name}: {failed[0].failure}"
        )
    unreadable = Funnel("extract_web", len(failed))
    for result in failed:
        unreadable.drop({"shard_id": result.name}, "shard_failed", result.failure)
    counts: Counter[str] = Counter({"shards/all": len(results), "shards/failed": len(failed)})
    for result in results:
        counts.update(result.metrics)
    drops = [*rows_of(results, DROPPED), *unreadable.dropped_frame().to_dict("records")]
    return Extracted(list(rows_of(results, CANDIDATE)), drops, dict(counts))
