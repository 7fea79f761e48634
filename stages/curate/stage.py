"""Reads the collected tables, curates, writes what came of it."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from pathlib import Path

from stages.curate.curation import Curated, Row, curate
from stages.curate.params import CurateParams, load_roles
from stages.foundations.errors import UserError
from stages.foundations.funnel import Funnel
from stages.foundations.metrics import write_metrics
from stages.foundations.params import load_section, load_value
from stages.foundations.tables import read_table, require_rows, write_table
from stages.foundations.tracking import track


def run_curate(paths: Namespace) -> None:
    """The whole stage. Metrics count training problems; `rows/kept` is train and validation together."""
    params = load_section(paths.params, "curate", CurateParams)
    seed, roles = load_value(paths.params, "seed"), load_roles(paths.params)
    described = {"seed": seed, "curate": params.model_dump(mode="json"), "roles": roles}
    with track(stage="curate", params=described, inputs={"collected": paths.collected}, seed=seed) as run:
        collected = {name: read_collected(paths.collected, name) for name in roles}
        rows = {role: [row for name in roles if roles[name] == role for row in collected[name]] for role in
                ("train", "benchmark")}  # fmt: skip
        funnel = Funnel("curate", len(rows["train"]))
        curated = curate(rows["train"], rows["benchmark"], params, seed, funnel)
        write_table(curated.train, paths.train, "problem")
        write_table(curated.validation, paths.validation, "problem")
        write_table(curated.benchmarks, paths.benchmarks, "benchmark")
        write_table(curated.contamination, paths.contamination, "contamination")
        write_table(funnel.dropped_frame(), paths.dropped, "dropped")
        metrics = funnel.metrics(len(curated.train) + len(curated.validation)) | count(curated)
        run.summary(metrics)
        write_metrics(paths.metrics, metrics)


def read_collected(folder: Path, source: str) -> list[Row]:
    """The rows of one source; UserError when its table is not there or empty."""
    path = folder / f"{source}.parquet"
    if not path.exists():
        raise UserError(f"{path} does not exist: `dvc repro collect@{source}` makes it")
    frame = require_rows(read_table(path, "problem"), path, f"look at sources.{source} and collect it again")
    return frame.to_dict("records")


def count(curated: Curated) -> dict[str, int]:
    """Rows of each table, and per benchmark its rows and how many of them training problems stand in."""
    counts = {
        "train/rows": len(curated.train),
        "validation/rows": len(curated.validation),
        "contamination/pairs": len(curated.contamination),
    }
    for name, number in Counter(row["benchmark"] for row in curated.benchmarks).items():
        counts[f"{name}/rows"] = number
        hit = {row["benchmark_problem_id"] for row in curated.contamination if row["benchmark"] == name}
        counts[f"{name}/rows_hit"] = len(hit)
    return counts
