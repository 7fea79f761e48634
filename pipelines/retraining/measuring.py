"""The tables behind the scores of champion and candidate, measured under the same conditions.

The champion's stored responses count when it answered the same benchmarks with the same prompts, sampler, seed and
code, and was graded by the same verifier. Otherwise it is measured again as the candidate was: with the candidate's own
commands, in its worktree, on weights that are links into DVC's cache.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipelines.launching.resources import stage_gpus
from pipelines.records.places import Place, place_at, working_place
from pipelines.records.trained_on import trained_problems
from pipelines.retraining.champion import Champion, locked_outs, locked_stages
from pipelines.retraining.tables import Measurement
from pipelines.runtime.checkouts import worktree_environment
from pipelines.runtime.git import git
from pipelines.runtime.gpu_slots import gpu_slots, lock_folder
from pipelines.runtime.process_group import run_in_group
from stages.foundations.errors import UserError


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
        responses, verdicts = (
            outs[f"data/{kind}/{champion.policy}.parquet"] for kind in ("responses", "verdicts")
        )
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
            raise UserError(
                f"the champion could not be measured again: `{command}` ended with exit code {code}"
            )
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
