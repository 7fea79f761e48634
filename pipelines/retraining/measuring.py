"""The tables behind the scores of champion and candidate, measured under the same conditions.

The champion's stored responses count when it answered the same benchmarks with the same prompts, sampler, seed and
code, and was graded by the same verifier. Otherwise it is measured again as the candidate was: with the candidate's own
commands, in its worktree, on weights that are links into DVC's cache.

`pair_up` gives two policies' verdicts on the same problems as the pairs that the gate compares.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas

from pipelines.launching.params import stage_gpus
from pipelines.records.places import Place, place_at, working_place
from pipelines.records.trained_on import trained_problems
from pipelines.retraining.champion import Champion
from pipelines.retraining.gate import Pair
from pipelines.runtime.checkouts import worktree_environment
from pipelines.runtime.machine import gpu_slots, lock_folder
from pipelines.runtime.process_group import run_in_group
from stages.algorithms.problem_text import normalise_problem
from stages.foundations.dvc_lock import CODE, Entry
from stages.foundations.errors import UserError
from stages.foundations.tables import RESPONSE, VERDICT, read_table


def candidate_measurement(folder: Path, policy: str) -> Measurement:
    return Measurement(
        folder / "data" / "responses" / f"{policy}.parquet",
        folder / "data" / "verdicts" / f"{policy}.parquet",
        _trained(working_place(folder), policy, "run the flow again"),
    )


def champion_measurement(
    champion: Champion, folder: Path, policy: str, hours: float, on_line: Callable[[str], None]
) -> tuple[Measurement, bool]:
    """The champion's tables, and whether it had to be measured again in the candidate's worktree `folder`.

    UserError when the cache lacks what is needed, or a command fails; TimedOut after so many hours of one.
    """
    theirs, own = place_at(folder, champion.commit), working_place(folder)
    trained = _trained(theirs, champion.policy, _remedy(champion))
    if _conditions(theirs, champion.policy) == _conditions(own, policy):
        tables = (_files_of(theirs, f"data/{kind}/{champion.policy}.parquet", champion)[""] for kind in TABLES)
        return Measurement(*tables, trained), False
    place = folder / "state" / "champion"
    shutil.rmtree(place, ignore_errors=True)
    weights, measured_by = f"data/policies/{policy}", _measured_by(own, policy)
    moved = [weights, *(path for entry in measured_by for path in entry.outs)]
    for path in moved:
        (place / path).parent.mkdir(parents=True, exist_ok=True)
    for name, file in _files_of(theirs, f"data/policies/{champion.policy}", champion).items():
        goal = place / weights / name
        goal.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(file, goal)
    for entry in measured_by:
        command = _moved(entry.command, moved)
        gpus = stage_gpus(folder, entry.stage, command)
        surroundings = worktree_environment(folder, is_tracked=False)
        with gpu_slots(gpus, lock_folder(), on_line) as slots:
            if slots.gpus:
                surroundings["CUDA_VISIBLE_DEVICES"] = ",".join(slots.gpus)
            shell = ["/bin/sh", "-c", command]
            code = run_in_group(shell, folder, on_line, hours * 3600, surroundings, slots.held)
        if code:
            raise UserError(f"the champion could not be measured again: `{command}` ended with exit code {code}")
    return Measurement(*(place / "data" / kind / f"{policy}.parquet" for kind in TABLES), trained), True


def _trained(place: Place, policy: str, remedy: str) -> frozenset[str]:
    trained = trained_problems(place, policy)
    if trained is None:
        raise UserError(f"{place.told} lacks tables that {policy} was trained on: {remedy}")
    return trained


def _conditions(place: Place, policy: str) -> dict[str, Any]:
    """What decides a policy's verdicts beside the policy itself."""
    asking, judging = _measured_by(place, policy)
    asked = {path: digest for path, digest in asking.deps.items() if "data/policies/" not in path}
    judged = {path: digest for path, digest in judging.deps.items() if path.startswith(CODE)}
    return {"deps": asked | judged, "params": [asking.params, judging.params]}


