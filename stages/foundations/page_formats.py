"""The formats of web pages: how each is recognised. All that names a format follows from `FORMATS`.

A new format is a row here, and a reader with an entry in stages/extract_web/readers/__init__.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal


@dataclass(frozen=True)
class PageFormat:
    """One format."""

    title: str
    """Name for people."""
    suffixes: tuple[str, ...]
    """Endings of files and addresses, in lower case."""
    media_types: tuple[str, ...] = ()
    """Content types that mean this format; XML and plain text mean several."""
    xml_marks: tuple[bytes, ...] = ()
    """Lower-case texts, one of which the beginning of a response of XML has."""
    beginning: str = ""
    """Pattern of what only the beginning of such a text has."""
    has_elements: bool = False
    """True where `<` opens an element; in LaTeX and plain text it means less-than."""
    has_macros: bool = False
    """True where a file may use LaTeX macros that another one defines."""


FORMATS = {
    "cnxml": PageFormat(
        "CNXML", (".cnxml",), (), (b"cnx.rice.edu/cnxml",), r"cnx\.rice\.edu|<cnxml", has_elements=True
    ),
    "pretext": PageFormat(
        "PreTeXt",
        # Books in PreTeXt end in `.xml` too, and the reader takes any XML that marks its exercises.
        (".ptx", ".pretext", ".xml"),
        # PreTeXt was MathBook XML before, and older books still begin with that name.
        xml_marks=(b"<pretext", b"<mathbook"),
        beginning=r"<(?:pretext|mathbook|exercisegroup|statement|exercises)\b",
        has_elements=True,
        has_macros=True,
    ),
    "html": PageFormat(
        "HTML",
        (".html", ".htm", ".xhtml"),
        ("text/html", "application/xhtml+xml"),
        (b"<html",),
        r"(?i:<\s*(?:!doctype\s+html|html|head|body|div|p|article|table|h[1-6]|dl|ol|ul)\b)",
        has_elements=True,
    ),
    "latex": PageFormat(
        "LaTeX",
        (".tex",),
        ("text/x-tex", "application/x-tex", "text/x-latex", "application/x-latex"),
        beginning=r"\\(?:documentclass|begin\s*\{(?:document|exercise|problem|question|solution)|section\s*\{)",
        has_macros=True,
    ),
    "markdown": PageFormat(
        "Markdown",
        (".md", ".markdown", ".rmd", ".qmd"),
        ("text/markdown", "text/x-markdown"),
        beginning=r"(?m:^(?:#{1,6}\s|```|:{3,}\s*[{\w]))",
        has_elements=True,
    ),
    "text": PageFormat("plain text", (".txt",)),
}
"""Name -> format. The first that fits counts: XML and LaTeX may hold the signs of the formats after them."""
FormatName = Literal[tuple(FORMATS)]  # type: ignore[valid-type]

MAX_BEGINNING = 20_000
"""Enough for a long head of scripts and styles, without searching a book of 60 MB to its end."""


def format_of_name(name: str) -> str | None:
    """Returns the format of a file or an address by its ending, None for an ending of no format."""
    suffix = PurePosixPath(name).suffix.lower()
    return next((form for form, known in FORMATS.items() if suffix in known.suffixes), None)


def format_of_response(content_type: str, url: str, beginning: bytes) -> str | None:
    """Returns the format of a web response, None when no reader supports it.

    XML is recognised by its beginning. Plain text and uninformative types are recognised by the ending of the address.
    Without a known ending, text is text, and a page without any type is read as HTML.
    """
    for form, known in FORMATS.items():
        if content_type in known.media_types:
            return form
    if content_type in ("text/xml", "application/xml") or content_type.endswith("+xml"):
        lower = beginning.lower()
        return next((form for form, known in FORMATS.items() if any(mark in lower for mark in known.xml_marks)), None)
    # Servers of repositories send Markdown and LaTeX as plain text, and some as bytes of no type.
    if content_type in ("text/plain", "application/octet-stream", ""):
        address = url.partition("?")[0].partition("#")[0]
        return format_of_name(address) or {"text/plain": "text", "": "html"}.get(content_type)
    return None


def format_of_text(text: str) -> str:
    """Returns the format that the beginning of a page suggests, or ""."""
    beginning = text[:MAX_BEGINNING]
    # JSON, such as notebooks, even if it contains markup.
    if beginning.lstrip()[:1] == "{":
        return ""
    found = (form for form, known in FORMATS.items() if known.beginning and re.search(known.beginning, beginning))
    return next(found, "")
