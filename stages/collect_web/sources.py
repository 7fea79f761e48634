"""Reads pages from their source: a folder, pinned URLs, a JSONL file, a WARC archive.

One bad page never stops the reading; an unavailable one does, since its bytes are part of the result.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import unescape
from itertools import count, islice
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import brotli

from stages.algorithms.latex_macros import Macro, agreed, used
from stages.collect_web.stage import FolderPages, JsonlPages, ListedPages, WarcPages
from stages.engines.pinned_files import pinned_file
from stages.foundations.errors import UserError
from stages.foundations.files import require_no_links, require_sha256
from stages.foundations.machine import from_root
from stages.foundations.page_formats import FORMATS, format_of_name, format_of_response

_HAS_MACROS = [name for name, form in FORMATS.items() if form.has_macros]
_CHARSET = re.compile(rb"""charset\s*=\s*["']?\s*([A-Za-z0-9_.:-]{2,40})""", re.IGNORECASE)
_HTML_TAG = re.compile(
    r"<\s*(?:!doctype\s+html|html|head|body|main|article|section|div|p|span|table|ul|ol|dl|h[1-6]|details|math)\b",
    re.IGNORECASE,
)
_WEB_ENCODINGS = {
    **{name: name for name in ("utf-8", "utf-16", "utf-16-le", "utf-16-be", "euc_jp", "iso2022_jp", "gb18030")},
    **{f"iso8859-{part}": f"iso8859-{part}" for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)},
    **{f"cp{page}": f"cp{page}" for page in (866, 874, 932, 949, *range(1250, 1259))},
    **{name: name for name in ("koi8-r", "koi8-u", "mac-roman", "mac-cyrillic", "big5hkscs")},
    **{"ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874"},
    **{"gb2312": "gb18030", "gbk": "gb18030", "big5": "big5hkscs", "shift_jis": "cp932", "euc_kr": "cp949"},
}
"""The encodings that browsers know (WHATWG Encoding, section 4.2), by Python's names, and how browsers read each.

Python has others, such as `undefined` and `punycode`: they raise other errors, or take quadratic time.
"""
_MAX_MEMBERS = 100
_URL = re.compile(r"https?://\S")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f]")


@dataclass(frozen=True)
class ReadPage:
    """A page as in its source, or the reason why there is none."""

    name: str
    """Identifies the page within its source."""
    url: str
    format: str
    content: str | None
    reason: str = ""
    """Why the page is unusable, snake_case; empty when it is usable."""
    detail: str = ""


def read_folder(source: FolderPages, max_bytes: int) -> Iterator[ReadPage]:
    """Yields every matching file in the order of its path; UserError when there is no such folder or no such file."""
    folder = Path(source.path)
    if not folder.is_dir():
        raise UserError(f"collect_web: the folder {folder} does not exist: correct `path`, or fetch the data first")
    files = sorted(file for file in folder.glob(source.glob) if file.is_file())
    if not files:
        raise UserError(f"collect_web: no file of {folder} matches {source.glob!r}: correct `glob`")
    # Through a link, files outside the recipe's folder could become part of the result.
    require_no_links(folder, files)
    macros = shared_macros(files, max_bytes)
    for file in files:
        name = file.relative_to(folder).as_posix()
        form = format_of_name(name)
        if form is None:
            yield ReadPage(name, name, "", None, "format_not_known", f"ending {file.suffix!r}")
        elif file.stat().st_size > max_bytes:
            yield ReadPage(name, name, form, None, "too_large", f"{file.stat().st_size} bytes")
        else:
            found = _checked(name, name, form, file.read_bytes(), "", max_bytes)
            yield replace(found, content=with_macros(found.content, form, macros)) if found.content else found


def shared_macros(files: Sequence[Path], max_bytes: int) -> dict[str, Macro]:
    """Returns LaTeX macros that the LaTeX and PreTeXt files define: a book's chapters leave them to another file."""
    texts = (
        decode(file.read_bytes(), "") or ""
        for file in files
        if file.suffix.lower() in (".sty", ".cls") or format_of_name(file.name) in _HAS_MACROS
        if file.stat().st_size <= max_bytes
    )
    return agreed(unescape(text) if "<macros" in text else text for text in texts)


def with_macros(content: str, form: str, macros: Mapping[str, Macro]) -> str:
    """Adds definitions from other files to the page: before LaTeX, in a comment at the end of XML."""
    missing = used(content, macros) if form in _HAS_MACROS else ""
    if not missing:
        return content
    # At the end, because an XML declaration must come first. Two dashes would end the comment.
    return f"{missing}{content}" if form == "latex" else f"{content}\n<!--\n{missing.replace('--', '- -')}-->\n"


