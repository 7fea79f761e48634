"""The problems that a policy was trained on, read from the input tables of its training stages.

A problem that a source contained and that was dropped before training does not count. Weights from outside (a base
model) were trained on texts that this project does not have: those texts are unknown.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path, PurePosixPath

import pandas

from pipelines.records.lock_snapshots import LockSnapshot
from stages.algorithms.problem_text import normalise_problem
from stages.foundations.dvc_lock import LockedStage
from stages.foundations.errors import UserError
from stages.foundations.tables import open_table

POLICIES, ROLLOUTS = "data/policies/", "data/rollouts/"


def trained_problems(snapshot: LockSnapshot, policy: str) -> frozenset[str] | None:
    """Returns the texts of all problems that trained the policy or its ancestors, as `normalise_problem` leaves them.

    Returns None if no stage on record made the policy, or a training table is missing or broken. For an RL round only
    problems whose responses were trained on count, or its whole table if its rollouts are missing.
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
        # A policy includes the training data of its starting policy.
        wanted += [dep for dep in entry.deps if dep.startswith(POLICIES)]
        found = None
        with suppress(UserError):  # a broken file counts as missing
            found = _problems_of(snapshot, entry)
        if found is None:
            return None
        texts |= found
    return frozenset(texts)


def _problems_of(snapshot: LockSnapshot, entry: LockedStage) -> set[str] | None:
    trained: set[str] | None = None
    for out in entry.outs:
        rollouts = snapshot.file(out) if out.startswith(ROLLOUTS) else None
        if rollouts and (rows := _rows(rollouts, "problem_id", "is_trained")) is not None:
            # Groups whose rewards are all equal are dropped before the update: their problems changed no weight.
            trained = set(rows.loc[rows["is_trained"], "problem_id"])
    texts: set[str] = set()
    for dep in entry.deps:
        # Validation data of a stage change no weights.
        if not dep.endswith(".parquet") or PurePosixPath(dep).stem == "validation":
            continue
        table = snapshot.file(dep)
        if table is None:
            return None
        # A table of texts has no problems in common with a benchmark.
        if (rows := _rows(table, "problem_id", "problem")) is not None:
            kept = rows if trained is None else rows[rows["problem_id"].isin(trained)]
            texts |= {normalise_problem(text) for text in kept["problem"]}
    return texts


def _rows(table: Path, *columns: str) -> pandas.DataFrame | None:
    """Returns these columns of a table; None where it lacks one."""
    with open_table(table) as file:
        return file.read(columns).to_pandas() if set(columns) <= set(file.schema_arrow.names) else None
