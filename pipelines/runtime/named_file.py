"""Files that the caller names."""

from __future__ import annotations

from pathlib import Path

from stages.foundations.errors import UserError
from stages.foundations.files import write_text_atomically


def write_named_file(path: Path, text: str, option: str) -> None:
    """Writes the file. UserError with the option's name where it cannot be written."""
    try:
        write_text_atomically(path, text)
    except OSError as error:
        raise UserError(f"{option} {path} cannot be written ({error.strerror}): name another place") from error
