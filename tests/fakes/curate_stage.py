"""Runs the stage curate on a few rows."""

import json

import yaml

from stages.__main__ import main
from stages.foundations.tables import (
    BENCHMARK,
    CONTAMINATION,
    DIFFICULTY,
    DROPPED,
    DUPLICATE,
    PROBLEM,
    TRANSFORM,
    read_table,
    write_table,
)

OUTPUTS = {
    "train": PROBLEM,
    "validation": PROBLEM,
    "benchmarks": BENCHMARK,
    "contamination": CONTAMINATION,
    "duplicates": DUPLICATE,
    "transforms": TRANSFORM,
    "difficulty": DIFFICULTY,
    "dropped": DROPPED,
}
CURATE = {
    "max_problem_characters": 200,
    "answer_kinds": ["integer", "number"],
    "transform": {"kind": "none"},
    "gradability_test": True,
    "difficulty": {"kind": "none"},
    "deduplication": {"exact": True, "near_duplicates": None},
    "decontamination": {"exact": True, "ngrams": None, "near_duplicates": None, "templates": None},
    "validation_rows": 0,
    "max_train_rows": None,
}
VERIFIER = {"timeout_seconds": 5, "memory_mib": 1024, "workers": 1, "abort_undecided_fraction": 0.0}
HELD_OUT = [("Compute 9-8.", "1"), ("Compute 2+2.", "4")]


def curate(tmp_path, train, held_out=HELD_OUT, seed=0, roles=None, others=None, **changes):
    """Runs the stage on (problem, answer[, solution]) rows; `others` has more sources by name; returns its tables."""
    folder = tmp_path / "collected"
    for source, rows in {"drill": train, "held_out": held_out, **(others or {})}.items():
        table = [
            {
                "problem_id": f"{source}/{i}",
                "source": source,
                "problem": problem,
                "answer": answer,
                "solution": rest[0] if rest else None,
                "licence": "MIT",
            }
            for i, (problem, answer, *rest) in enumerate(rows)
        ]
        write_table(table, folder / f"{source}.parquet", PROBLEM)
    return run_curate(tmp_path, seed, roles, **changes)


def run_curate(tmp_path, seed=0, roles=None, **changes):
    """Runs the stage on the tables that are there."""
    roles = roles or {"drill": "train", "held_out": "benchmark"}
    params = {"seed": seed, "curate": CURATE | changes, "verifier": VERIFIER}
    origin = {"kind": "local", "sha256": "ab12"}
    params["sources"] = {name: {"role": role, "licence": "MIT", "from": origin} for name, role in roles.items()}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    paths = {name: tmp_path / "out" / f"{name}.parquet" for name in OUTPUTS}
    metrics = tmp_path / "out" / "curate.json"
    flags = [f"--{name}={path}" for name, path in paths.items()]
    inputs = [f"--params={tmp_path / 'params.yaml'}", f"--collected={tmp_path / 'collected'}"]
    main(["curate", *inputs, f"--metrics={metrics}", f"--headline={tmp_path / 'headline.json'}", *flags])
    tables = {name: read_table(path, OUTPUTS[name]) for name, path in paths.items()}
    return tables | {"metrics": json.loads(metrics.read_text())}


def reasons(tables):
    """Reason by id of each dropped row."""
    return dict(zip(tables["dropped"]["row_id"], tables["dropped"]["reason"], strict=True))