def read_listed(name: str, source: ListedPages, max_bytes: int) -> Iterator[ReadPage]:
    """Yields the listed pages in order, each named by the part of its URL that differs from the others.

    UserError where the list has another hash, contains an invalid line, or a page is not available as pinned.
    """
    path = _require_file(str(from_root(source.path)))
    require_sha256(
        path, source.sha256, f"which collect_web.sources.{name}.sha256 says: put it there if this list is meant"
    )
    try:
        with open(path, encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines, delimiter="\t"))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is no list of pages ({error}): correct `path`") from None
    for number, row in enumerate(rows, 2):
        if not _URL.match(row.get("url") or "") or not _SHA256.fullmatch(row.get("sha256") or ""):
            raise UserError(f"{path}, line {number}: no `url`, tab and `sha256`, but {list(row.values())}")
    places = [urlsplit(row["url"]) for row in rows]
    names = [PurePosixPath(f"{place.netloc}{place.path}") for place in places]
    # From the whole list, so that `max_pages` changes no page's name.
    shared = os.path.commonpath([name.parent for name in names]) if names else ""
    for row, place in zip(rows[: source.max_pages], names, strict=False):
        url, page = row["url"], place.relative_to(shared).as_posix()
        form = format_of_name(place.name)
        if form is None:
            yield ReadPage(page, url, "", None, "format_not_known", f"address {url}")
            continue
        file = pinned_file(url, row["sha256"], f"its sha256 in {path}")
        if file.stat().st_size > max_bytes:
            yield ReadPage(page, url, form, None, "too_large", f"{file.stat().st_size} bytes")
        else:
            yield _checked(page, url, form, file.read_bytes(), "", max_bytes)


def read_jsonl(source: JsonlPages, max_bytes: int) -> Iterator[ReadPage]:
    """The pages of a JSONL file in order; a damaged end of a .gz is one unusable page."""
    fields = (source.id_field, source.url_field, source.content_field)
    for number, row, reason, detail in islice(json_rows(_require_file(source.path), max_bytes), source.max_pages):
        wrong = [field for field in fields if not isinstance(row, dict) or not isinstance(row.get(field), str)]
        if reason or wrong:
            detail = detail or f"line {number}: no text in {wrong}"
            yield ReadPage(f"line-{number}", "", source.format, None, reason or "row_malformed", detail)
            continue
        name, url, content = (row[field] for field in fields)
        yield _checked(name, url, source.format, content, "", max_bytes)


def json_rows(path: Path, max_bytes: int) -> Iterator[tuple[int, Any, str, str]]:
    """Yields (number, value, reason why there is none, detail) of each nonblank line; a damaged archive is the last.

    A page may take several times its bytes as JSON, six for one character.
    """
    # JSON escapes a character in up to six bytes, and the line has other fields.
    longest = 8 * max_bytes
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as lines:
        for number in count(1):
            try:
                line = lines.readline(longest)
                if not line:
                    return
                if len(line) == longest and not line.endswith(b"\n"):
                    # The rest of such a line is read in pieces and dropped.
                    while line and not line.endswith(b"\n"):
                        line = lines.readline(1 << 20)
                    yield number, None, "too_large", f"line {number}"
                elif line.strip():
                    yield number, json.loads(line), "", ""
            except (ValueError, RecursionError) as error:
                yield number, None, "row_malformed", f"line {number}: {error}"
            except (EOFError, OSError, zlib.error) as error:
                yield number, None, "archive_damaged", f"after line {number - 1}: {error}"
                return


def read_warc(source: WarcPages, max_bytes: int) -> Iterator[ReadPage]:
    """Yields the successful responses of the archive in order; a content type without a reader is an unusable page."""
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    path = _require_file(source.path)
    number = 0
    with open(path, "rb") as stream:
        # Not decoded by content: `_body` does that, and reports the reason for a failure.
        records = ArchiveIterator(stream, record_types=WarcRecordType.response, parse_http=True, auto_decode="transfer")
        while source.max_pages is None or number < source.max_pages:
            try:
                record = next(records, None)
                if record is None:
                    break
                number += 1
                yield _from_record(record, number, max_bytes)
            except OSError as error:
                number += 1
                yield ReadPage(f"{number}:", "", "html", None, "archive_damaged", str(error))
                break
    if number == 0:
        raise UserError(f"collect_web: {path} holds no WARC response: is it a WARC file (.warc or .warc.gz)?")


