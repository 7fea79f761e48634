"""Whether files still have the bytes on record in `dvc.lock`: neither DVC nor the file system notices a flipped bit.

DVC takes the hash of a file from its own table while size, time and inode are the same, and trusts a cache object that
is read-only without reading it. Outputs are hard links into the cache, so one flipped bit is in both. Here files
are read. A file keeps the hashes of one run (`MEMORY`), so that a run reads an unchanged file once.

Whole bytes may still be those of another file: a table names the stage that made it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stages.foundations.dvc_lock import LOCK, lock_of, makers_of
from stages.foundations.errors import UserError
from stages.foundations.files import dvc_md5, folder_md5, write_text_atomically

MEMORY = "input_hashes.json"
"""In the state folder: `run`, and `files`: device, inode, size and time of the last write -> path and MD5."""
RUN = "RETRACE_RUN"
"""Environment variable with the name of the run; commands that run several stages set it."""


class FileHashes:
    """MD5 of files; those that this run has hashed and that have not been written since are not read again.

    A run is one `dvc repro` or one command that calls it. Rot changes neither size nor time, so hashes of an earlier
    run do not count. Hard links of one file are read once.
    """

    def __init__(self, file: Path, run: str) -> None:
        self._file, self._run, self._is_new = file, run, False
        try:
            content = json.loads(file.read_bytes())
            self._known = dict(content["files"]) if run and content["run"] == run else {}
        except (OSError, ValueError, KeyError, TypeError):
            self._known = {}

    def __call__(self, path: Path) -> str:
        status = os.stat(path)
        key = f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns}"
        if key not in self._known:
            self._known[key] = [str(path), dvc_md5(path)]
            self._is_new = True
        return self._known[key][1]

    def keep(self) -> None:
        """Writes the hashes for the other processes of this run."""
        if self._is_new and self._run:
            write_text_atomically(self._file, json.dumps({"run": self._run, "files": self._known}, indent=1) + "\n")
            self._is_new = False


@dataclass(frozen=True)
class ChangedFile:
    """A file of an output that has other bytes than the record, or an output folder whose list of files differs."""

    path: Path
    found: str
    """Its MD5; "" for a file that is missing in its folder, or not on record."""
    recorded: str
    """MD5 on record; "" for a file that is not."""

    def __str__(self) -> str:
        if not self.found:
            return f"{self.path} is missing"
        return f"{self.path} has MD5 {self.found}, " + (f"not {self.recorded}" if self.recorded else "and no record")


def changed_files(
    path: Path, digest: str, hashes: FileHashes, listed: Callable[[str], Mapping[str, str] | None]
) -> Iterator[ChangedFile]:
    """Yields the files of an output that differ from its hash in `dvc.lock`; none for an output that does not exist.

    `listed` returns the files of a folder's hash: path in it -> MD5, or None if they are not known. Then the folder
    itself is yielded.
    """
    if not path.exists():
        return
    if not path.is_dir():
        if (found := hashes(path)) != digest:
            yield ChangedFile(path, found, digest)
        return
    found = {file.relative_to(path).as_posix(): hashes(file) for file in path.rglob("*") if file.is_file()}
    if folder_md5(found) == digest:
        return
    recorded = listed(digest)
    if recorded is None:
        yield ChangedFile(path, folder_md5(found), digest)
        return
    for name in sorted(found.keys() | recorded.keys()):
        if found.get(name) != recorded.get(name):
            yield ChangedFile(path / name, found.get(name, ""), recorded.get(name, ""))


def files_of_folder(cache: Path | None, digest: str) -> dict[str, str] | None:
    """Returns path -> MD5 for the hash of a folder, from DVC's cache; None where the cache has no such list."""
    listing = object_path(cache, digest) if cache else None
    try:
        files = {entry["relpath"]: entry["md5"] for entry in json.loads(listing.read_bytes())} if listing else {}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # The list may be damaged too.
    return files if folder_md5(files) == digest else None


def object_path(cache: Path, digest: str) -> Path:
    """Returns the place in DVC's cache of a file with this MD5, or of the list of a folder's files."""
    return cache / "files" / "md5" / digest[:2] / digest[2:]


MADE_BY = b"made_by"
"""Key of a table's schema metadata with the address of the stage that made it: `respond@rl_1`."""
_MADE_BY = re.compile(rb"\x18.%s\x18([\x80-\xff]?.)" % MADE_BY, re.DOTALL)
"""An entry of Parquet's footer in Thrift's compact protocol: field 1 is the key, field 2 the value, each a string after
its length, in groups of seven bits. https://parquet.apache.org/docs/file-format/metadata"""


def require_maker(path: Path) -> None:
    """UserError when a table names another stage than the one that makes this file by `dvc.lock`.

    Then the lock was merged wrongly, or the file was copied. A table that names no stage (of an earlier version, or of
    another program) and a file outside of a project are accepted. It imports no library of tables, which take a second.
    """
    made_by, place = _maker_in(path), path.absolute()
    root = next((folder for folder in place.parents if (folder / LOCK).is_file()), None)
    if not made_by or root is None:
        return
    makers = makers_of(lock_of(root), place.relative_to(root).as_posix())
    if makers and made_by not in makers:
        raise UserError(
            f"{path} holds a table of {made_by}, but {makers[0]} makes this file: take {LOCK} from git, or run `dvc "
            f"repro --force {makers[0]}`"
        )


def _maker_in(path: Path) -> str:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        # The last bytes of a Parquet file: the footer, its length, and a mark.
        file.seek(max(0, size - 8))
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(0, size - 8 - length))
        footer = file.read(length)
    found = _MADE_BY.search(footer)
    if not found:
        return ""
    length = sum((byte & 127) << 7 * place for place, byte in enumerate(found[1]))
    return footer[found.end() : found.end() + length].decode("utf-8", "replace")
