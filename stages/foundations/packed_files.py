"""Reads files that may be gzipped, within bounds: a small gzip file can unpack to more than the memory holds."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from stages.foundations.errors import UserError

_GZIP_MAGIC = b"\x1f\x8b"
_READ_BYTES = 1 << 20


def packed_lines(path: Path, max_line_bytes: int) -> Iterator[bytes | None]:
    """The lines of a file without their `\\n`, gzipped or not; None for a longer line, which is not kept in memory.

    UserError when the gzip data are damaged or end too early. Lines before the damage come first.
    """
    with _opened(path) as file:
        try:
            while line := file.readline(max_line_bytes + 1):
                is_whole = len(line) <= max_line_bytes or line.endswith(b"\n")
                yield line.removesuffix(b"\n") if is_whole else None
                while not is_whole:
                    rest = file.readline(_READ_BYTES)
                    is_whole = not rest or rest.endswith(b"\n")
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise _damaged(path, error) from None


def packed_bytes(path: Path, max_bytes: int) -> bytes:
    """The whole content of a file, gzipped or not; UserError when it is damaged, or unpacks to more bytes."""
    with _opened(path) as file:
        try:
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
