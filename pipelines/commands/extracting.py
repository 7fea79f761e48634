"""`retrace extract PATH...`: the candidates of any pages as JSON lines.

The file's suffix, or else its content, decides the format (stages/foundations/page_formats.py). Also read are WARC
archives, and JSON lines with one page each (fields `html`, `content` or `text`; `page`, `page_id`, `doc_id`). Files of
other formats are reported and not read. LaTeX and PreTeXt files share the macros that they define.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from stages.collect_web.sources import decode, json_rows, read_warc, shared_macros, with_macros
from stages.collect_web.stage import WarcPages
from stages.extract_web.extraction import MAX_CHARACTERS, Outcome, WorkerLimits, read_pages
from stages.foundations.errors import UserError
from stages.foundations.page_formats import FORMATS, format_of_name, format_of_text
from stages.observe.progress import progress

MAX_ANSWER_CHARACTERS = 60
MAX_BYTES = 64 << 20
"""Largest size of a page before decoding; larger pages are reported, not read."""
# The first field that a row has is read: `html` implies its format, `body` may be anything.
_CONTENT_FIELDS = ("html", "content", "text", "markdown", "body")
_NAME_FIELDS = ("page", "page_id", "doc_id", "id", "url", "path")
HINTS = {
    "no_exercise": "no label of an exercise or a solution was recognised; choose another reader with --format",
    "not_html": "it has no element of HTML; choose another reader with --format",
    "not_xml": "it is not XML; choose another reader with --format",
    "no_row_left": "every row is below --min-confidence or has no solution",
    "format_not_known": "neither its ending nor its beginning matches a known format; give one with --format",
    "format_not_read": f"--format is one of {', '.join(FORMATS)}",
}
TITLES = ", ".join(form.title for form in FORMATS.values())
BATCH = 256
"""Pages in memory at once."""
LIMITS = WorkerLimits(memory_mib=4096, computing_seconds=60.0)
FIELDS = ("problem", "solution", "answer", "instructions", "number", "evidence", "confidence")

Found = tuple[str, str, str | None, str]
"""Name, format, content or None, and the reason why there is none."""


def extract(
    files: Annotated[list[Path], typer.Argument(help=f"{TITLES}, WARC or JSONL files, or folders")],
    form: Annotated[str, typer.Option("--format", help="format of all pages (default: by their names)")] = "",
    solved_only: Annotated[bool, typer.Option(help="leave out exercises without a solution")] = False,
    min_confidence: Annotated[float, typer.Option(min=0, max=1, help="leave out rows below this confidence")] = 0.0,
    jobs: Annotated[int, typer.Option(min=1, help="pages to read in parallel, each in a limited process")] = 1,
) -> None:
    """Print the exercises of pages as JSON lines, each with its evidence and a confidence."""
    missing = [str(path) for path in files if not path.exists()]
    if missing:
        raise UserError(f"no such file: {', '.join(missing)}")
    if form and form not in FORMATS:
        raise UserError(f"--format {form!r} is unknown: {HINTS['format_not_read']}")
    found = [file for path in files for file in _files(path)]
    counts: Counter[str] = Counter()
    # All files first: a chapter uses macros that the book's main file defines.
    macros = shared_macros(found, MAX_BYTES)
    pages = (page for file in found for page in _pages(file, macros, form))
    for (name, own_form, content, missed), (candidates, reason, *_) in _read(pages, form, jobs):
        rows = [row for row in candidates if row["confidence"] >= min_confidence]
        rows = [row for row in rows if row["solution"] or not solved_only]
        for row in rows:
            fields = {field: row[field] for field in FIELDS}
            typer.echo(json.dumps({"page": name, "format": own_form, **fields}, ensure_ascii=False))
        reason = missed if content is None else reason or ("" if rows else "no_row_left")
        if reason:
            typer.echo(f"{name}: {reason}{f' ({HINTS[reason]})' if reason in HINTS else ''}", err=True)
        counts[reason or "read"] += 1
    # A folder that gives few rows may contain pages that no reader supports, so they are reported.
    skipped = Counter(file.suffix or file.name for path in files for file in _others(path))
    if skipped:
        named = ", ".join(f"{count} {ending}" for ending, count in skipped.most_common(8))
        typer.echo(f"not read, because no format has their ending: {named}", err=True)
    summary = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    typer.echo(f"pages: {summary or 'none'}", err=True)


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if _is_page(file))


def _others(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.is_file() and not _is_page(file))


def _is_page(file: Path) -> bool:
    is_archive = not {".jsonl", ".warc"}.isdisjoint(map(str.lower, file.suffixes[-2:]))
    return file.is_file() and (is_archive or any(map(format_of_name, (file.name, file.stem))))


def _read(pages: Iterator[Found], wanted: str, jobs: int) -> Iterator[tuple[Found, Outcome]]:
    """Yields each page with its outcome, in order; pages are untrusted, so only confined processes read them."""
    while batch := list(islice(pages, BATCH)):
        chosen = [(name, wanted or form, content, reason) for name, form, content, reason in batch]
        asked = [
            {"page_id": name, "url": "", "format": form, "content": content, "licence": ""}
            for name, form, content, _ in chosen
            if content is not None
        ]
        outcomes = read_pages(asked, MAX_ANSWER_CHARACTERS, LIMITS, jobs)
        if jobs > 1:
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
        form = form or format_of_name(path.name) or (format_of_text(text) if text else "")
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
    form = next((known for known in FORMATS if known in texts.get("format", "").lower()), "")
    form = form or ("html" if "html" in texts else format_of_text(content)) or "markdown"
    return name, form, content, ""
