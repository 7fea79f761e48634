"""Gets a pinned file: from the mirror folder, from earlier downloads, or from its URL, and never other bytes.

The order is mirror, `state/downloads/`, network. Both folders name a file by its sha256, so any copy of one serves.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from stages.collect.params import CollectParams, HubSource, LocalSource, UrlSource
from stages.foundations.errors import UserError
from stages.foundations.files import sha256_of
from stages.foundations.scratch import state_folder
from stages.observe.progress import progress, say

BLOCK_BYTES = 1 << 20


def locate_file(name: str, origin: UrlSource | LocalSource | HubSource, params: CollectParams) -> Path:
    """A path to the source's file with the right bytes; UserError says which, and what to do about it."""
    match origin:
        case LocalSource():
            return _local_file(name, origin)
        case HubSource():
            return _hub_file(origin)
        case UrlSource():
            return _pinned_file(name, origin, params)


def _pinned_file(name: str, origin: UrlSource, params: CollectParams) -> Path:
    if params.mirror is not None:
        mirrored = _from_root(params.mirror) / origin.sha256
        if mirrored.is_file():
            found = sha256_of(mirrored)
            if found == origin.sha256:
                return mirrored
            raise UserError(
                f"{mirrored} has sha256 {found}, which is not its name: the copy is damaged. Delete it or replace it"
            )
    kept = state_folder() / "downloads" / origin.sha256
    if kept.is_file():
        if sha256_of(kept) == origin.sha256:
            return kept
        say(f"{kept} is damaged, downloading it again")
        kept.unlink()
    return _download(name, origin, kept, params)


def _download(name: str, origin: UrlSource, place: Path, params: CollectParams) -> Path:
    """Downloads to a file beside `place`, which gets its name only when its bytes are the right ones."""
    say(f"{name}: downloading {origin.url}")
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f".{origin.sha256}.{os.getpid()}.partial")
    try:
        with open(beside, "wb") as file:
            found = _fetch(origin.url, file, params)
        if found != origin.sha256:
            raise UserError(
                f"{origin.url} has sha256 {found}, but sources.{name}.from.sha256 is {origin.sha256}: upstream has "
                "changed or something else answered. Look at the file; put its sha256 into the recipe only if it is "
                "what you want to train on"
            )
        os.replace(beside, place)
    finally:
        beside.unlink(missing_ok=True)
    return place


def _fetch(url: str, file: BinaryIO, params: CollectParams) -> str:
    """Writes the URL's bytes to `file`, returns their sha256."""
    remedy = (
        f"check the network and the address, or put the file, named by its sha256, into the mirror folder "
        f"(collect.mirror: {params.mirror or 'null, so name one'})"
    )
    digest, received = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(url, timeout=params.timeout_seconds) as response:
            expected = response.headers.get("Content-Length")
            total = int(expected) if expected and expected.isdigit() else None
            for block in progress(
                _blocks(response), total and -(-total // BLOCK_BYTES), "downloading", "MiB"
            ):
                digest.update(block)
                received += len(block)
                file.write(block)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = error if isinstance(error, urllib.error.HTTPError) else getattr(error, "reason", error)
        raise UserError(f"{url} cannot be downloaded ({reason}): {remedy}") from error
    if total is not None and received < total:
        raise UserError(f"{url} broke off after {received} of {total} bytes: {remedy}")
    return digest.hexdigest()


def _blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while block := response.read(BLOCK_BYTES):
        yield block


def _local_file(name: str, origin: LocalSource) -> Path:
    path = _from_root(origin.path)
    if not path.is_file():
        raise UserError(
            f"{path} does not exist: correct sources.{name}.from.path, it counts from the project's root"
        )
    found = sha256_of(path)
    if found != origin.sha256:
        raise UserError(
            f"{path} has sha256 {found}, but sources.{name}.from.sha256 is {origin.sha256}: the file is not the one "
            "that the recipe means. Put its sha256 into the recipe if it is what you want"
        )
    return path


def _hub_file(origin: HubSource) -> Path:
    from huggingface_hub import hf_hub_download

    remedy = "check names, network and, for a gated data set, your token; or fetch it elsewhere and use kind: local"
    try:
        return Path(
            hf_hub_download(origin.repository, origin.file, repo_type="dataset", revision=origin.revision)
        )
    except Exception as error:  # the hub client raises many kinds; each means that the file cannot be had
        where = f"{origin.file} of {origin.repository} at {origin.revision[:12]}"
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{where} cannot be fetched from the hub ({reason}): {remedy}") from error


def _from_root(path: str) -> Path:
    """Paths in a recipe count from the project's root, also where DVC runs a copy of the tree."""
    return Path(os.environ.get("DVC_ROOT") or ".") / path
