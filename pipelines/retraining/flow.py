"""The Prefect flow `retrain`: new data, a snapshot on a branch, the whole graph in a worktree, the gate, promotion.

It ends as "Nothing new", "Refused" or "Promoted". Promotion moves the git tag champion-<recipe> and MLflow's alias
retrace-<recipe>@champion; no branch is merged and no file of the checkout changes. New data are files in the incoming
folder, and newer revisions of the recipe's sources:

    NAME.jsonl (.json, .csv, .parquet, each also .gz)   the next file of source NAME, or a new source
    NAME.yaml    for a new source: an entry of `sources` without path and sha256, or one of `collect_web.sources`
                 without path (kind jsonl or warc)
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pipelines.ui.prefect_home  # noqa: F401 (Prefect reads it when it is imported)

# isort: split
from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from pipelines.flows.whole_graph import Hours, Policy, Recipe, project_folder, run_stages
from pipelines.graph.recipes import read_recipe
from pipelines.launching.launchers import stage_hours
from pipelines.records.lock_snapshots import working_snapshot
from pipelines.retraining.gate import (
    Champion,
    Decision,
    candidate_measurement,
    champion_measurement,
    current,
    decide,
    decision_page,
    decision_sentence,
    pair_up,
    promote,
    promotions,
    update_registry,
)
from pipelines.runtime.checkouts import Code, checkout, code_at, remove_checkout, run_dvc, worktree_environment
from pipelines.runtime.locks import refusing_lock
from stages.collect.stage import Name
from stages.foundations.errors import UserError
from stages.foundations.files import load_yaml, require_no_links, sha256_of, stable_hash, write_json
from stages.foundations.machine import PROJECT, state_folder
from stages.foundations.stage import about
from stages.observe.git import commit_all, file_at, git, has_revision
from stages.observe.tracking import json_lines, latest_runs

SNAPSHOTS = "data/snapshots"
"""Folder for copies of incoming files in a retraining's worktree; DVC keeps them."""
BOOKKEEPING = (f"{SNAPSHOTS}.dvc", "data/.gitignore")
PROBLEMS, PAGES = about("collect"), about("collect_web")
"""Declarations of the two stages that take data in."""
RESULTS = ("dvc.lock", "data/metrics", "data/headline", "data/curves")
"""The results of a run that git keeps; the rest is in DVC's cache."""
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
    place = (state_folder() if root == PROJECT else root / "state") / "retraining"
    with refusing_lock(place, "another retraining runs: wait for it"):
        # First: if a registry cannot be reached, the flow ends here and not after hours of training.
        update_registry(root, recipe)
        champion = current(root, recipe)
        snapshot = find_new_data(root, recipe, champion, root / incoming, ask_upstream, place / "revisions")
        known = snapshot.params.get("policies", [])
        if policy not in known:
            raise UserError(f"recipe {recipe} measures no policy {policy!r}: choose one of {', '.join(known)}")
        # Uncommitted changes are left out: the commit on the branch must state which code ran.
        code = code_at(root, "HEAD", is_with_changes=False)
        # A forced retraining may have the data of an earlier one. The commit in its name keeps them apart.
        name = f"{snapshot.name}-{code.commit[:8]}" if force else snapshot.name
        attempt = Retraining(recipe, policy, snapshot, code, champion, name, place / f"{recipe}-{name}")
        records = place / f"{recipe}.jsonl"
        if not force and (sentence := nothing_new(attempt, records)):
            return Completed(name="Nothing new", message=sentence)
        make_snapshot(attempt)
        run_stages(attempt.folder, hours_per_stage, env=worktree_environment(attempt.folder))
        # Before the gate, so that the branch of a rejected candidate has its results too.
        commit = commit_all(attempt.folder, f"Retrained {recipe} on data snapshot {snapshot.name}", *RESULTS)
        decision = pass_gate(attempt, hours_per_stage)
        sentence = decision_sentence(decision, champion) if decision else "It is the first."
        is_promoted = decision is None or decision.is_promoted
        if is_promoted:
            sentence = make_champion(attempt, commit, sentence)
        # Recorded before the worktree is removed: after a kill in between a folder remains, but no data count as new
        # again.
        outcome = {"outcome": "promoted" if is_promoted else "refused", "date": now(), "told": sentence}
        with open(records, "a") as file:
            line = json.dumps({"name": name, "branch": attempt.branch, **outcome})
            file.write(f"\n{line}\n")  # the line before may have been cut off
        remove_checkout(root, attempt.folder)
        return Completed(name="Promoted" if is_promoted else "Refused", message=sentence)


