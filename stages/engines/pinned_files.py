"""Gets a pinned file: from the mirror folder, from earlier downloads, or from its URL, and never other bytes.

The order is mirror, `state/downloads/`, network. Both folders name a file by its sha256, so any copy of one serves.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import BinaryIO

from stages.foundations.errors import UserError
from stages.foundations.files import require_sha256, sha256_of
from stages.foundations.machine import FILE, MIRROR_VARIABLE, mirror_folder, state_folder
from stages.observe.progress import progress, say

BLOCK_BYTES = 1 << 20
SILENCE_SECONDS = 60


def pinned_file(url: str, sha256: str, pinned_by: str) -> Path:
    """A path to the file behind the URL, with these bytes; one that had to be downloaded stays in `state/downloads/`.

    `pinned_by` is what to correct when the hash is wrong, such as `sources.gsm8k.from.sha256`. Raises UserError when
    the file cannot be had, has other bytes, or a copy in the mirror is damaged.
    """
    mirror = mirror_folder()
    if mirror is not None and (mirrored := mirror / sha256).is_file():
        require_sha256(mirrored, sha256, "which is its name: the copy is damaged. Delete it or replace it")
        return mirrored
    # Not in an output's folder: DVC deletes outputs before it runs their stage again.
    kept = state_folder() / "downloads" / sha256
    if kept.is_file():
        if sha256_of(kept) == sha256:
            return kept
        say(f"{kept} is damaged, downloading it again")
        kept.unlink()
    return _download(url, sha256, pinned_by, kept, mirror)


def _download(url: str, sha256: str, pinned_by: str, place: Path, mirror: Path | None) -> Path:
    """Downloads to a file beside `place`, which gets its name only when its bytes are the right ones."""
    say(f"downloading {url}")
    place.parent.mkdir(parents=True, exist_ok=True)
    # With the process's id: two runs may download the same file at once.
    beside = place.with_name(f".{sha256}.{os.getpid()}.partial")
    try:
        with open(beside, "wb") as file:
            received = _fetch(url, file, mirror)
        if received != sha256:
            raise UserError(
                f"{url} has sha256 {received}, but {pinned_by} is {sha256}: upstream has "
                "changed or something else answered. Look at the file; put its sha256 there only if it is "
                "what you want to train on"
            )
        os.replace(beside, place)
    finally:
        beside.unlink(missing_ok=True)
    return place


def _fetch(url: str, file: BinaryIO, mirror: Path | None) -> str:
    """Writes the URL's bytes to `file`, returns their sha256."""
    place = f"the mirror folder ({mirror})" if mirror else "a mirror folder"
    named = "" if mirror else f", which ${MIRROR_VARIABLE} or {FILE} names"
    remedy = f"check the network and the address, or put the file, named by its sha256, into {place}{named}"
    # Hashed on the way: the file may be gigabytes, and reading it again would take as long.
    digest, received = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(url, timeout=SILENCE_SECONDS) as response:
            expected = response.headers.get("Content-Length")
            total = int(expected) if expected and expected.isdigit() else None
            blocks = iter(lambda: response.read(BLOCK_BYTES), b"")
            for block in progress(blocks, total and -(-total // BLOCK_BYTES), "downloading", "MiB"):
                digest.update(block)
                received += len(block)
                file.write(block)
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = error if isinstance(error, urllib.error.HTTPError) else getattr(error, "reason", error)
        raise UserError(f"{url} cannot be downloaded ({reason}): {remedy}") from error
    # http.client ends a response that broke off as if it were whole when it is read in blocks.
    if total is not None and received < total:
        raise UserError(f"{url} broke off after {received} of {total} bytes: {remedy}")
    return digest.hexdigest()
