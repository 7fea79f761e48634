"""The tables behind the scores of champion and candidate, measured under the same conditions.

The champion's stored responses count when it answered the same benchmarks with the same prompts, sampler, seed and
code, and was graded by the same verifier. Otherwise it is measured again as the candidate was: with the candidate's own
commands, in its worktree, on weights that are links into DVC's cache.

`pair_up` gives two policies' verdicts on the same problems as the pairs that the gate compares.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas

from pipelines.launching.params import stage_gpus
from pipelines.records.places import Place, place_at, working_place
from pipelines.records.trained_on import trained_problems
from pipelines.retraining.champion import Champion, locked_outs, locked_stages
from pipelines.retraining.gate import Pair
from pipelines.runtime.checkouts import git, worktree_environment
from pipelines.runtime.machine import gpu_slots, lock_folder
from pipelines.runtime.process_group import run_in_group
from stages.algorithms.problem_text import normalise_problem
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
    cache = _objects(folder)
    theirs, outs = locked_stages(folder, champion.commit), locked_outs(folder, champion.commit)
    remedy = f"git checkout {champion.tag} && dvc pull, then run the flow again (dvc gc needs --all-tags)"
    trained = _trained(place_at(folder, champion.commit), champion.policy, remedy)
    own = locked_stages(folder, git(folder, "rev-parse", "HEAD"))
    if _conditions(theirs, champion.policy) == _conditions(own, policy):
        responses, verdicts = (outs[f"data/{kind}/{champion.policy}.parquet"] for kind in ("responses", "verdicts"))
        found = Measurement(cached(cache, responses, champion), cached(cache, verdicts, champion), trained)
        return found, False
    place = folder / "state" / "champion"
    shutil.rmtree(place, ignore_errors=True)
    link_out(cache, champion, place / "data" / "policies" / policy)
    moved = [
        f"data/policies/{policy}",
        *(out["path"] for name in _measured_by(own, policy) for out in own[name]["outs"]),
    ]
    for path in moved:
        (place / path).parent.mkdir(parents=True, exist_ok=True)
    for name in _measured_by(own, policy):
        command = _moved(own[name]["cmd"], moved)
        gpus = stage_gpus(folder, name.partition("@")[0], command)
        surroundings = {**worktree_environment(folder), "RETRACE_TRACKING": "off"}
        with gpu_slots(gpus, lock_folder(), on_line) as slots:
            if slots.gpus:
                surroundings["CUDA_VISIBLE_DEVICES"] = ",".join(slots.gpus)
            shell = ["/bin/sh", "-c", command]
            code = run_in_group(shell, folder, on_line, hours * 3600, surroundings, slots.held)
        if code:
            raise UserError(f"the champion could not be measured again: `{command}` ended with exit code {code}")
    responses, verdicts = (place / "data" / kind / f"{policy}.parquet" for kind in ("responses", "verdicts"))
    return Measurement(responses, verdicts, trained), True


def _trained(place: Place, policy: str, remedy: str) -> frozenset[str]:
    trained = trained_problems(place, policy)
    if trained is None:
        raise UserError(f"{place.told} lacks tables that {policy} was trained on: {remedy}")
    return trained


def _conditions(stages: Mapping[str, Any], policy: str) -> dict[str, Any]:
    """What decides a policy's verdicts beside the policy itself."""
    asking, judging = (stages[name] for name in _measured_by(stages, policy))
    asked = {dep["path"]: dep["md5"] for dep in asking["deps"] if "data/policies/" not in dep["path"]}
    judged = {dep["path"]: dep["md5"] for dep in judging["deps"] if dep["path"].startswith("data/code/")}
    return {"deps": asked | judged, "params": [asking.get("params"), judging.get("params")]}


def _measured_by(stages: Mapping[str, Any], policy: str) -> list[str]:
    """The stages on record that make the policy's responses and then the verdicts on them."""
    tables = [f"data/{kind}/{policy}.parquet" for kind in ("responses", "verdicts")]
    return [
        name
        for table in tables
        for name, stage in stages.items()
        if table in [out["path"] for out in stage.get("outs", [])]
    ]


def _moved(command: str, paths: list[str]) -> str:
    """The command with each of `paths` below state/champion."""
    return shlex.join(f"state/champion/{word}" if word in paths else word for word in shlex.split(command))


def _objects(folder: Path) -> Path:
    from dvc.repo import Repo

    with Repo(str(folder)) as repo:
        return Path(repo.cache.local.path)


def cached(cache: Path, md5: str, champion: Champion) -> Path:
    """The object of DVC's cache. UserError with the remedy when it is not there."""
    path = cache / md5[:2] / md5[2:]
    if not path.exists():
        raise UserError(
            f"DVC's cache lacks {md5}, which belongs to champion {champion.told()}: "
            f"git checkout {champion.tag} && dvc pull, then run the flow again (dvc gc needs --all-tags)"
        )
    return path


def link_out(cache: Path, champion: Champion, place: Path) -> None:
    """The champion's policy folder as links into DVC's cache."""
    for entry in json.loads(cached(cache, champion.policy_hash, champion).read_text()):
        goal = place / entry["relpath"]
        goal.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(cached(cache, entry["md5"], champion), goal)


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
