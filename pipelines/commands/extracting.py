"""`retrace extract PATH...`: the candidates of any pages as JSON lines.

The file's suffix, or else its content, decides the format: HTML, Markdown, plain text, CNXML, PreTeXt, LaTeX, WARC
archives, and JSON lines with one page each (fields `html`, `content` or `text`; `page`, `page_id`, `doc_id`). Files of
other formats are reported and not read. LaTeX and PreTeXt files share the macros that they define.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from stages.collect_web.sources import FORMATS, decode, json_rows, read_warc, shared_macros, with_macros
from stages.collect_web.stage import WarcPages
from stages.extract_web.extraction import MAX_CHARACTERS, READERS, Outcome, WorkerLimits, read_pages
from stages.foundations.errors import UserError
from stages.observe.progress import progress

MAX_ANSWER_CHARACTERS = 60
MAX_BYTES = 64 << 20
"""Largest size of a page before decoding; larger pages are reported, not read."""
# The first field that a row has is read: `html` implies its format, `body` may be anything.
_CONTENT_FIELDS = ("html", "content", "text", "markdown", "body")
_NAME_FIELDS = ("page", "page_id", "doc_id", "id", "url", "path")
_HTML = re.compile(r"<\s*(?:!doctype\s+html|html|head|body|div|p|article|table|h[1-6]|dl|ol|ul)\b", re.IGNORECASE)
_MARKDOWN = re.compile(r"^(?:#{1,6}\s|```|:{3,}\s*[{\w])", re.MULTILINE)

HINTS = {
    "no_exercise": "no label of an exercise or a solution was recognised; choose another reader with --format",
    "not_html": "it has no element of HTML; choose another reader with --format",
    "not_xml": "it is not XML; choose another reader with --format",
    "no_row_left": "every row is below --min-confidence or has no solution",
    "format_not_known": "neither its ending nor its beginning matches a known format; give one with --format",
    "format_not_read": f"--format is one of {', '.join(READERS)}",
}
BATCH = 256
"""Pages in memory at once."""
LIMITS = WorkerLimits(memory_mib=4096, computing_seconds=60.0)
FIELDS = ("problem", "solution", "answer", "instructions", "number", "evidence", "confidence")

Found = tuple[str, str, str | None, str]
"""Name, format, content or None, and the reason why there is none."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which candidates to keep, and how pages are read."""

    format: str = ""
    """The reader of every page; empty to choose by each page's format."""
    solved_only: bool = False
    min_confidence: float = 0.0
    jobs: int = 1


def extract_files(
    paths: Sequence[Path], write: Callable[[str], None], warn: Callable[[str], None], wanted: Wanted = Wanted()
) -> Counter[str]:
    """Writes one JSON object per candidate and warns of pages without any; returns pages by outcome.

    A folder means its files with the suffix of a known format. UserError when a path does not exist or the format is
    unknown, before anything is written.
    """
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise UserError(f"no such file: {', '.join(missing)}")
    if wanted.format and wanted.format not in READERS:
        raise UserError(f"--format {wanted.format!r} is unknown: {HINTS['format_not_read']}")
    files = [file for path in paths for file in _files(path)]
    counts: Counter[str] = Counter()
    # All files first: a chapter uses macros that the book's main file defines.
    macros = shared_macros(files, MAX_BYTES)
    pages = (found for file in files for found in _pages(file, macros, wanted.format))
    for (name, form, content, missed), (found, reason, *_) in _read(pages, wanted):
        rows = [row for row in found if row["confidence"] >= wanted.min_confidence]
        rows = [row for row in rows if row["solution"] or not wanted.solved_only]
        for row in rows:
            fields = {field: row[field] for field in FIELDS}
            write(json.dumps({"page": name, "format": form, **fields}, ensure_ascii=False))
        reason = missed if content is None else reason or ("" if rows else "no_row_left")
        if reason:
            warn(f"{name}: {reason}{f' ({HINTS[reason]})' if reason in HINTS else ''}")
        counts[reason or "read"] += 1
    # A folder that gives few rows may contain pages that no reader supports, so they are reported.
    skipped = Counter(file.suffix or file.name for path in paths for file in _others(path))
    if skipped:
        named = ", ".join(f"{count} {ending}" for ending, count in skipped.most_common(8))
        warn(f"not read, because no format has their ending: {named}")
    return counts


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if _is_page(file))


def _others(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.is_file() and not _is_page(file))


def _is_page(file: Path) -> bool:
    endings = map(str.lower, file.suffixes[-2:])
    return file.is_file() and any(end in (*FORMATS, ".jsonl", ".warc") for end in endings)


