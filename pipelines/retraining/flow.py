"""The Prefect flow `retrain`: new data, a snapshot on a branch, the whole graph in a worktree, the gate, promotion.

It ends as "Nothing new", "Refused" or "Promoted". Promotion moves the git tag champion-<recipe> and MLflow's alias
retrace-<recipe>@champion; no branch is merged and no file of the checkout changes.

It runs in a git worktree with its own branch and parameters, and the project's DVC cache (`open_worktree`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pipelines.ui.prefect_home  # noqa: F401 (Prefect reads it when it is imported)

# isort: split
import yaml
from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from pipelines.flows.whole_graph import Hours, Policy, Recipe, project_folder, run_stages
from pipelines.graph.recipes import read_recipe
from pipelines.launching.params import stage_hours
from pipelines.records.lock_snapshots import working_snapshot
from pipelines.retraining.champion import Champion, current, policy_hash, promote, promotions, update_registry
from pipelines.retraining.gate import (
    Decision,
    candidate_measurement,
    champion_measurement,
    decide,
    decision_page,
    decision_sentence,
    pair_up,
)
from pipelines.retraining.new_data import SNAPSHOTS, Snapshot, carried_over, copy_files, data_of, look
from pipelines.runtime.checkouts import Code, cache_folder, checkout, remove_checkout, run_dvc, worktree_environment
from pipelines.runtime.locks import refusing_lock
from stages.foundations.errors import UserError
from stages.foundations.files import load_yaml, stable_hash, write_text_atomically
from stages.foundations.machine import state_folder
from stages.observe.git import commit_all, file_at, git, has_revision
from stages.observe.tracking import json_lines, latest_runs

# Tasks change git and folders: Prefect must neither reuse an earlier result nor retry a task.
OPTIONS = {"cache_policy": NO_CACHE, "persist_result": False, "retries": 0}


@flow(name="retrain", flow_run_name="retrain {recipe}", log_prints=False, persist_result=False)
def retrain(
    recipe: Recipe,
    policy: Policy,
    incoming: str = "state/incoming",
    ask_upstream: bool = True,
    force: bool = False,
    hours_per_stage: Hours = 0.0,
    project: str = "",
) -> State:
    """Retrain on new data, and promote the result only when it is measurably better than the champion.

    Args:
        recipe: Recipe to retrain. Its committed file is used, with the champion's data.
        policy: The recipe's policy that is compared with the champion, and promoted.
        incoming: Folder with new files, from the project's root. A file replaces that of the source with its name.
        ask_upstream: Also check the servers of the recipe's sources for newer revisions.
        force: Retrain even on the champion's data or on data tried before, such as after changes of code or recipe.
        hours_per_stage: A stage that runs longer is stopped, and the flow fails. 0: `launch.hours` is the limit.
        project: Folder of another DVC project on the worker's machine. Empty: this project.
    """
    root = project_folder(project)
    with refusing_lock(retraining_folder(root), "another retraining runs: wait for it"):
        # First: if a registry cannot be reached, the flow ends here and not after hours of training.
        update_registry(root, recipe)
        champion = current(root, recipe)
        snapshot = find_new_data(root, recipe, champion, root / incoming, ask_upstream)
        _require_policy(snapshot, recipe, policy)
        attempt = _attempt(root, recipe, snapshot, champion, force)
        if (sentence := _nothing_new(attempt)) and not force:
            return Completed(name="Nothing new", message=sentence)
        folder = make_snapshot(attempt)
        run_stages(folder, hours_per_stage, env=worktree_environment(folder))
        # Before the gate, so that the branch of a rejected candidate has its results too.
        commit = keep_results(attempt, folder)
        decision = pass_gate(attempt, folder, policy, hours_per_stage)
        if decision is None or decision.is_promoted:
            sentence = make_champion(attempt, folder, policy, commit, decision)
        else:
            sentence = decision_sentence(decision, champion)
        is_promoted = decision is None or decision.is_promoted
        # Recorded before the worktree is removed: after a kill in between a folder remains, but no data count as new
        # again.
        _record(attempt, "promoted" if is_promoted else "refused", sentence)
        remove_checkout(root, folder)
        return Completed(name="Promoted" if is_promoted else "Refused", message=sentence)


@task(name="look for new data", task_run_name="look for new data", **OPTIONS)
def find_new_data(root: Path, recipe: str, champion: Champion | None, incoming: Path, ask_upstream: bool) -> Snapshot:
    """Returns the recipe with the newest data; the log says which data are new."""
    logger = get_run_logger()
    file = f"pipelines/recipes/{recipe}.yaml"
    own, then = (_recipe(root, revision, recipe) for revision in ("HEAD", champion.commit if champion else "HEAD"))
    if own is None:
        raise UserError(f"{file} is not committed: a retraining runs committed code and recipes")
    # The champion ran on params.yaml of its commit, which contains the incoming data that no recipe names.
    theirs = _params(root, champion.commit, "params.yaml") if champion else None
    snapshot = look(
        carried_over(own, theirs, then), incoming, ask_upstream, retraining_folder(root) / "revisions", logger.info
    )
    for change in snapshot.changes:
        logger.info("%s", change)
    if not snapshot.changes:
        logger.info("neither %s nor a source has anything new", incoming)
    return snapshot


def _require_policy(snapshot: Snapshot, recipe: str, policy: str) -> None:
    known = snapshot.params.get("policies", [])
    if policy not in known:
        raise UserError(f"recipe {recipe} measures no policy {policy!r}: choose one of {', '.join(known)}")


OLD_EXTENDS = re.compile(r"^base:(?=[ \t]*[\"']?[\w.-]+\.yaml\b)", re.MULTILINE)
"""The key for the extended recipe in commits of earlier versions, which cannot be changed."""


def _recipe(root: Path, revision: str, recipe: str) -> dict[str, Any] | None:
    """Returns the resolved recipe of a commit, in today's or the old spelling; None when it has no such file."""

    def read(file: str) -> str | None:
        text = file_at(root, revision, file)
        return None if text is None else OLD_EXTENDS.sub("extends:", text.decode())

    return read_recipe(root, recipe, read) if read(f"pipelines/recipes/{recipe}.yaml") else None


