"""Whether a source has a newer revision than the recipe pins, asked of whoever serves it.

url: the file is asked for with the entity tag of the last answer, and hashed when it is another one. An address with
     a commit of a GitHub repository in it cannot change; there the newest commit is asked for (git ls-remote).
hub: the newest commit of the data set. Generated sources and local files have no revisions; a local file comes anew
     through the incoming folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any

from stages.foundations.files import sha256_of, write_json
from stages.foundations.scratch import state_folder

SECONDS_TO_ANSWER = 60.0
GITHUB = re.compile(
    r"https://(?:raw\.githubusercontent\.com|github\.com)/([^/]+/[^/]+)/(?:raw/|blob/)?([0-9a-f]{40})/.+"
)


class NoAnswer(Exception):
    """The server could not be asked; the pinned revision stays."""


def newer_revision(
    name: str, origin: Mapping[str, Any], memory: Path, say: Callable[[str], None]
) -> dict[str, Any] | None:
    """The keys of `origin` that change with the newest revision; None when it is pinned already or nobody answers."""
    try:
        if origin["kind"] == "hub":
            newest = _hub_commit(origin["repository"])
            return {"revision": newest} if newest != origin["revision"] else None
        if origin["kind"] == "url":
            return _url_revision(name, origin, memory)
    except NoAnswer as error:
        say(f"source {name} could not be asked for a newer revision ({error}): the pinned one stays")
    return None


def _url_revision(name: str, origin: Mapping[str, Any], memory: Path) -> dict[str, Any] | None:
    url = origin["url"]
    pinned = GITHUB.fullmatch(url)
    if pinned:
        newest = _github_commit(pinned[1])
        if newest == pinned[2]:
            return None
        url = url.replace(pinned[2], newest)
    sha256 = _sha256(url, memory / f"{name}.json")
    return None if sha256 in (None, origin["sha256"]) else {"url": url, "sha256": sha256}


def _sha256(url: str, remembered: Path) -> str | None:
    """Hash of the file behind the URL, which is kept in the downloads folder; None when the server says: as before."""
    known = json.loads(remembered.read_text()) if remembered.exists() else {}
    request = urllib.request.Request(url)
    if known.get("url") == url and known.get("etag"):
        request.add_header("If-None-Match", known["etag"])
    downloads = state_folder() / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=downloads, suffix=".partial") as folder:
        fetched = Path(folder) / "fetched"
        try:
            with (
                urllib.request.urlopen(request, timeout=SECONDS_TO_ANSWER) as response,
                open(fetched, "wb") as file,
            ):
                shutil.copyfileobj(response, file)
                etag = response.headers.get("ETag")
        except urllib.error.HTTPError as error:
            if error.code == 304:
                return known["sha256"]
            raise NoAnswer(error) from error
        except (OSError, HTTPException) as error:
            raise NoAnswer(getattr(error, "reason", error)) from error
        sha256 = sha256_of(fetched)
        os.replace(fetched, downloads / sha256)
    remembered.parent.mkdir(parents=True, exist_ok=True)
    write_json(remembered, {"url": url, "etag": etag, "sha256": sha256})
    return sha256


def _github_commit(repository: str) -> str:
    command = ["git", "ls-remote", f"https://github.com/{repository}", "HEAD"]
    surroundings = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS_TO_ANSWER, env=surroundings
        )
    except subprocess.TimeoutExpired as error:
        raise NoAnswer("no answer in time") from error
    if done.returncode or not done.stdout.strip():
        raise NoAnswer((done.stderr.strip().splitlines() or ["no such repository"])[-1])
    return done.stdout.split()[0]


def _hub_commit(repository: str) -> str:
    from huggingface_hub import HfApi

    try:
        return HfApi().dataset_info(repository, timeout=SECONDS_TO_ANSWER).sha
    except Exception as error:  # the hub client raises many kinds; each means that it could not be asked
        raise NoAnswer(" ".join(str(error).split())[:200]) from error