def _read(pages: Iterator[Found], wanted: Wanted) -> Iterator[tuple[Found, Outcome]]:
    """Yields each page with its outcome, in order; pages are untrusted, so only confined processes read them."""
    while batch := list(islice(pages, BATCH)):
        chosen = [(name, wanted.format or form, content, reason) for name, form, content, reason in batch]
        asked = [
            {"page_id": name, "url": "", "format": form, "content": content, "licence": ""}
            for name, form, content, _ in chosen
            if content is not None
        ]
        outcomes = read_pages(asked, MAX_ANSWER_CHARACTERS, LIMITS, wanted.jobs)
        if wanted.jobs > 1:
            outcomes = progress(outcomes, len(asked), "extracting", "pages")
        for found in chosen:
            # Only pages with content have an outcome of the reader.
            yield found, ([], "", "", 0) if found[2] is None else next(outcomes)


def _pages(path: Path, macros: Mapping[str, Any], form: str) -> Iterator[Found]:
    endings = "".join(path.suffixes[-2:]).lower()
    if ".warc" in endings:
        source = WarcPages(kind="warc", path=str(path), licence="", max_pages=None)
        for found in read_warc(source, MAX_BYTES):
            yield found.name, found.format, found.content, found.reason
    elif ".jsonl" in endings:
        for number, row, reason, _ in json_rows(path, MAX_CHARACTERS):
            name = f"{path}:{number}"
            yield (name, "", None, reason) if reason else _from_row(name, row)
    elif path.stat().st_size > MAX_BYTES:
        yield str(path), "", None, "too_large"
    else:
        text = decode(path.read_bytes(), "")
        form = form or FORMATS.get(path.suffix.lower()) or (format_of_content(text) if text else "")
        if text is None:
            yield str(path), form, None, "undecodable"
        elif not form and path.suffix:
            yield str(path), "", None, "format_not_known"
        else:
            # A file without a suffix is treated as prose, which the Markdown reader also reads.
            yield str(path), form or "markdown", with_macros(text, form, macros), ""


def _from_row(name: str, row: Any) -> Found:
    texts = {key: value for key, value in row.items() if isinstance(value, str)} if isinstance(row, dict) else {}
    content = next((texts[field] for field in _CONTENT_FIELDS if field in texts), None)
    if content is None:
        return name, "", None, "row_malformed"
    name = next((texts[field] for field in _NAME_FIELDS if texts.get(field)), name)
    form = next((known for known in READERS if known in texts.get("format", "").lower()), "")
    form = form or ("html" if "html" in texts else format_of_content(content)) or "markdown"
    return name, form, content, ""


def format_of_content(text: str) -> str:
    """Returns the format that the beginning of a page suggests: html, cnxml, pretext, latex, markdown, or none."""
    # Enough for a long head of scripts and styles, without searching a book of 60 MB to its end.
    beginning = text[:20_000]
    if beginning.lstrip()[:1] == "{":
        # JSON, such as notebooks, even if it contains markup.
        return ""
    if "cnx.rice.edu" in beginning or "<cnxml" in beginning:
        return "cnxml"
    if re.search(r"<(?:pretext|mathbook|exercisegroup|statement|exercises)\b", beginning):
        return "pretext"
    if _HTML.search(beginning):
        return "html"
    if re.search(
        r"\\(?:documentclass|begin\s*\{(?:document|exercise|problem|question|solution)|section\s*\{)", beginning
    ):
        return "latex"
    return "markdown" if _MARKDOWN.search(beginning) else ""


def extract(
    files: Annotated[
        list[Path], typer.Argument(help="HTML, Markdown, CNXML, PreTeXt, LaTeX, WARC or JSONL files, or folders")
    ],
    form: Annotated[str, typer.Option("--format", help="format of all pages (default: by their names)")] = "",
    solved_only: Annotated[bool, typer.Option(help="leave out exercises without a solution")] = False,
    min_confidence: Annotated[float, typer.Option(min=0, max=1, help="leave out rows below this confidence")] = 0.0,
    jobs: Annotated[int, typer.Option(min=1, help="pages to read in parallel, each in a limited process")] = 1,
) -> None:
    """Print the exercises of pages as JSON lines, each with its evidence and a confidence."""
    wanted = Wanted(form, solved_only, min_confidence, jobs)
    counts = extract_files(files, typer.echo, lambda line: typer.echo(line, err=True), wanted)
    summary = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    typer.echo(f"pages: {summary or 'none'}", err=True)