def _params(root: Path, revision: str, file: str) -> dict[str, Any] | None:
    text = file_at(root, revision, file)
    return None if text is None else load_yaml(text)


def _attempt(root: Path, recipe: str, snapshot: Snapshot, champion: Champion | None, force: bool) -> Retraining:
    base = git(root, "rev-parse", "HEAD")
    # A forced retraining may have the data of an earlier one. The commit in its name keeps them apart.
    return Retraining(root, recipe, f"{snapshot.name}-{base[:8]}" if force else snapshot.name, snapshot, base, champion)


def _nothing_new(attempt: Retraining) -> str:
    """Returns why there is nothing to do; "" when there is."""
    champion = attempt.champion
    if champion is None:
        return ""
    theirs = stable_hash(data_of(_params(attempt.root, champion.commit, "params.yaml") or {}))[:12]
    if theirs == attempt.snapshot.name:
        return f"Nothing new: these are the data of champion {champion.describe()}."
    # The same data may be on record more than once. The last outcome counts.
    for line in reversed(_records(attempt.root, attempt.recipe)):
        if line["name"] == attempt.name:
            return f"Nothing new: these data were {line['outcome']} on {line['date']}. {line['told']}"
    return ""


@dataclass(frozen=True)
class Retraining:
    """A retraining: the recipe, the data and the code."""

    root: Path
    recipe: str
    name: str
    """Names branch and folder; equal data from the same code resume the existing attempt."""
    snapshot: Snapshot
    base: str
    """Commit of the code that runs."""
    champion: Champion | None

    @property
    def branch(self) -> str:
        return f"retrain/{self.recipe}-{self.name}"

    @property
    def folder(self) -> Path:
        return retraining_folder(self.root) / f"{self.recipe}-{self.name}"


@task(name="data snapshot", task_run_name="data snapshot", **OPTIONS)
def make_snapshot(attempt: Retraining) -> Path:
    """Returns the worktree to retrain in, with the data on a new branch."""
    logger = get_run_logger()
    folder = open_worktree(attempt, logger.info)
    logger.info("branch %s in %s", attempt.branch, folder)
    return folder


@task(name="gate", task_run_name="gate", **OPTIONS)
def pass_gate(attempt: Retraining, folder: Path, policy: str, hours_per_stage: float) -> Decision | None:
    """Returns the gate's decision; None when there is no champion to compare with."""
    logger, champion = get_run_logger(), attempt.champion
    if champion is None:
        logger.info("recipe %s has no champion: the first one needs no comparison", attempt.recipe)
        return None
    # Scores on record may come from other benchmarks or another verifier. Only equal conditions are compared.
    theirs, is_again = champion_measurement(
        champion, folder, policy, stage_hours(folder, hours_per_stage), lambda line: logger.info("%s", line)
    )
    logger.info("the champion was %s", "measured again, as the candidate was" if is_again else "measured alike before")
    decision = decide(pair_up(theirs, candidate_measurement(folder, policy)))
    page = decision_page(decision, champion, attempt.branch, policy)
    create_markdown_artifact(page, key=f"gate-{attempt.recipe}", description=f"Gate of {attempt.branch}")
    logger.info("%s", decision_sentence(decision, champion))
    return decision


@task(name="promote", task_run_name="promote", **OPTIONS)
def make_champion(attempt: Retraining, folder: Path, policy: str, commit: str, decision: Decision | None) -> str:
    """Tags the commit and sets MLflow's alias; says what it did."""
    root, before = attempt.root, attempt.champion
    versions = [one.version for one in promotions(root, attempt.recipe)]
    champion = Champion(
        recipe=attempt.recipe,
        # A number is never used twice, even after a rollback: tags of promotions never move.
        version=max(versions, default=0) + 1,
        policy=policy,
        commit=commit,
        policy_hash=policy_hash(root, commit, policy),
        run_id=_run_id(folder, policy),
        before=before.version if before else None,
        date=_now(),
    )
    promote(root, champion)
    why = decision_sentence(decision, before) if decision else "It is the first."
    sentence = f"{attempt.branch} is champion {champion.describe()}. {why}"
    get_run_logger().info("%s", sentence)
    return sentence


