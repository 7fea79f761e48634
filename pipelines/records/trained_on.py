"""Which problems a policy was trained on, read from the tables that its training stages took in.

A problem that was in a source and was dropped before training is not among them. Weights that come from outside (a base
model) were trained on texts that nobody here has: nothing is known of those.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pandas
import pyarrow.parquet

from pipelines.records.lock_snapshots import LockSnapshot
from stages.algorithms.problem_text import normalise_problem
from stages.foundations.dvc_lock import LockedStage

POLICIES, ROLLOUTS = "data/policies/", "data/rollouts/"


def trained_problems(snapshot: LockSnapshot, policy: str) -> frozenset[str] | None:
    """Texts of all problems that trained the policy or one it was made from, as `normalise_problem` leaves them.

    None where nothing on record made the policy, or where a training table is gone or broken. Of an RL round only the
    problems count whose responses were trained on; all of its table where its rollouts are gone.
    """
    texts: set[str] = set()
    wanted, seen = [POLICIES + policy], set()
    while wanted:
        path = wanted.pop()
        if path in seen:
            continue
        seen.add(path)
        entry = next((entry for entry in snapshot.entries.values() if path in entry.outs), None)
        if entry is None:
            return None
        # A policy carries what its starting policy was trained on.
        wanted += [dep for dep in entry.deps if dep.startswith(POLICIES)]
        try:
            found = _problems_of(snapshot, entry)
        except pyarrow.ArrowInvalid:  # a broken file says as little as a missing one
            return None
        if found is None:
            return None
        texts |= found
    return frozenset(texts)


def _problems_of(snapshot: LockSnapshot, entry: LockedStage) -> set[str] | None:
    trained: set[str] | None = None
    for out in entry.outs:
        rollouts = snapshot.file(out) if out.startswith(ROLLOUTS) else None
        if rollouts and _has(rollouts, "problem_id", "is_trained"):
            rows = pandas.read_parquet(rollouts, columns=["problem_id", "is_trained"])
            # Groups whose rewards are all equal are dropped before the update: their problems moved no weight.
            trained = set(rows.loc[rows["is_trained"], "problem_id"])
    texts: set[str] = set()
    for dep in entry.deps:
        # What a stage validates on steers no weights.
        if not dep.endswith(".parquet") or PurePosixPath(dep).stem == "validation":
            continue
        table = snapshot.file(dep)
        if table is None:
            return None
        texts |= {normalise_problem(text) for text in _texts(table, trained)}
    return texts


def _texts(table: Path, trained: set[str] | None) -> list[str]:
    # A table of texts has no problems that a benchmark could share.
    if not _has(table, "problem_id", "problem"):
        return []
    rows = pandas.read_parquet(table, columns=["problem_id", "problem"])
    return list(rows["problem"] if trained is None else rows.loc[rows["problem_id"].isin(trained), "problem"])


def _has(table: Path, *columns: str) -> bool:
    return set(columns) <= set(pyarrow.parquet.read_schema(table).names)
