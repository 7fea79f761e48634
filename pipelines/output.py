"""Output of commands: tables for a terminal, and the file that an option names."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from stages.foundations.errors import UserError
from stages.foundations.files import write_text_atomically


def there_are(name: str, known: Sequence[str]) -> str:
    """Returns the end of a message about an unknown name: the known one most like it, then all."""
    near = difflib.get_close_matches(name, known, 1)
    return (f"did you mean {near[0]!r}? There are " if near else "there are ") + (", ".join(known) or "none")


def printable(text: str, kept: str = "") -> str:
    """Returns the text with a space for each control character, which a terminal would obey, but for those `kept`."""
    return "".join(one if one.isprintable() or one in kept else " " for one in text)


def shortened(text: str, most: int) -> str:
    """Returns the text, or `most` characters of its beginning and "...": a number must not lose digits unseen."""
    return text if len(text) <= most else f"{text[:most]}..."


def aligned(rows: Sequence[Sequence[str]], left_columns: int = 1) -> list[str]:
    """Returns a line per row: names (first columns) left-aligned, figures right-aligned, two spaces between."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place < left_columns else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def write_named_file(path: Path, text: str, option: str) -> None:
    """Writes the file. UserError with the option's name if it cannot be written."""
    try:
        write_text_atomically(path, text)
    except OSError as error:
        raise UserError(f"{option} {path} cannot be written ({error.strerror}): name another place") from error
