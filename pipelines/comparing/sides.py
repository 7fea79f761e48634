"""Reads the verdict tables that an argument of `retrace compare` names.

POLICY            of this project                     rl_3
REV:POLICY        of a commit, out of DVC's cache     v1.0:rl_3
EXPERIMENT:POLICY of a DVC experiment                 wormy-axon:rl_3
FOLDER:POLICY     of another checkout                 ../seed-1:rl_3
FOLDER            an ablation, or runs of it          state/ablations/dapo-ladder/results
RUN               an MLflow run, by id or name        rl_round@rl_1
A,B,C             one side: the same from several seeds
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas

from pipelines.ablating.definition import read_ablation
from pipelines.records.lock_snapshots import LockSnapshot, kept_snapshot, snapshot_at, working_snapshot
from pipelines.records.trained_on import trained_problems
from stages.algorithms.problem_text import normalise_problem
from stages.foundations.errors import UserError
from stages.foundations.tables import RESPONSE, VERDICT, open_table, read_table, require_rows

BENCHMARKS_FILE = "data/problems/benchmarks.parquet"
KEYS = ["benchmark", "problem_id", "mode", "sample_index"]


@dataclass(frozen=True)
class Answers:
    """One policy's judged answers."""

    where: str
    policy: str
    seed: int | None
    """The run's seed; None when its snapshot does not state it."""
    digest: str
    """DVC's hash of the verdict table; "" when it is not on record."""
    verdicts: pandas.DataFrame
    responses: pandas.DataFrame | None
    """None where only verdicts were kept and the cache no longer has the responses."""
    leaked: frozenset[tuple[str, str]] | None = None
    """Benchmark and id of the problems that it was trained on; None where a training table is gone."""


@dataclass(frozen=True)
class Side:
    """One side of comparisons: a policy, trained with one seed or several."""

    name: str
    answers: tuple[Answers, ...]


FindRun = Callable[[str], tuple[LockSnapshot, str] | None]
"""An MLflow run's id or name -> its snapshot and policy; None when there is no such run."""


def read_sides(arguments: Sequence[str], root: Path, find_run: FindRun) -> list[Side]:
    """Returns the sides in the order of the arguments; UserError when one is unknown or there are fewer than two."""
    sides = [side for argument in arguments for side in _sides_of(argument, root, find_run)]
    if len(sides) < 2:
        known = ", ".join(policies_of(working_snapshot(root))) or "none yet, run `dvc repro`"
        raise UserError(f"there must be two to compare, given: {', '.join(arguments)}; policies here: {known}")
    names = [side.name for side in sides]
    sides = [
        replace(side, name=f"{side.name} ({side.answers[0].where})") if names.count(side.name) > 1 else side
        for side in sides
    ]
    # Where names were equal, the place was added above. Names that are still equal are the same policy of one place.
    twice = sorted({side.name for side in sides if [other.name for other in sides].count(side.name) > 1})
    if twice:
        raise UserError(f"given twice: {', '.join(twice)}")
    return sides


def _sides_of(argument: str, root: Path, find_run: FindRun) -> list[Side]:
    parts = [part.strip() for part in argument.split(",") if part.strip()]
    found = [side for part in parts for side in _find(part, root, find_run)]
    if not found:
        raise UserError(f"{argument!r} names nothing to compare")
    if len(parts) == 1:
        return found
    answers = tuple(own for side in found for own in side.answers)
    seeds = [own.seed for own in answers]
    # Two runs of one seed are one run twice, and would make the interval over seeds too narrow.
    if len(set(seeds)) < len(seeds):
        raise UserError(f"{argument!r} has the seeds {seeds}: what commas join are runs of different seeds")
    policies = list(dict.fromkeys(own.policy for own in answers))
    return [Side(" + ".join(policies), answers)]


def _find(part: str, root: Path, find_run: FindRun) -> list[Side]:
    here = working_snapshot(root)
    # A policy of this project comes before a folder of the same name.
    if part in policies_of(here):
        return [Side(part, (read_answers(here, part),))]
    folder = folder_of(root, part)
    if folder is not None:
        return _sides_of_folder(root, folder, part)
    before, _, policy = part.rpartition(":")
    if before:
        folder = folder_of(root, before)
        snapshot = _checkout(root, folder) if folder else snapshot_at(root, before)
        return [Side(part if folder is None else f"{folder.name}:{policy}", (read_answers(snapshot, policy),))]
    found = find_run(part)
    if found is None:
        known = ", ".join(policies_of(here)) or "none yet: run `dvc repro`"
        raise UserError(
            f"{part!r} is no policy of this project ({known}), no folder and no MLflow run. Others: REV:POLICY for a "
            "git revision's, FOLDER:POLICY for another checkout's, the results folder of an ablation"
        )
    snapshot, policy = found
    return [Side(policy, (read_answers(snapshot, policy),))]


def folder_of(root: Path, text: str) -> Path | None:
    """Returns the folder of that name, from here or from the project; None where there is none."""
    for folder in (Path(text).expanduser(), root / text):
        if folder.is_dir():
            return folder.resolve()
    return None


