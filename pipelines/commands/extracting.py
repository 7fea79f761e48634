"""`retrace extract FILE...`: the candidates of any pages as JSON lines.

Formats are told by the file's ending, else by its content: HTML, Markdown, plain text, CNXML, PreTeXt, LaTeX, WARC
archives, and JSON lines that hold a page each (fields `html`, `content` or `text`; `page`, `page_id`, `doc_id`).
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from stages.collect_web.params import WarcPages
from stages.collect_web.sources import FORMATS, decode, read_warc
from stages.extract_web.extraction import MAX_CHARACTERS, READERS, extract_page
from stages.foundations.errors import UserError

MAX_ANSWER_CHARACTERS = 60
MAX_BYTES = 64 << 20
"""Of one page before decoding; longer ones are reported, not read."""
LONGEST_LINE = 8 * MAX_CHARACTERS
"""Bytes of a JSON line, in which a character may take several."""
_CONTENT_FIELDS = ("html", "content", "text", "markdown", "body")
_NAME_FIELDS = ("page", "page_id", "doc_id", "id", "url", "path")
_HTML = re.compile(
    r"<\s*(?:!doctype\s+html|html|head|body|div|p|article|table|h[1-6]|dl|ol|ul)\b", re.IGNORECASE
)

Found = tuple[str, str, str | None, str]
"""Name, format, content or None, and why there is none."""


def extract_files(
    paths: Sequence[Path], write: Callable[[str], None], warn: Callable[[str], None]
) -> Counter[str]:
    """Writes one JSON object a candidate and warns of each page without any; returns pages by outcome.

    UserError when a file does not exist, before anything is written.
    """
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise UserError(f"no such file: {', '.join(missing)}: name files, not folders")
    counts: Counter[str] = Counter()
    for path in paths:
        for name, form, content, reason in _pages(path):
            candidates: list[dict[str, Any]] = []
            if content is not None:
                page = {"page_id": name, "url": "", "format": form, "content": content, "licence": ""}
                candidates, reason, _ = extract_page(page, MAX_ANSWER_CHARACTERS)
            for candidate in candidates:
                fields = ("problem", "solution", "answer", "instructions")
                row = {"page": name, "format": form, **{field: candidate[field] for field in fields}}
                write(json.dumps(row, ensure_ascii=False))
            if reason:
                warn(f"{name}: {reason}")
            counts[reason or "read"] += 1
    return counts


def _pages(path: Path) -> Iterator[Found]:
    endings = "".join(path.suffixes[-2:]).lower()
    if ".warc" in endings:
        source = WarcPages(kind="warc", path=str(path), licence="", max_pages=None)
        for found in read_warc(source, MAX_BYTES):
            yield found.name, found.format, found.content, found.reason
    elif ".jsonl" in endings:
        yield from _json_lines(path)
    elif path.stat().st_size > MAX_BYTES:
        yield str(path), "", None, "too_large"
    else:
        text = decode(path.read_bytes(), "")
        form = FORMATS.get(path.suffix.lower()) or (told_by_content(text) if text else "")
        yield str(path), form, text, "" if text is not None else "undecodable"


def _json_lines(path: Path) -> Iterator[Found]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as lines:
        number = 0
        while True:
            number += 1
            name = f"{path}:{number}"
            try:
                line = rest = lines.readline(LONGEST_LINE)
                while len(rest) == LONGEST_LINE and not rest.endswith(b"\n"):
                    rest = lines.readline(LONGEST_LINE)
                    line = b"..."  # too long to be read; what follows it is the next line
                row = json.loads(line) if line.strip() else None
            except (EOFError, OSError, ValueError, RecursionError) as error:
                yield name, "", None, "row_malformed" if isinstance(error, ValueError) else "archive_damaged"
                if not isinstance(error, ValueError):
                    return
                continue
            if not line:
                return
            if row is not None:
                yield _from_row(name, row)


def _from_row(name: str, row: Any) -> Found:
    texts = (
        {key: value for key, value in row.items() if isinstance(value, str)} if isinstance(row, dict) else {}
    )
    content = next((texts[field] for field in _CONTENT_FIELDS if field in texts), None)
    if content is None:
        return name, "", None, "row_malformed"
    name = next((texts[field] for field in _NAME_FIELDS if texts.get(field)), name)
    form = next((known for known in READERS if known in texts.get("format", "").lower()), "")
    return name, form or ("html" if "html" in texts else told_by_content(content)), content, ""


def told_by_content(text: str) -> str:
    """The format that the beginning of a page speaks for: html, cnxml, pretext, latex, else markdown."""
    beginning = text[:20_000]
    if "cnx.rice.edu" in beginning or "<cnxml" in beginning:
        return "cnxml"
    if re.search(r"<(?:pretext|mathbook|exercisegroup|statement|exercises)\b", beginning):
        return "pretext"
    if _HTML.search(beginning):
        return "html"
    if re.search(
        r"\\(?:documentclass|begin\s*\{(?:document|exercise|problem|question|solution)|section\s*\{)",
        beginning,
    ):
        return "latex"
    return "markdown"


def extract(
    files: Annotated[
        list[Path], typer.Argument(help="HTML, Markdown, CNXML, PreTeXt, LaTeX, WARC or JSONL files")
    ],
) -> None:
    """Print the exercises of pages as JSON lines: page, format, problem, solution, answer, instructions."""
    try:
        counts = extract_files(files, typer.echo, lambda line: typer.echo(line, err=True))
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    told = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    typer.echo(f"pages: {told or 'none'}", err=True)
