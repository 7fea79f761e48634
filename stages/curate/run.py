"""Reads the collected tables, curates, writes what came of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pandas

from stages.curate.curation import Curated, Row, curate
from stages.curate.params import CurateParams, require_roles
from stages.engines.verifier.params import VerifierParams
from stages.foundations.errors import UserError
from stages.foundations.job import Job
from stages.foundations.metrics import write_metrics
from stages.foundations.tables import (
    BENCHMARK,
    CONTAMINATION,
    DIFFICULTY,
    DROPPED,
    DUPLICATE,
    PROBLEM,
    TRANSFORM,
    Funnel,
    read_table,
    require_rows,
    write_table,
)
from stages.observe.tracking import track


def main(job: Job) -> None:
    """The whole stage. Metrics count training problems; `rows/kept` is train and validation together."""
    paths = job.paths
    params: CurateParams = job.sections["curate"]
    limits: VerifierParams = job.sections["verifier"]
    seed, sources = job.seed, job.sections["sources"]
    require_roles(sources)
    roles = {name: source.role for name, source in sources.items()}
    revisions = {name: source.revision for name, source in sources.items()}
    described = {"curate": params.model_dump(mode="json"), "roles": roles}
    with track(job.attempt(described)) as run:
        collected = {name: read_collected(paths.collected, name) for name in roles}
        rows = {
            role: [row for name in roles if roles[name] == role for row in collected[name]]
            for role in ("train", "benchmark")
        }
        funnel, benchmark_funnel = (Funnel("curate", len(rows[role])) for role in ("train", "benchmark"))
        curated = curate(rows["train"], rows["benchmark"], revisions, params, limits, seed, funnel, benchmark_funnel)
        require_benchmarks(curated, roles)
        write_table(curated.train, paths.train, PROBLEM)
        write_table(curated.validation, paths.validation, PROBLEM)
        write_table(curated.benchmarks, paths.benchmarks, BENCHMARK)
        write_table(curated.contamination, paths.contamination, CONTAMINATION)
        write_table(curated.duplicates, paths.duplicates, DUPLICATE)
        write_table(curated.transforms, paths.transforms, TRANSFORM)
        write_table(curated.difficulty, paths.difficulty, DIFFICULTY)
        dropped = [funnel.dropped_frame(), benchmark_funnel.dropped_frame()]
        write_table(pandas.concat(dropped, ignore_index=True), paths.dropped, DROPPED)
        metrics = funnel.metrics(len(curated.train) + len(curated.validation)) | count(curated)
        lost = benchmark_funnel.metrics(len(curated.benchmarks))
        metrics |= {f"benchmarks/{name}": lost[name] for name in lost if name.startswith("dropped/")}
        run.summary(metrics)
        write_metrics(paths.metrics, metrics, {paths.headline: {"kept": "rows/kept"}})


def require_benchmarks(curated: Curated, roles: dict[str, str]) -> None:
    """UserError when a benchmark has no usable row: its scores would silently be missing."""
    present = {row["benchmark"] for row in curated.benchmarks}
    for name in (name for name, role in roles.items() if role == "benchmark" and name not in present):
        raise UserError(f"no row of benchmark `{name}` has all its texts: look at sources.{name} and collect it again")


def read_collected(folder: Path, source: str) -> list[Row]:
    """The rows of one source; UserError when its table is not there or empty."""
    path = folder / f"{source}.parquet"
    if not path.exists():
        raise UserError(f"{path} does not exist: `dvc repro collect@{source}` makes it")
    frame = require_rows(read_table(path, PROBLEM), path, f"look at sources.{source} and collect it again")
    return frame.to_dict("records")


def count(curated: Curated) -> dict[str, int]:
    """Rows of each table, what curate counted on the way, and per benchmark its rows and how many of them were hit."""
    counts = {
        "train/rows": len(curated.train),
        "validation/rows": len(curated.validation),
        "contamination/pairs": sum(
            number for name, number in curated.counts.items() if name.startswith("contamination/pairs_")
        ),
        **curated.counts,
    }
    for name, number in Counter(row["benchmark"] for row in curated.benchmarks).items():
        counts[f"{name}/rows"] = number
        hit = {row["benchmark_problem_id"] for row in curated.contamination if row["benchmark"] == name}
        counts[f"{name}/rows_hit"] = len(hit)
    return counts