def _from_record(record: Any, number: int, max_bytes: int) -> ReadPage:
    url = record.headers.get("WARC-Target-URI") or ""
    name = f"{number}:{url}"
    status = record.http_headers.status_code if record.http_headers else None
    kind = (record.http_content_type or "").partition(";")[0].strip().lower()
    if status is not None and status != 200:
        return ReadPage(name, url, "", None, "http_status", f"status {status}")
    body = _body(record, max_bytes)
    form = format_of_response(kind, url, body[:4096])
    if form is None:
        return ReadPage(name, url, "", None, "format_not_known", f"content type {kind}")
    return _checked(name, url, form, body, record.http_charset or "", max_bytes)


def _body(record: Any, max_bytes: int) -> bytes:
    """Returns the first `max_bytes` + 1 bytes of the decompressed body, or of an uncompressed body.

    FastWARC 2.0 would decompress it, but finds no further record after one of which it left 20 MB unread. So the stored
    body is read to its end, and never more than the limit is decompressed from it.
    """
    body = record.reader.read(max_bytes + 1)
    # To its end, or the next record would not be found.
    while record.reader.read(1 << 20):
        pass
    encoding = ((record.http_headers and record.http_headers.get("Content-Encoding")) or "").strip().lower()
    try:
        match encoding:
            case "gzip" | "x-gzip":
                return _unpacked_members(body, max_bytes + 1)
            case "deflate":  # with the header that the standard requires, or as some servers send it
                wbits = 15 if body[:1] == b"\x78" else -15
                return zlib.decompressobj(wbits).decompress(body, max_bytes + 1)
            case "br":
                return brotli.Decompressor().process(body, output_buffer_limit=max_bytes + 1)
    except (zlib.error, brotli.error):  # crawlers may keep the header and store the page itself
        pass
    return body


def _unpacked_members(body: bytes, max_bytes: int) -> bytes:
    """Returns at most so many bytes of a gzip body, which may have several members; zlib.error when it is not gzip."""
    text = b""
    for _ in range(_MAX_MEMBERS):  # each copies the remaining bytes
        member = zlib.decompressobj(31)
        text += member.decompress(body, max_bytes - len(text))
        body = member.unused_data
        if not body.startswith(b"\x1f\x8b") or len(text) >= max_bytes:
            return text
    raise zlib.error(f"more than {_MAX_MEMBERS} gzip members")


def _require_file(name: str) -> Path:
    path = Path(name)
    if not path.is_file():
        raise UserError(f"collect_web: {path} does not exist: correct `path`, or fetch the data first")
    return path


def _checked(name: str, url: str, form: str, source: bytes | str, charset: str, max_bytes: int) -> ReadPage:
    """Returns the page as text, or the reason why it is not text."""
    size = len(source) if isinstance(source, bytes) else len(source.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        return ReadPage(name, url, form, None, "too_large", f"more than {max_bytes} bytes")
    text = decode(source, charset) if isinstance(source, bytes) else source
    # Eight replacement characters in a row: binary data was decoded as text before.
    if text is None or "\ufffd" * 8 in text or not _is_text(text):
        return ReadPage(name, url, form, None, "undecodable", "neither its stated encoding, nor UTF-8, nor cp1252")
    if not text.strip():
        return ReadPage(name, url, form, None, "empty")
    # lxml makes a page of any text, so the reader would not notice.
    if form == "html" and not _HTML_TAG.search(text):
        return ReadPage(name, url, form, None, "not_html", "no HTML element")
    return ReadPage(name, url, form, _CONTROL.sub("", text))


def decode(source: bytes, charset: str) -> str | None:
    """Decodes with the encoding of transport, byte order mark or page, UTF-8 or cp1252, the first that fits."""
    stated = _CHARSET.search(source[:4096])
    # A byte order mark counts more than the page's statement. `utf-8-sig` reads UTF-8 without a mark too, and text that
    # is valid UTF-8 is almost never in another encoding.
    marked = "utf-16" if source[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    # cp1252 last, because it takes nearly any bytes.
    for name in (_web_encoding(charset), marked, _web_encoding(stated[1].decode("ascii") if stated else ""), "cp1252"):
        try:
            if name:
                return source.decode(name)
        except UnicodeDecodeError:
            continue
    return None


def _web_encoding(label: str) -> str:
    """Returns Python's name of the encoding that a page or its server states; "" for one that no browser knows."""
    label = label.strip().lower().removeprefix("x-").replace("windows-", "cp")
    try:
        # Python knows more names of an encoding than browsers do, so Python's names are compared.
        return _WEB_ENCODINGS.get(codecs.lookup(label).name, "")
    except (LookupError, ValueError):  # ValueError: a label with NUL
        return ""


def _is_text(text: str) -> bool:
    """False for binary content, and for text that UTF-8 cannot represent (lone surrogates)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    # Pages hold a few control characters by accident, and binary data is full of them.
    return len(_CONTROL.findall(text[:20_000])) <= len(text[:20_000]) // 100
