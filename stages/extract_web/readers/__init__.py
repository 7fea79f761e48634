"""The readers: a format's text to a page of blocks, or to exercises where the author marked them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stages.extract_web.blocks import Page
from stages.extract_web.exercises import Exercise
from stages.extract_web.readers.html_reader import read_html_page
from stages.extract_web.readers.latex_reader import read_latex
from stages.extract_web.readers.text_reader import read_markdown, read_text
from stages.extract_web.readers.xml_reader import read_xml

READERS: Mapping[str, Callable[[str], Page | list[Exercise]]] = {
    "html": read_html_page,
    "markdown": read_markdown,
    "text": read_text,
    # One reader for both dialects, because it knows the element names of both.
    "cnxml": read_xml,
    "pretext": read_xml,
    "latex": read_latex,
}
"""Format of stages/foundations/page_formats.py -> its reader, which raises Unreadable."""