def _measured_by(place: Place, policy: str) -> list[Entry]:
    """The stages on record that make the policy's responses and then the verdicts on them."""
    tables = [f"data/{kind}/{policy}.parquet" for kind in TABLES]
    return [entry for table in tables for entry in place.entries.values() if table in entry.outs]


def _moved(command: str, paths: list[str]) -> str:
    """The command with each of `paths` below state/champion."""
    return shlex.join(f"state/champion/{word}" if word in paths else word for word in shlex.split(command))


def _remedy(champion: Champion) -> str:
    return f"git checkout {champion.tag} && dvc pull, then run the flow again (dvc gc needs --all-tags)"


def _files_of(place: Place, path: str, champion: Champion) -> dict[str, Path]:
    """The files of an output of the champion. UserError with the remedy when DVC's cache lacks one."""
    files = place.files(path)
    if files is None:
        raise UserError(f"DVC's cache lacks {path} of champion {champion.told()}: {_remedy(champion)}")
    return files


TABLES = ("responses", "verdicts")
KEY = ["benchmark", "problem", "answer"]
"""What makes a problem the same one: ids are row numbers of a source, which a new revision may give to others."""
OPINIONS = ("correct", "wrong")
LEAST_COMMON = 0.9
"""Share of the candidate's problems on which the champion must have been measured too."""


@dataclass(frozen=True)
class Measurement:
    """The two tables behind a policy's scores, and what it was trained on."""

    responses: Path
    verdicts: Path
    trained: frozenset[str]
    """Normalised texts (pipelines/records/trained_on.py)."""


def pair_up(champion: Measurement, candidate: Measurement) -> list[Pair]:
    """The problems that both were measured on; sampled responses count, or greedy ones where none were sampled.

    UserError when too few problems are common, or one policy was sampled and the other was not.
    """
    first, second = _shares(champion), _shares(candidate)
    if set(first["mode"]) != set(second["mode"]):
        raise UserError(
            f"the champion was measured {_told(first)}, the candidate {_told(second)}: nothing can be compared"
        )
    both = first.merge(second, on=KEY, suffixes=("_champion", "_candidate"))
    if len(both) < LEAST_COMMON * len(second):
        raise UserError(
            f"only {len(both)} of the candidate's {len(second)} benchmark problems were put to the champion too"
        )
    trained = champion.trained | candidate.trained
    return [
        Pair(
            benchmark=row.benchmark,
            champion=row.correct_champion,
            candidate=row.correct_candidate,
            champion_undecided=row.undecided_champion,
            candidate_undecided=row.undecided_candidate,
            is_clean=normalise_problem(row.problem) not in trained,
        )
        for row in both.itertuples()
    ]


def _shares(measured: Measurement) -> pandas.DataFrame:
    """A row for each problem: KEY, mode, and the shares of correct and of undecided responses."""
    responses = read_table(measured.responses, RESPONSE)
    verdicts = read_table(measured.verdicts, VERDICT)
    names = ["problem_id", "benchmark", "mode", "sample_index"]
    rows = responses[[*names, "problem", "answer"]].merge(verdicts[[*names, "verdict"]], on=names, validate="1:1")
    if len(rows) != len(responses):
        raise UserError(f"{measured.verdicts} does not belong to {measured.responses}: run the grade stage again")
    mode = "sampled" if (rows["mode"] == "sampled").any() else "greedy"
    rows = rows[rows["mode"] == mode]
    rows = rows.assign(correct=rows["verdict"] == "correct", undecided=~rows["verdict"].isin(OPINIONS), mode=mode)
    return rows.groupby([*KEY, "mode"], as_index=False)[["correct", "undecided"]].mean()


def _told(shares: pandas.DataFrame) -> str:
    modes: Sequence[str] = sorted(set(shares["mode"]))
    return " and ".join(modes) or "on nothing"