@dataclass
class Snapshot:
    """Parameters with the newest data, the changes, and the files to copy: place -> file."""

    params: dict[str, Any]
    changes: list[str] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Names the data: equal data have equal names, with any other parameters."""
        sections = (one.sources.partition(".")[0] for one in (PROBLEMS, PAGES))
        return stable_hash({section: self.params.get(section) for section in sections})[:12]


@dataclass(frozen=True)
class Retraining:
    """A retraining: the recipe, the data and the code."""

    recipe: str
    policy: str
    snapshot: Snapshot
    code: Code
    champion: Champion | None
    name: str
    """Names branch and folder; equal data from the same code resume the existing attempt."""
    folder: Path
    """The worktree."""

    @property
    def branch(self) -> str:
        return f"retrain/{self.recipe}-{self.name}"


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


@task(name="look for new data", task_run_name="look for new data", **OPTIONS)
def find_new_data(
    root: Path, recipe: str, champion: Champion | None, incoming: Path, ask_upstream: bool, memory: Path
) -> Snapshot:
    """Returns the recipe with the newest data; the log says which data are new."""
    logger = get_run_logger()
    own = recipe_at(root, "HEAD", recipe)
    if own is None:
        raise UserError(
            f"pipelines/recipes/{recipe}.yaml is not committed: a retraining runs committed code and recipes"
        )
    if champion:
        # The champion ran on params.yaml of its commit, which contains the incoming data that no recipe names.
        own = carried_over(own, params_of(root, champion), recipe_at(root, champion.commit, recipe) or {})
    snapshot = look(own, incoming, ask_upstream, memory, logger.info)
    for change in snapshot.changes:
        logger.info("%s", change)
    if not snapshot.changes:
        logger.info("neither %s nor a source has anything new", incoming)
    return snapshot


OLD_EXTENDS = re.compile(r"^base:(?=[ \t]*[\"']?[\w.-]+\.yaml\b)", re.MULTILINE)
"""The key for the extended recipe in commits of earlier versions, which cannot be changed."""


def recipe_at(root: Path, revision: str, recipe: str) -> dict[str, Any] | None:
    """Returns the resolved recipe of a commit, in today's or the old spelling; None when it has no such file."""

    def read(file: str) -> str | None:
        text = file_at(root, revision, file)
        return None if text is None else OLD_EXTENDS.sub("extends:", text.decode())

    return read_recipe(root, recipe, read) if read(f"pipelines/recipes/{recipe}.yaml") else None


def params_of(root: Path, champion: Champion) -> dict[str, Any]:
    return load_yaml(file_at(root, champion.commit, "params.yaml") or b"") or {}


def nothing_new(attempt: Retraining, records: Path) -> str:
    """Returns why there is nothing to do; "" when there is."""
    champion, name = attempt.champion, attempt.snapshot.name
    if champion is None:
        return ""
    if Snapshot(params_of(attempt.code.root, champion)).name == name:
        return f"Nothing new: these are the data of champion {champion}."
    # The same data may be on record more than once. The last outcome counts.
    lines = records.read_bytes().splitlines() if records.exists() else []
    last = next((line for line in reversed(list(json_lines(lines))) if line["name"] == name), None)
    return f"Nothing new: these data were {last['outcome']} on {last['date']}. {last['told']}" if last else ""


