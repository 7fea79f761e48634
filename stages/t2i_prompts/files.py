"""Reads prompts out of JSONL files; a bad line never ends the reading."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from stages.foundations.errors import UserError
from stages.t2i_prompts.params import PromptFile

MAX_LINE_BYTES = 1 << 20


def read_prompts(name: str, source: PromptFile) -> Iterator[dict[str, Any]]:
    """A mapping for each line: row_id, source, split, and prompt or the reason why there is none.

    UserError when the file is missing or no JSONL at all.
    """
    path = Path(source.path)
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            lines = iter(lambda: file.readline(MAX_LINE_BYTES + 1), b"")
            for number, line in enumerate(islice(lines, source.max_prompts)):
                told = {"row_id": f"{name}/{number}", "source": name, "split": source.split}
                yield {**told, **_prompt_of(line, source.prompt_field)}
    except FileNotFoundError:
        raise UserError(f"t2i_prompts.sources.{name}: {path} does not exist: correct `path`") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"t2i_prompts.sources.{name}: {path} cannot be read ({error}): fetch it again"
        ) from None


def _prompt_of(line: bytes, field: str) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        return {"reason": "line_too_long", "detail": f"more than {MAX_LINE_BYTES} bytes"}
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        return {"reason": "not_json", "detail": str(error)[:200]}
    if not isinstance(content, dict) or field not in content:
        return {"reason": "no_prompt_field", "detail": f"the line has no {field!r}"}
    return {"prompt": content[field], "reason": "", "detail": ""}
