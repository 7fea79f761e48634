"""Finds new data: revisions of the recipe's sources, and files in the incoming folder.

    NAME.jsonl (.json, .csv, .parquet, each also .gz)   the next file of source NAME, or a new source
    NAME.yaml    for a new source: an entry of `sources` without path and sha256, or one of `collect_web.sources`
                 without path (kind jsonl or warc)

A file is copied under a name with its hash, so that later changes do not reach the recipe. Files that were written
to in the last ten seconds wait for the next time.

`newer_revision` asks the server of a source whether it has a newer revision than the recipe pins:

url: the file is requested with the entity tag of the last answer, and hashed when it has changed. An address with
     a commit of a GitHub repository in it cannot change; there the newest commit is looked up (git ls-remote).
hub: the newest commit of the data set. Generated sources and local files have no revisions; a new local file comes
     through the incoming folder.
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
from functools import cache, reduce
from http.client import HTTPException
from pathlib import Path
from typing import Any

import yaml

from stages.collect.stage import Name
from stages.foundations.errors import UserError
from stages.foundations.files import load_yaml, require_no_links, sha256_of, stable_hash, write_json
from stages.foundations.machine import PROJECT, state_folder
from stages.foundations.stage import About, about
from stages.foundations.stage_graph import read_definitions

SNAPSHOTS = "data/snapshots"
"""Folder for copies of incoming files in a retraining's worktree; DVC keeps them."""
FORMATS = ("jsonl", "json", "csv", "parquet")
SECONDS_STILL = 10.0


@cache
def _abouts() -> tuple[About, About]:
    """Declarations of the two stages that take data in: the one for problems, and the one for pages."""
    found = [about(stage) for stage in read_definitions(PROJECT / "dvc.yaml") if about(stage).sources]
    return next(one for one in found if not one.file_kinds), next(one for one in found if one.file_kinds)


@dataclass
class Snapshot:
    """Parameters with the newest data, the changes, and the files to copy: place -> file."""

    params: dict[str, Any]
    changes: list[str] = field(default_factory=list)
    files: dict[str, Path] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Names the data: equal data have equal names, with any other parameters."""
        return stable_hash(data_of(self.params))[:12]


def data_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sections of a parameter file that define the data."""
    sections = (one.sources.partition(".")[0] for one in _abouts())
    return {name: params.get(name) for name in sections}