@task(name="data snapshot", task_run_name="data snapshot", **OPTIONS)
def make_snapshot(attempt: Retraining) -> None:
    """Makes the worktree, with the snapshot as a commit on its branch; keeps that of an interrupted attempt."""
    logger, folder, snapshot, champion = get_run_logger(), attempt.folder, attempt.snapshot, attempt.champion
    key = f"{snapshot.name} {attempt.code.commit}\n"
    with checkout(attempt.code, folder, key, snapshot.params, attempt.recipe, attempt.branch) as is_new:
        logger.info("%s branch %s in %s", "new" if is_new else "going on with", attempt.branch, folder)
        if not is_new:
            return
        # `dvc add` replaces the record of the folder: files of earlier snapshots must be in it, or they drop out.
        if champion and has_revision(folder, f"{champion.commit}:{BOOKKEEPING[0]}"):
            git(folder, "checkout", champion.commit, "--", *BOOKKEEPING)
            _dvc(folder, "checkout", BOOKKEEPING[0])
        copy_files(snapshot, folder)
        if snapshot.files:
            _dvc(folder, "add", SNAPSHOTS)
            logger.info("%d incoming files are in DVC's cache, under %s", len(snapshot.files), SNAPSHOTS)
        # Files that were downloaded while looking for revisions are there already.
        downloads = state_folder() / "downloads"
        downloads.mkdir(parents=True, exist_ok=True)
        (folder / "state" / "downloads").symlink_to(downloads)
        changes = "\n".join(snapshot.changes) or "The recipe's own data."
        message = f"Data snapshot {snapshot.name} for {attempt.recipe}\n\n{changes}"
        commit_all(folder, message, "params.yaml", *BOOKKEEPING)


def _dvc(folder: Path, *arguments: str) -> None:
    code, last = run_dvc(folder, arguments)
    if code:
        raise UserError(f"dvc {' '.join(arguments)} in {folder} failed:\n{last}")


def copy_files(found: Snapshot, folder: Path) -> None:
    """Copies the snapshot's files to their places in a checkout. UserError when one has changed meanwhile."""
    for place, path in found.files.items():
        goal = folder / place
        goal.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, goal)
        if sha256_of(goal)[:12] not in goal.name:
            raise UserError(f"{path} was changed while it was copied: run the flow again")


@task(name="gate", task_run_name="gate", **OPTIONS)
def pass_gate(attempt: Retraining, hours_per_stage: float) -> Decision | None:
    """Returns the gate's decision; None when there is no champion to compare with."""
    logger, champion, folder, policy = get_run_logger(), attempt.champion, attempt.folder, attempt.policy
    if champion is None:
        logger.info("recipe %s has no champion: the first one needs no comparison", attempt.recipe)
        return None
    # Scores on record may come from other benchmarks or another verifier. Only equal conditions are compared.
    hours = stage_hours(folder, hours_per_stage)
    theirs = champion_measurement(champion, folder, policy, hours, lambda line: logger.info("%s", line))
    decision = decide(pair_up(theirs, candidate_measurement(folder, policy)))
    page = decision_page(decision, champion, attempt.branch, policy)
    create_markdown_artifact(page, key=f"gate-{attempt.recipe}", description=f"Gate of {attempt.branch}")
    logger.info("%s", decision_sentence(decision, champion))
    return decision


@task(name="promote", task_run_name="promote", **OPTIONS)
def make_champion(attempt: Retraining, commit: str, why: str) -> str:
    """Tags the commit and sets MLflow's alias; says what it did. UserError when no stage made the policy."""
    root, place = attempt.code.root, f"data/policies/{attempt.policy}"
    lock = working_snapshot(attempt.folder)
    if place not in lock.outs:
        raise UserError(f"dvc.lock of commit {commit[:10]} has no {place}: name a policy that it has")
    makers = [entry.name for entry in lock.entries.values() if place in entry.outs]
    runs = [run for run in latest_runs(attempt.folder / "state" / "ledger.jsonl") if run["name"] in makers]
    champion = Champion(
        recipe=attempt.recipe,
        # A number is never used twice, even after a rollback: tags of promotions never move.
        version=max((one.version for one in promotions(root, attempt.recipe)), default=0) + 1,
        policy=attempt.policy,
        commit=commit,
        policy_hash=lock.outs[place],
        run_id=runs[-1].get("run_id", "") if runs else "",
        before=attempt.champion.version if attempt.champion else None,
        date=now(),
    )
    promote(root, champion)
    sentence = f"{attempt.branch} is champion {champion}. {why}"
    get_run_logger().info("%s", sentence)
    return sentence


FORMATS = ("jsonl", "json", "csv", "parquet")
SECONDS_STILL = 10.0
"""Files that were written to since wait for the next time."""


