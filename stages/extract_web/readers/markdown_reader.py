"""Markdown to exercises: by what the author marked where something is marked, else by the text's labels.

Boxes of HTML (`<div class="problem">`, kramdown's `<div data-type="problem" markdown="1">`) are read as the page that
they make: the library Python-Markdown renders it, and the reader of HTML goes on from there.
"""

from __future__ import annotations

import re

import markdown

from stages.extract_web.pairing.exercises import Exercise, find_exercises
from stages.extract_web.readers.html_reader import read_html
from stages.extract_web.readers.marked_text import part_of_attributes, read_marked_text
from stages.extract_web.readers.text_reader import read_text

_BOX = re.compile(r"^\s{0,3}<(?:div|section)\b([^<>]*)>", re.IGNORECASE | re.MULTILINE)
_NOT_RENDERED = re.compile(r"<(div|section)\b(?![^<>]*\bmarkdown=)", re.IGNORECASE)
_INDENTED_TAG = re.compile(r"^[ \t]+(?=</?[a-z])", re.IGNORECASE | re.MULTILINE)
_ATTRIBUTES = re.compile(r"\{:[^{}\n]{0,300}\}")
_CHUNK = re.compile(r"^(`{3,}|~{3,})[ \t]*\{([\w+-]*)[^{}\n]*\}[ \t]*$", re.MULTILINE)
"""How notebooks open code: a language with options, in braces."""
EXTENSIONS = ("md_in_html", "tables", "fenced_code")


def read_markdown(content: str) -> list[Exercise]:
    """The exercises of a Markdown page in order; NotHtml when it has boxes and nothing to parse."""
    fenced = read_marked_text(content)
    if fenced:
        return fenced
    parts = {part_of_attributes(box[1]) for box in _BOX.finditer(content)}
    if parts.isdisjoint(("solution", "answer")):
        return find_exercises(read_text(content))
    # An indented tag would be code, and a box inside one that is not rendered would stay raw, whatever it says.
    whole = _NOT_RENDERED.sub(
        r'<\1 markdown="1"', _INDENTED_TAG.sub("", _ATTRIBUTES.sub("", _CHUNK.sub(r"\1\2", content)))
    )
    return find_exercises(read_html(markdown.markdown(whole, extensions=EXTENSIONS)))