def carried_over(
    recipe: Mapping[str, Any], champion: Mapping[str, Any] | None, recipe_then: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Returns the recipe's parameters with the champion's data, so that data once included stay included.

    A source whose entry in the recipe has changed since the champion was made (`recipe_then`) keeps the recipe's.
    """
    # `look` writes into these tables later: the recipe of the caller must stay as it was read.
    params = copy.deepcopy(dict(recipe))
    if champion is None:
        return params
    for own, then, theirs in zip(_tables(params), _tables(recipe_then or {}), _tables(champion), strict=True):
        for name, entry in theirs.items():
            is_as_then = own.get(name) == then.get(name)  # both None: it came from an incoming file
            if is_as_then:
                own[name] = copy.deepcopy(entry)
    return params


def _tables(params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the two tables of named sources; changes to them go into `params`."""
    problems, pages = (reduce(_inside, one.sources.split("."), params) for one in _abouts())
    return problems, pages


def _inside(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    inside = params.get(name)
    return {} if inside is None else inside


def look(
    params: dict[str, Any], incoming: Path, is_upstream_asked: bool, memory: Path, say: Callable[[str], None]
) -> Snapshot:
    """Returns the newest data. `memory` is a folder for the servers' last answers. Silent servers change nothing.

    UserError names a file in `incoming` that cannot be used, and the entry that is needed.
    """
    found = Snapshot(params)
    sources = _tables(params)[0]
    if is_upstream_asked:
        for name in sources:
            changed = newer_revision(name, sources[name]["from"], memory, say)
            # Into the table in place, so that the snapshot's parameters have the new revision.
            if changed:
                sources[name]["from"] |= changed
                values = ", ".join(f"{key} {str(value)[:12]}" for key, value in changed.items() if key != "url")
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
    """Adds an incoming file to the snapshot; changes nothing when it is already included."""
    words = path.name.lower().removesuffix(".gz").split(".")
    name, form = words[0], words[-1]
    if not Name.fullmatch(name):
        raise UserError(f"{path}: a source's name is made of lower case letters, digits and _: rename the file")
    sources, pages = _tables(found.params)
    described = path.with_name(f"{name}.yaml")
    entry = _read(described) if described.exists() else None
    sha256 = sha256_of(path)
    place = f"{SNAPSHOTS}/{name}-{sha256[:12]}{''.join(path.suffixes)}"
    if (entry or {}).get("kind") in _abouts()[1].file_kinds or (entry is None and name in pages):
        new = {**(entry or pages[name]), "path": place}
        table = pages
    else:
        if form not in FORMATS:
            raise UserError(
                f"{path}: files of problems end with .{', .'.join(FORMATS)} (or .gz behind it); web pages "
                f"need {described.name} with kind jsonl or warc"
            )
        new, table = _problems(path, name, form, entry or sources.get(name), place, sha256), sources
    if table.get(name) != new:
        what = "a new file for source" if name in table else "a new source"
        found.changes.append(f"{path.name}: {what} {name}")
        table[name] = new
    found.files[place] = path


def _problems(
    path: Path, name: str, form: str, entry: Mapping[str, Any] | None, place: str, sha256: str
) -> dict[str, Any]:
    origin = (entry or {}).get("from", {})
    if "fields" not in origin:
        raise UserError(
            f"{path}: there is no source {name} that has fields. Write {name}.yaml beside it: role (train or "
            "benchmark), licence, and from: {fields: {problem: ..., answer: ..., solution: null}}"
        )
    # The new file is of the same kind as the source's previous file: its columns, filter and limit stay.
    kept = {key: origin.get(key, missing) for key, missing in (("fields", None), ("only", {}), ("max_rows", None))}
    local = {"kind": "local", "path": place, "sha256": sha256, "format": form, **kept}
    return {**{key: value for key, value in (entry or {}).items() if key != "from"}, "from": local}


def _read(path: Path) -> dict[str, Any]:
    try:
        content = load_yaml(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} must be an entry of sources: role, licence, from")
    return content


def copy_files(found: Snapshot, folder: Path) -> None:
    """Copies the snapshot's files to their places in a checkout. UserError when one has changed meanwhile."""
    for place, path in found.files.items():
        goal = folder / place
        goal.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, goal)
        if sha256_of(goal)[:12] not in goal.name:
            raise UserError(f"{path} was changed while it was copied: run the flow again")


SECONDS_TO_ANSWER = 60.0
GITHUB = re.compile(
    r"https://(?:raw\.githubusercontent\.com|github\.com)/([^/]+/[^/]+)/(?:raw/|blob/)?([0-9a-f]{40})/.+"
)


class NoAnswer(Exception):
    """The server could not be reached; the pinned revision stays."""


def newer_revision(
    name: str, origin: Mapping[str, Any], memory: Path, say: Callable[[str], None]
) -> dict[str, Any] | None:
    """Returns keys of `origin` changed by the newest revision; None if that is pinned already or no server answers."""
    try:
        if origin["kind"] == "hub":
            newest = _hub_commit(origin["repository"])
            return {"revision": newest} if newest != origin["revision"] else None
        if origin["kind"] == "url":
            return _url_revision(name, origin, memory)
    except NoAnswer as error:
        say(f"source {name} could not be checked for a newer revision ({error}): the pinned one is kept")
    return None


def _url_revision(name: str, origin: Mapping[str, Any], memory: Path) -> dict[str, Any] | None:
    url = origin["url"]
    pinned = GITHUB.fullmatch(url)
    if pinned:
        newest = _github_commit(pinned[1])
        if newest == pinned[2]:
            return None
        # An address with a commit in it always returns the same bytes, so the newest commit is looked up instead.
        url = url.replace(pinned[2], newest)
    sha256 = _sha256(url, memory / f"{name}.json")
    return None if sha256 in (None, origin["sha256"]) else {"url": url, "sha256": sha256}


def _sha256(url: str, remembered: Path) -> str | None:
    """Returns the hash of the URL's file, which the downloads folder keeps; None if the server reports no change."""
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
