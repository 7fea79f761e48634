"""Files and folders that are either complete or absent: text, JSON, metrics, curves; hashes; YAML and gzipped files.

Files are written beside their place and renamed. `dvc_md5` is DVC's hash, so a digest in MLflow or in a checkpoint
equals the one in `dvc.lock`.
"""

from __future__ import annotations

import csv
import errno
import gzip
import hashlib
import io
import json
import math
import os
import shlex
import shutil
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import CollectionEndEvent, CollectionStartEvent
from ruamel.yaml.resolver import implicit_resolvers

from stages.foundations.errors import UserError


def write_bytes_atomically(path: Path, content: bytes) -> None:
    """Replaces `path` in one step; a reader sees the old bytes or the new ones, even after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            # Synced before it is renamed: a power cut could otherwise leave the name with an empty file.
            os.fsync(file.fileno())
        os.replace(beside, path)
        sync_folder(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def write_text_atomically(path: Path, text: str) -> None:
    """`write_bytes_atomically` for UTF-8 text."""
    write_bytes_atomically(path, text.encode("utf-8"))


def write_json(path: Path, content: Any) -> None:
    """Writes sorted, indented JSON with a final newline, so that equal contents are equal bytes. ValueError for NaN."""
    write_text_atomically(
        path, json.dumps(content, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"
    )


# DVC makes a column of every number in the files that dvc.yaml calls `metrics`. So these contain only a few numbers.
HEADLINE_COLUMNS = frozenset(["kept", "loss", "accuracy", "score", "low", "high", "tokens"])
"""The columns of `dvc metrics show`: few and short, or the table becomes wider than a screen. They are the rows kept by
a data stage, the validation loss, and the share of correct rollouts in a round's last step. For a benchmark they are
the score with its 95% interval, and the mean tokens of a response."""


def write_metrics(path: Path, metrics: Mapping[str, float], headlines: Mapping[Path, Mapping[str, str]] = {}) -> None:
    """Writes `{"<thing>/<quantity>": number}`, and beside it the few numbers for comparison.

    `headlines` has the columns of each file (words of HEADLINE_COLUMNS), and the name of each column's number in
    `metrics`. Names that `metrics` lacks are left out. ValueError names every value that is not a finite number, and
    every column that is not in HEADLINE_COLUMNS.
    """
    broken = {
        name: value
        for name, value in metrics.items()
        # Python treats True as the number 1, but JSON writes it as a word.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value)
    }
    if broken:
        raise ValueError(f"metrics must be finite numbers: {broken}")
    unknown = {column for shown in headlines.values() for column in shown} - HEADLINE_COLUMNS
    if unknown:
        raise ValueError(f"a headline has columns of {sorted(HEADLINE_COLUMNS)}, not {sorted(unknown)}")
    # The metrics file is written last: once it exists, all accompanying files exist too.
    for place, shown in headlines.items():
        write_json(place, {column: metrics[name] for column, name in shown.items() if name in metrics})
    write_json(path, dict(metrics))


def write_curves(path: Path, rows: Sequence[Mapping[str, float]]) -> None:
    """Writes one CSV row per step; columns are `step` and then the union of the other keys, sorted.

    A step that lacks a value leaves its cell empty.
    """
    columns = sorted({name for row in rows for name in row} - {"step"})
    text = io.StringIO()
    # The csv module ends lines with \r\n by default; all other files here end them with \n.
    writer = csv.DictWriter(text, ["step", *columns], lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    write_text_atomically(path, text.getvalue())


@contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder beside `path` and moves it into place when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    try:
        yield beside
        _sync_tree(beside)
        old = path.with_name(f".{path.name}.{os.getpid()}.old")
        if path.exists():
            # A rename cannot replace a folder that has files in it, so the old one is moved away first.
            os.replace(path, old)
        os.replace(beside, path)
        sync_folder(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_dir():
            sync_folder(path)
        elif path.is_file():
            with open(path, "rb") as handle:
                os.fsync(handle.fileno())
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder survive a power cut: syncing a file keeps its bytes, not its name.

    Does nothing on a file system that cannot sync folders (some network ones).
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def require_no_links(folder: Path, files: Iterable[Path] | None = None) -> None:
    """UserError for a link, a pipe or a device in a folder that another user may have made.

    A link would bring another file of this machine among the outputs, and from there to a shared remote. `files` are
    the relevant ones; by default all files below the folder. A snapshot in Hugging Face's cache consists of links to
    files in `blobs` of the same repository, which are allowed.
    """
    snapshots = folder.resolve().parent
    blobs = snapshots.parent / "blobs" if snapshots.name == "snapshots" else None
    for file in folder.rglob("*") if files is None else files:
        below = [file, *(parent for parent in file.parents if parent.is_relative_to(folder) and parent != folder)]
        # The link may be a folder on the path: the file in it is then not a link itself.
        link = next((place for place in below if place.is_symlink()), None)
        if blobs and link == file and file.is_file() and file.resolve().is_relative_to(blobs):
            continue
        if link is not None:
            raise UserError(
                f"{link} is a link to {os.readlink(link)}, and links in a folder of inputs are not followed. If you "
                f"trust it, replace links by files: `cp -rL {shlex.quote(str(folder))} COPY`"
            )
        if not (file.is_file() or file.is_dir()):
            raise UserError(f"{file} is neither a file nor a folder: remove it")


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes, read in blocks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_sha256(path: Path, sha256: str, remedy: str) -> None:
    """UserError, ending with the remedy, when the file has another hash."""
    actual = sha256_of(path)
    if actual != sha256:
        raise UserError(f"{path} has sha256 {actual}, not {sha256}, {remedy}")


def dvc_md5(path: Path) -> str:
    """Returns the MD5 of a file, or DVC's folder hash (`<md5>.dir`): the MD5 of the JSON list of its files' hashes.

    FileNotFoundError when `path` does not exist. `.dvcignore` is not read: outputs of stages contain no ignored files.
    """
    if not path.is_dir():
        return _file_md5(path)
    return folder_md5(
        {file.relative_to(path).as_posix(): _file_md5(file) for file in path.rglob("*") if file.is_file()}
    )


def folder_md5(files: Mapping[str, str]) -> str:
    """Returns DVC's hash of a folder with these files: path in it -> MD5."""
    # DVC hashes exactly this text: entries sorted by path, keys sorted, Python's default spaces.
    entries = [{"md5": files[name], "relpath": name} for name in sorted(files)]
    return hashlib.md5(json.dumps(entries, sort_keys=True).encode()).hexdigest() + ".dir"