def _checkout(root: Path, folder: Path) -> LockSnapshot:
    if (folder / "run.json").exists():
        return kept_snapshot(root, folder)
    return working_snapshot(folder, str(folder), root)


def _sides_of_folder(root: Path, folder: Path, given: str) -> list[Side]:
    """The variants of an ablation, each with its seeds."""
    runs = (
        # A run, the folder of all runs, or the ablation: the caller may name any of them.
        sorted(folder.glob("run.json"))
        or sorted(folder.glob("*/run.json"))
        or sorted(folder.glob("results/*/run.json"))
    )
    if not runs:
        known = ", ".join(policies_of(working_snapshot(folder))) or "none"
        raise UserError(f"{given} holds no results of an ablation; for a checkout write FOLDER:POLICY (there: {known})")
    by_variant: dict[str, list[Answers]] = {}
    for snapshot in (kept_snapshot(root, file.parent) for file in runs):
        own = read_answers(snapshot, snapshot.about["policy"])
        by_variant.setdefault(snapshot.about["variant"], []).append(replace(own, seed=snapshot.about["seed"]))
    name = kept_snapshot(root, runs[0].parent).about["ablation"]
    return [Side(variant, tuple(by_variant[variant])) for variant in _in_order(root, name, list(by_variant))]


def _in_order(root: Path, ablation: str, variants: list[str]) -> list[str]:
    """Returns the variants in the order of the ablation's file, baseline first; without such a file, unchanged."""
    try:
        content = read_ablation(root, ablation)
    except UserError:
        return variants
    # Variants that were removed from the file still have results. They come last.
    listed = [content.baseline, *content.variants]
    return sorted(variants, key=lambda name: listed.index(name) if name in listed else len(listed))


def policies_of(snapshot: LockSnapshot) -> list[str]:
    """Policies with verdicts on record, or with a verdict file."""
    names = list(snapshot.graded)
    if snapshot.folder is not None:
        verdicts = snapshot.folder / ("verdicts" if snapshot.is_kept else "data/verdicts")
        # A table that was copied here by hand has no entry in dvc.lock.
        names += sorted(file.stem for file in verdicts.glob("*.parquet"))
    return list(dict.fromkeys(names))


def read_answers(snapshot: LockSnapshot, policy: str) -> Answers:
    """Returns a policy's verdicts, and its responses if available. UserError states what is missing."""
    table = f"data/verdicts/{policy}.parquet"
    known = policies_of(snapshot)
    if policy not in known:
        there = f"it has {', '.join(known)}" if known else "nothing was graded there"
        raise UserError(f"{snapshot.label} has no verdicts on a policy {policy!r}: {there}")
    path = snapshot.file(table)
    if path is None:
        digest = snapshot.outs.get(table, "")
        raise UserError(
            f"{snapshot.label} lists {table} (md5 {digest}), and neither the file nor DVC's cache has it: "
            f"run `dvc fetch --all-commits {table}`, or `dvc repro grade@{policy}` there"
        )
    verdicts = require_rows(read_table(path, VERDICT), path, f"run `dvc repro grade@{policy}` again")
    entry = snapshot.graded.get(policy)
    responses = snapshot.file(f"data/responses/{policy}.parquet")
    return Answers(
        where=snapshot.label,
        policy=policy,
        seed=_seed(snapshot, policy),
        digest=entry.outs.get(table, "") if entry else "",
        verdicts=verdicts,
        responses=_joined(verdicts, responses) if responses else None,
        leaked=_leaked(snapshot, policy, responses or snapshot.file(BENCHMARKS_FILE)),
    )


def _leaked(snapshot: LockSnapshot, policy: str, asked: Path | None) -> frozenset[tuple[str, str]] | None:
    trained = trained_problems(snapshot, policy)
    if trained is None or asked is None:
        return None
    # Without responses, the current benchmark table has the same texts.
    with open_table(asked) as file:
        rows = file.read(["benchmark", "problem_id", "problem"]).to_pandas().drop_duplicates()
    # By the text, because sources number the same problem differently.
    is_leaked = [normalise_problem(text) in trained for text in rows["problem"]]
    return frozenset(zip(rows["benchmark"][is_leaked], rows["problem_id"][is_leaked], strict=True))


def _joined(verdicts: pandas.DataFrame, path: Path) -> pandas.DataFrame | None:
    """Returns responses beside their verdicts; None for a table of another run, to keep texts with their verdicts."""
    rows = read_table(path, RESPONSE)
    if len(rows) != len(verdicts) or rows.duplicated(KEYS).any():
        return None
    joined = rows.merge(verdicts[[*KEYS, "verdict", "extracted"]], on=KEYS, how="left", validate="one_to_one")
    return None if joined["verdict"].isna().any() else joined


def _seed(snapshot: LockSnapshot, policy: str) -> int | None:
    """The seed of the stage that generated the responses, else of one that made a policy: all have the run's."""
    for path in (f"data/responses/{policy}.parquet", f"data/policies/{policy}", "data/policies/"):
        for entry in snapshot.entries.values():
            seed = entry.params.get("seed")
            if isinstance(seed, int) and any(out.startswith(path) for out in entry.outs):
                return seed
    return None