def _tables(params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the two tables of named sources; changes to them go into `params`."""

    def inside(table: Mapping[str, Any], name: str) -> dict[str, Any]:
        found = table.get(name)
        return {} if found is None else found

    return reduce(inside, PROBLEMS.sources.split("."), params), reduce(inside, PAGES.sources.split("."), params)


def carried_over(
    recipe: Mapping[str, Any], champion: Mapping[str, Any], recipe_then: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the recipe's parameters with the champion's data, so that data once included stay included.

    A source whose entry in the recipe has changed since the champion was made (`recipe_then`) keeps the recipe's.
    """
    # `look` writes into these tables later: the recipe of the caller must stay as it was read.
    params = copy.deepcopy(dict(recipe))
    for own, then, theirs in zip(_tables(params), _tables(recipe_then), _tables(champion), strict=True):
        for name, entry in theirs.items():
            is_as_then = own.get(name) == then.get(name)  # both None: it came from an incoming file
            if is_as_then:
                own[name] = copy.deepcopy(entry)
    return params


def look(
    params: dict[str, Any], incoming: Path, is_upstream_asked: bool, memory: Path, say: Callable[[str], None]
) -> Snapshot:
    """Returns the newest data. `memory` is a folder for the servers' last answers. Silent servers change nothing.

    UserError names a file in `incoming` that cannot be used, and the entry that is needed.
    """
    found = Snapshot(params)
    sources = _tables(params)[0]
    for name in sources if is_upstream_asked else ():
        try:
            changed = newer_revision(name, sources[name]["from"], memory)
        except NoAnswer as error:
            say(f"source {name} could not be checked for a newer revision ({error}): the pinned one is kept")
            continue
        # Into the table in place, so that the snapshot's parameters have the new revision.
        if changed:
            sources[name]["from"] |= changed
            values = ", ".join(f"{key} {value[:12]}" for key, value in changed.items() if key != "url")
            found.changes.append(f"source {name} has a new revision: {values}")
    waiting = sorted(incoming.iterdir()) if incoming.is_dir() else []
    require_no_links(incoming, waiting)
    for path in waiting:
        # A .yaml describes the file beside it, and an incomplete download ends in .partial.
        if path.is_file() and not path.name.startswith(".") and path.suffix not in (".yaml", ".partial"):
            # A file that is still being copied would be hashed too early, and count as a new revision once more.
            if time.time() - path.stat().st_mtime < SECONDS_STILL:
                say(f"{path.name} was written to just now: it waits for the next time")
            else:
                _take(path, found)
    return found


def _take(path: Path, found: Snapshot) -> None:
    """Adds an incoming file to the snapshot; changes nothing when it is already included.

    The file gets a name with its hash, so that later changes of it do not reach the recipe.
    """
    words = path.name.lower().removesuffix(".gz").split(".")
    name, form = words[0], words[-1]
    if not Name.fullmatch(name):
        raise UserError(f"{path}: a source's name is made of lower case letters, digits and _: rename the file")
    sources, pages = _tables(found.params)
    described = path.with_name(f"{name}.yaml")
    entry = _read(described) if described.exists() else None
    sha256 = sha256_of(path)
    place = f"{SNAPSHOTS}/{name}-{sha256[:12]}{''.join(path.suffixes)}"
    if (entry or {}).get("kind") in PAGES.file_kinds or (entry is None and name in pages):
        section = PAGES.sources.partition(".")[0]
        if section not in found.params:
            raise UserError(f"{path}: the recipe has no section {section}, so no stage would read these pages: add it")
        table, new = pages, {**(entry or pages[name]), "path": place}
    else:
        if form not in FORMATS:
            raise UserError(
                f"{path}: files of problems end with .{', .'.join(FORMATS)} (or .gz behind it); web pages "
                f"need {described.name} with kind jsonl or warc"
            )
        entry = entry or sources.get(name, {})
        origin = entry.get("from", {})
        if "fields" not in origin:
            raise UserError(
                f"{path}: there is no source {name} that has fields. Write {name}.yaml beside it: role (train or "
                "benchmark), licence, and from: {fields: {problem: ..., answer: ..., solution: null}}"
            )
        # The new file is of the same kind as the source's previous file: its columns, filter and limit stay.
        kept = {"fields": origin["fields"], "only": origin.get("only", {}), "max_rows": origin.get("max_rows")}
        local = {"kind": "local", "path": place, "sha256": sha256, "format": form, **kept}
        table, new = sources, {**entry, "from": local}
    if table.get(name) != new:
        what = "a new file for source" if name in table else "a new source"
        found.changes.append(f"{path.name}: {what} {name}")
        table[name] = new
    found.files[place] = path


def _read(path: Path) -> dict[str, Any]:
    try:
        content = load_yaml(path.read_text())
    except ValueError as error:
        raise UserError(f"{path} is no YAML: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} must be an entry of sources: role, licence, from")
    return content


SECONDS_TO_ANSWER = 60.0
GITHUB = re.compile(
    r"https://(?:raw\.githubusercontent\.com|github\.com)/([^/]+/[^/]+)/(?:raw/|blob/)?([0-9a-f]{40})/.+"
)


class NoAnswer(Exception):
    """The server could not be reached; the pinned revision stays."""


def newer_revision(name: str, origin: Mapping[str, Any], memory: Path) -> dict[str, str]:
    """Asks the server of a source for a newer revision; returns the changed keys of `origin`, none if that is pinned.

    url: the file is requested with the entity tag of the last answer, and hashed when it has changed. An address with
         a commit of a GitHub repository in it cannot change; there the newest commit is looked up (git ls-remote).
    hub: the newest commit of the data set. Generated sources and local files have no revisions; a new local file comes
         through the incoming folder.

    NoAnswer when the server cannot be reached.
    """
    if origin["kind"] == "hub":
        newest = _hub_commit(origin["repository"])
        return {} if newest == origin["revision"] else {"revision": newest}
    if origin["kind"] != "url":
        return {}
    url = origin["url"]
    if pinned := GITHUB.fullmatch(url):
        newest = _github_commit(pinned[1])
        if newest == pinned[2]:
            return {}
        # An address with a commit in it always returns the same bytes, so the newest commit is looked up instead.
        url = url.replace(pinned[2], newest)
    sha256 = _sha256(url, memory / f"{name}.json")
    return {} if sha256 == origin["sha256"] else {"url": url, "sha256": sha256}


def _sha256(url: str, remembered: Path) -> str:
    """Returns the hash of the URL's file, which the downloads folder keeps if the server sends it."""
    known = json.loads(remembered.read_text()) if remembered.exists() else {}
    request = urllib.request.Request(url)
    # Entity tags of two addresses cannot be compared.
    if known.get("url") == url and known.get("etag"):
        request.add_header("If-None-Match", known["etag"])
    downloads = state_folder() / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    # On the same file system as its destination, so that the rename below is atomic.
    with tempfile.TemporaryDirectory(dir=downloads, suffix=".partial") as folder:
        fetched = Path(folder) / "fetched"
        try:
            with urllib.request.urlopen(request, timeout=SECONDS_TO_ANSWER) as response, open(fetched, "wb") as file:
                shutil.copyfileobj(response, file)
                etag = response.headers.get("ETag")
        except urllib.error.HTTPError as error:
            # urllib raises 304, "not modified", as an error.
            if error.code == 304:
                return known["sha256"]
            raise NoAnswer(error) from error
        # A connection that breaks in the middle of a chunk raises HTTPException, which is not an OSError.
        except (OSError, HTTPException) as error:
            raise NoAnswer(getattr(error, "reason", error)) from error
        sha256 = sha256_of(fetched)
        # `collect` looks for a file of this hash here before it downloads.
        os.replace(fetched, downloads / sha256)
    remembered.parent.mkdir(parents=True, exist_ok=True)
    write_json(remembered, {"url": url, "etag": etag, "sha256": sha256})
    return sha256


def _github_commit(repository: str) -> str:
    command = ["git", "ls-remote", f"https://github.com/{repository}", "HEAD"]
    # Otherwise git would ask for a password at a repository that is gone, and wait for ever.
    surroundings = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_TO_ANSWER, env=surroundings)
    except subprocess.TimeoutExpired as error:
        raise NoAnswer("no answer in time") from error
    if done.returncode or not done.stdout.strip():
        raise NoAnswer((done.stderr.strip().splitlines() or ["no such repository"])[-1])
    return done.stdout.split()[0]


def _hub_commit(repository: str) -> str:
    from huggingface_hub import HfApi

    try:
        return HfApi().dataset_info(repository, timeout=SECONDS_TO_ANSWER).sha
    except Exception as error:  # the hub client raises many kinds; each means that it could not be reached
        raise NoAnswer(" ".join(str(error).split())[:200]) from error