def _file_md5(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


def stable_hash(content: Any) -> str:
    """Returns the SHA-256 of any JSON value, independent of key order."""
    # `default`: paths and enumerations count by their text.
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def load_yaml(text: str | bytes) -> Any:
    """Returns the one document of `text` with DVC's meaning, None when it is empty.

    DVC reads YAML 1.2, where `off` and `1:30` are text and `012` is the number 12.
    ValueError in one line when it is not UTF-8, not YAML, repeats a key, has a number that Python does not convert, or
    nests more than `DEEPEST` lists and mappings.
    """
    text = text.decode("utf-8") if isinstance(text, bytes) else text
    depth = 0
    try:
        # Events come without recursion. The document is built only when it is known to be shallow.
        for event in YAML(typ="safe").parse(text):
            depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
            if depth > DEEPEST:
                line = event.start_mark.line + 1
                raise ValueError(f"line {line}: more than {DEEPEST} lists or mappings inside each other: remove some")
        # The same call as in dvc/utils/serialize/_yaml.py.
        return YAML(typ="safe").load(text)
    except DuplicateKeyError as error:
        found = error.problem.partition(" with value ")[0]  # the rest has both values, which may be whole sections
        raise ValueError(f"{_mark(error)}{found}: remove one") from None
    except MarkedYAMLError as error:
        raise ValueError(_mark(error) + ", ".join(filter(None, [error.context, error.problem]))) from None
    except YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except ValueError as error:
        if "set_int_max_str_digits" in str(error):  # Python's advice is for programmers
            raise ValueError(f"a number has more than {sys.get_int_max_str_digits()} digits: shorten it") from None
        raise


def _mark(error: MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""


DEEPEST = 100
"""Nesting depth of lists and mappings. libyaml's limit is the stack: 30,000 end the process without a message."""


def dump_yaml(content: Any, **style: Any) -> str:
    """Returns YAML that readers of 1.1 (Kubernetes, SkyPilot, PyYAML) and of 1.2 (`load_yaml`, DVC) read as `content`.

    `style` are arguments of `yaml.dump`. Keys keep their order.
    """
    return yaml.dump(content, Dumper=_dumper(), **{"sort_keys": False, **style})


@cache
def _dumper() -> type[yaml.SafeDumper]:
    """Returns a dumper that quotes texts such as `off`, as PyYAML does, and also `1e5` and `0o12`."""
    forms = {first: list(known) for first, known in yaml.SafeDumper.yaml_implicit_resolvers.items()}
    # The plain texts that YAML 1.2 reads as another value.
    for versions, tag, form, beginnings in implicit_resolvers:
        for first in beginnings if (1, 2) in versions else ():
            forms.setdefault(first, []).append((tag, form))
    return type("Dumper", (yaml.SafeDumper,), {"yaml_implicit_resolvers": forms})


_GZIP_MAGIC = b"\x1f\x8b"
_READ_BYTES = 1 << 20


def packed_lines(path: Path, max_line_bytes: int) -> Iterator[bytes | None]:
    """Yields the lines of a file without their `\\n`, gzipped or not; None for a longer line, which is not kept in
    memory.

    UserError when the gzip data are damaged or end too early. Lines before the damage come first.
    """
    with _opened(path) as file:
        try:
            # One byte above the limit distinguishes a line that just fits from a longer one.
            while line := file.readline(max_line_bytes + 1):
                is_whole = len(line) <= max_line_bytes or line.endswith(b"\n")
                yield line.removesuffix(b"\n") if is_whole else None
                while not is_whole:
                    rest = file.readline(_READ_BYTES)
                    is_whole = not rest or rest.endswith(b"\n")
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise _damaged(path, error) from None


def packed_bytes(path: Path, max_bytes: int) -> bytes:
    """Returns the content of a file, gzipped or not; UserError when it is damaged, or unpacks to more bytes."""
    with _opened(path) as file:
        try:
            # Only gzip can hide its size: some kilobytes may unpack to gigabytes.
            content = file.read() if not isinstance(file, gzip.GzipFile) else file.read(max_bytes + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise _damaged(path, error) from None
    if isinstance(file, gzip.GzipFile) and len(content) > max_bytes:
        raise UserError(f"{path} unpacks to more than {max_bytes >> 20} MiB: unpack it, or split it")
    return content


def _opened(path: Path):
    with open(path, "rb") as file:
        is_packed = file.read(2) == _GZIP_MAGIC
    return gzip.open(path) if is_packed else open(path, "rb")


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is a damaged gzip file ({error}): download or copy it again")
