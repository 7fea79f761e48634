"""Reads pages from where they are: a folder, a JSONL file or a WARC archive. One bad page never ends the reading."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from stages.collect_web.params import FolderPages, JsonlPages, WarcPages
from stages.foundations.errors import UserError

FORMATS = {
    ".html": "html", ".htm": "html", ".xhtml": "html", ".md": "markdown", ".markdown": "markdown", ".txt": "text",
    ".tex": "latex", ".ptx": "pretext", ".pretext": "pretext", ".cnxml": "cnxml",
}  # fmt: skip
_CHARSET = re.compile(rb"""charset\s*=\s*["']?\s*([A-Za-z0-9_.:-]{2,40})""", re.IGNORECASE)
_HTML_TAG = re.compile(
    r"<\s*(?:!doctype\s+html|html|head|body|main|article|section|div|p|span|table|ul|ol|dl|h[1-6]|details|math)\b",
    re.IGNORECASE,
)
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f]")


@dataclass(frozen=True)
class Found:
    """A page as found, or why there is none."""

    name: str
    """Identifies the page within its source."""
    url: str
    format: str
    content: str | None
    reason: str = ""
    """Why the page is unusable, snake_case; empty when it is usable."""
    detail: str = ""


def read_folder(source: FolderPages, max_bytes: int) -> Iterator[Found]:
    """Every matching file in the order of its path; UserError when there is no such folder or no such file."""
    folder = Path(source.path)
    if not folder.is_dir():
        raise UserError(
            f"collect_web: the folder {folder} does not exist: correct `path`, or fetch the data first"
        )
    files = sorted(file for file in folder.glob(source.glob) if file.is_file())
    if not files:
        raise UserError(f"collect_web: no file of {folder} matches {source.glob!r}: correct `glob`")
    for file in files:
        name = file.relative_to(folder).as_posix()
        form = FORMATS.get(file.suffix.lower())
        if form is None:
            yield Found(name, name, "", None, "format_not_known", f"ending {file.suffix!r}")
        elif file.stat().st_size > max_bytes:
            yield Found(name, name, form, None, "too_large", f"{file.stat().st_size} bytes")
        else:
            yield _checked(name, name, form, file.read_bytes(), "", max_bytes)


def read_jsonl(source: JsonlPages, max_bytes: int) -> Iterator[Found]:
    """The pages of a JSONL file in order; a damaged end of a .gz is one unusable page."""
    path = _require_file(source.path)
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as lines:
        for number, line in enumerate(_lines(lines, 8 * max_bytes), 1):
            if source.max_pages is not None and number > source.max_pages:
                return
            yield _from_line(source, line, number, max_bytes)


def _lines(file: IO[bytes], max_line_bytes: int) -> Iterator[bytes | Exception]:
    """Lines without their ends; an over-long line comes as ValueError, a damaged archive as one last exception.

    JSON may need up to six bytes for one of the page, hence the caller's factor.
    """
    while True:
        try:
            line = file.readline(max_line_bytes)
            if not line:
                return
            if len(line) == max_line_bytes and not line.endswith(b"\n"):
                while line and not line.endswith(b"\n"):
                    line = file.readline(1 << 20)
                yield ValueError("too_large")
            elif line.strip():
                yield line
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            yield error
            return


def _from_line(source: JsonlPages, line: bytes | Exception, number: int, max_bytes: int) -> Found:
    name = f"line-{number}"
    if isinstance(line, ValueError):
        return Found(name, "", source.format, None, "too_large", f"line {number}")
    if isinstance(line, Exception):
        return Found(name, "", source.format, None, "archive_damaged", f"after line {number - 1}: {line}")
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Found(name, "", source.format, None, "row_malformed", f"line {number}: {error}")
    fields = (source.id_field, source.url_field, source.content_field)
    wrong = [field for field in fields if not isinstance(row, dict) or not isinstance(row.get(field), str)]
    if wrong:
        return Found(name, "", source.format, None, "row_malformed", f"line {number}: no text in {wrong}")
    name, url, content = (row[field] for field in fields)
    return _checked(name, url, source.format, content, "", max_bytes)


def read_warc(source: WarcPages, max_bytes: int) -> Iterator[Found]:
    """The successful responses of the archive in order; anything but HTML is an unusable page."""
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    path = _require_file(source.path)
    count = 0
    with open(path, "rb") as stream:
        records = ArchiveIterator(
            stream, record_types=WarcRecordType.response, parse_http=True, auto_decode="all"
        )
        while source.max_pages is None or count < source.max_pages:
            try:
                record = next(records, None)
                if record is None:
                    break
                count += 1
                yield _from_record(record, count, max_bytes)
            except OSError as error:
                count += 1
                yield Found(f"{count}:", "", "html", None, "archive_damaged", str(error))
                break
    if count == 0:
        raise UserError(f"collect_web: {path} holds no WARC response: is it a WARC file (.warc or .warc.gz)?")


def _from_record(record: Any, number: int, max_bytes: int) -> Found:
    url = record.headers.get("WARC-Target-URI") or ""
    name = f"{number}:{url}"
    status = record.http_headers.status_code if record.http_headers else None
    kind = (record.http_content_type or "").lower()
    if status is not None and status != 200:
        return Found(name, url, "html", None, "http_status", f"status {status}")
    if kind and "html" not in kind:
        return Found(name, url, "html", None, "not_html", f"content type {kind}")
    body = record.reader.read(max_bytes + 1)
    return _checked(name, url, "html", body, record.http_charset or "", max_bytes)


def _require_file(name: str) -> Path:
    path = Path(name)
    if not path.is_file():
        raise UserError(f"collect_web: {path} does not exist: correct `path`, or fetch the data first")
    return path


def _checked(name: str, url: str, form: str, source: bytes | str, charset: str, max_bytes: int) -> Found:
    """The page as text, or the reason why it is none."""
    size = len(source) if isinstance(source, bytes) else len(source.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        return Found(name, url, form, None, "too_large", f"more than {max_bytes} bytes")
    text = decode(source, charset) if isinstance(source, bytes) else source
    if text is None or "\ufffd" * 8 in text or not _is_text(text):
        return Found(
            name, url, form, None, "undecodable", "neither its stated encoding, nor UTF-8, nor cp1252"
        )
    if not text.strip():
        return Found(name, url, form, None, "empty")
    if form == "html" and not _HTML_TAG.search(text):
        return Found(name, url, form, None, "not_html", "no HTML element")
    return Found(name, url, form, text)


def decode(source: bytes, charset: str) -> str | None:
    """Text in the encoding of the transport, of the byte order mark or page, UTF-8 or cp1252, the first that fits."""
    stated = _CHARSET.search(source[:4096])
    marked = "utf-16" if source[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    for name in (charset, marked, stated[1].decode("ascii") if stated else "", "cp1252"):
        try:
            if name:
                return source.decode(name)
        except (UnicodeDecodeError, LookupError):
            continue
    return None


def _is_text(text: str) -> bool:
    """False for binary content, and for text that UTF-8 cannot hold (lone surrogates)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return len(_CONTROL.findall(text[:20_000])) <= len(text[:20_000]) // 100
