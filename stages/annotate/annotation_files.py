"""Files of rankings and votes, and how any annotation file is read: as text, from a hash that is known."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stages.annotate.annotations import Annotation, Known
from stages.engines.images.params import AnnotationFile
from stages.foundations.errors import UserError
from stages.foundations.tables.prompt import prompt_id

Refusal = tuple[str, str, str]
"""Row id, reason, detail."""
Found = Iterator[Annotation | Refusal]
MAX_BYTES = 1 << 30
"""Of a file, unpacked."""


def read_checked(file: AnnotationFile) -> bytes:
    """The bytes of the round's annotation file; UserError when it is missing or another one."""
    path = Path(file.path)
    if not path.is_file():
        raise UserError(f"{path} does not exist: correct `annotations.path` of the round")
    content = path.read_bytes()
    if (found := hashlib.sha256(content).hexdigest()) != file.sha256:
        raise UserError(
            f"{path} has the sha256 {found}, not {file.sha256}: correct `annotations.sha256`, or the file"
        )
    return content


def json_rows(content: bytes, told: str) -> list[Any]:
    """The rows of a JSON list or of JSON lines, gzip or not; a line that is not JSON is None.

    UserError when it is neither. Half characters, which JSON can hold and UTF-8 cannot, become question marks.
    """
    if content[:2] == b"\x1f\x8b":
        try:
            with gzip.open(io.BytesIO(content)) as unpacked:
                content = unpacked.read(MAX_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{told} is a damaged gzip file: {error}") from None
        if len(content) > MAX_BYTES:
            raise UserError(f"{told} unpacks to more than {MAX_BYTES >> 20} MiB: split it")
    text = content.decode("utf-8", "replace").lstrip("\ufeff")
    if text.lstrip().startswith("["):
        rows = _loads(text)
        if not isinstance(rows, list):
            raise UserError(f"{told} is not JSON: export it again")
        return rows
    rows = [_loads(line) for line in text.split("\n") if line.strip()]
    if not any(isinstance(row, dict) for row in rows):
        raise UserError(f"{told} is neither a JSON list nor JSON lines")
    return rows


def _loads(text: str) -> Any:
    try:
        found = json.loads(text, parse_constant=str)  # NaN is no JSON, and no number
        return json.loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def ranking_annotations(rows: list[Any], told: str, known: Known) -> Found:
    """Rankings of the paper's form; one without `annotator` is anonymous."""
    for number, row in enumerate(rows):
        row_id = f"{told}:{number}"
        images, ranks = (
            (row.get("generations"), row.get("ranking")) if isinstance(row, dict) else (None, None)
        )
        if (
            not isinstance(images, list)
            or not isinstance(ranks, list)
            or not isinstance(row.get("prompt"), str)
        ):
            yield row_id, "malformed_row", "needs `prompt`, `generations` and `ranking`"
            continue
        names = [known.image(_text(name)) for name in images]
        annotator = row.get("annotator", "")
        yield Annotation(
            row_id,
            prompt_id(row["prompt"]),
            annotator if isinstance(annotator, str) else "",
            told,
            names,
            dict(zip(names, ranks, strict=False)),  # fewer ranks than images: rank_missing
            is_anonymous="annotator" not in row,
        )


def vote_annotations(rows: list[Any], told: str, known: Known) -> Found:
    """Each vote of Rapidata's form is an anonymous ranking of two, whose weight is the voter's score."""
    for number, row in enumerate(rows):
        row_id = f"{told}:{number}"
        if not isinstance(row, dict) or not isinstance(row.get("votes"), list):
            yield row_id, "malformed_row", "needs `prompt`, `image_a`, `image_b` and `votes`"
            continue
        pair = [row.get("image_a"), row.get("image_b")]
        if not all(isinstance(text, str) for text in (row.get("prompt"), *pair)):
            yield row_id, "malformed_row", "needs `prompt`, `image_a` and `image_b` as texts"
            continue
        images = [known.image(name) for name in pair]
        for index, vote in enumerate(row["votes"]):
            vote_id = f"{row_id}:{index}"
            if not isinstance(vote, Mapping):
                yield vote_id, "malformed_row", "a vote needs `votedFor` and `userScore`"
                continue
            # Rapidata names the winner by its file, the pair by its path; of two equal file names neither won.
            chosen = [name for name in pair if vote.get("votedFor") in (name, Path(name).name)]
            ranks = (
                {image: 1 if name == chosen[0] else 2 for name, image in zip(pair, images, strict=True)}
                if len(chosen) == 1
                else {_text(vote.get("votedFor")): 1}
            )
            yield Annotation(
                vote_id,
                prompt_id(row["prompt"]),
                "",
                told,
                images,
                ranks,
                weight=vote.get("userScore"),
                occasion=str(number),
                is_anonymous=True,
            )


def _text(name: Any) -> Any:
    """A list or an object as an image's name is nobody's name."""
    return name if isinstance(name, str) else repr(name)[:200]