def _run_id(folder: Path, policy: str) -> str:
    entries = working_snapshot(folder).entries.values()
    names = [entry.name for entry in entries if f"data/policies/{policy}" in entry.outs]
    runs = [run for run in latest_runs(folder / "state" / "ledger.jsonl") if run["name"] in names]
    return runs[-1].get("run_id", "") if runs else ""


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _records(root: Path, recipe: str) -> list[dict[str, str]]:
    """Returns the outcomes on record, oldest first."""
    file = retraining_folder(root) / f"{recipe}.jsonl"
    return list(json_lines(file.read_bytes().splitlines())) if file.exists() else []


def _record(attempt: Retraining, outcome: str, sentence: str) -> None:
    line = {"name": attempt.name, "branch": attempt.branch, "outcome": outcome, "date": _now(), "told": sentence}
    with open(retraining_folder(attempt.root) / f"{attempt.recipe}.jsonl", "a") as file:
        file.write("\n" + json.dumps(line) + "\n")  # the line before may have been cut off


BOOKKEEPING = (f"{SNAPSHOTS}.dvc", "data/.gitignore")
RESULTS = ("dvc.lock", "data/metrics", "data/headline", "data/curves")
"""The results of a run that git keeps; the rest is in DVC's cache."""


def retraining_folder(root: Path) -> Path:
    """Folder of worktrees, locks and records of retrainings."""
    from stages.foundations.machine import PROJECT

    return (state_folder() if root == PROJECT else root / "state") / "retraining"


def open_worktree(attempt: Retraining, say: Callable[[str], None]) -> Path:
    """Returns the attempt's worktree, with the snapshot as a commit on its branch; reuses an interrupted attempt's."""
    root, folder = attempt.root, attempt.folder
    # Uncommitted changes are left out: the commit on the branch must state which code ran.
    code = Code(root, attempt.base, is_with_changes=False, changed=())
    key = f"{attempt.snapshot.name} {attempt.base}\n"
    with checkout(code, folder, cache_folder(root), key, attempt.branch) as is_new:
        if not is_new:
            say(f"going on in {folder}")
            return folder
        write_text_atomically(folder / "params.yaml", yaml.safe_dump(attempt.snapshot.params, sort_keys=False))
        write_text_atomically(folder / "state" / "recipe", attempt.recipe + "\n")
        _place_snapshots(attempt, folder, say)
        _link_downloads(folder)
        lines = "\n".join(attempt.snapshot.changes) or "The recipe's own data."
        message = f"Data snapshot {attempt.snapshot.name} for {attempt.recipe}\n\n{lines}"
        commit_all(folder, message, "params.yaml", *BOOKKEEPING)
    return folder


def _place_snapshots(attempt: Retraining, folder: Path, say: Callable[[str], None]) -> None:
    champion = attempt.champion
    # `dvc add` replaces the record of the folder: files of earlier snapshots must be in it, or they drop out.
    if champion and has_revision(attempt.root, f"{champion.commit}:{BOOKKEEPING[0]}"):
        git(folder, "checkout", champion.commit, "--", *BOOKKEEPING)
        _dvc(folder, "checkout", BOOKKEEPING[0])
    copy_files(attempt.snapshot, folder)
    if attempt.snapshot.files:
        _dvc(folder, "add", SNAPSHOTS)
        say(f"{len(attempt.snapshot.files)} incoming files are in DVC's cache, under {SNAPSHOTS}")


def _dvc(folder: Path, *arguments: str) -> None:
    lines: list[str] = []
    if run_dvc(folder, arguments, lines.append):
        raise UserError(f"dvc {' '.join(arguments)} in {folder} failed:\n" + "\n".join(lines[-10:]))


def _link_downloads(folder: Path) -> None:
    """Reuses files that were downloaded while looking for revisions."""
    downloads = state_folder() / "downloads"
    goal = folder / "state" / "downloads"
    goal.mkdir(parents=True, exist_ok=True)
    for file in downloads.iterdir() if downloads.is_dir() else ():
        if not file.name.endswith(".partial") and not (goal / file.name).exists():
            try:
                # A hard link takes no space, and removing the worktree leaves the other name.
                os.link(file, goal / file.name)
            except OSError:  # another file system
                shutil.copy2(file, goal / file.name)


def keep_results(attempt: Retraining, folder: Path) -> str:
    """Commits dvc.lock, metrics and curves on the branch; returns the commit."""
    return commit_all(folder, f"Retrained {attempt.recipe} on data snapshot {attempt.snapshot.name}", *RESULTS)
