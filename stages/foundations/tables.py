"""The tables that stages exchange: reading and writing Parquet, counting dropped rows, and all schemas.

A table names the stage that made it. Each of its pages has a checksum, which is verified when it is read.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pyarrow.parquet

from stages.foundations.errors import UserError
from stages.foundations.files import write_bytes_atomically
from stages.foundations.machine import MAKER_VARIABLE
from stages.foundations.recorded_files import MADE_BY, require_maker

TEXT = pyarrow.string()


@dataclass(frozen=True)
class TableSchema:
    """Name and columns of a kind of table."""

    name: str
    columns: Mapping[str, pyarrow.DataType]
    optional: Mapping[str, pyarrow.DataType] = field(default_factory=dict)
    """Further columns that a table may have."""

    def with_those_of(self, names: Sequence[str]) -> TableSchema:
        """Returns the schema of a table with the columns `names`."""
        there = {name: kind for name, kind in self.optional.items() if name in names}
        return replace(self, columns={**self.columns, **there}) if there else self

    @property
    def arrow(self) -> pyarrow.Schema:
        """Returns the columns as an Arrow schema."""
        return pyarrow.schema(self.columns)

    @property
    def names(self) -> list[str]:
        return list(self.columns)


@contextmanager
def parquet_errors_explained(path: Path) -> Iterator[None]:
    """Turns errors of pyarrow and the file system about the file at `path` into a UserError with the remedy."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: run `dvc repro`, which makes the tables a stage reads") from None
    except PermissionError as error:
        raise UserError(f"{path} may not be read ({error}): give this user the right to read it") from None
    # UnicodeDecodeError: a flipped bit in the name of a column, which no checksum covers.
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a readable Parquet file ({error}): delete it and run `dvc repro`") from None


KIND = b"table"
"""Key of a table's schema metadata with the name of its `TableSchema`; `MADE_BY` has the address of its stage."""


@contextmanager
def open_table(path: Path) -> Iterator[pyarrow.parquet.ParquetFile]:
    """Yields a Parquet file whose pages are compared with their checksums when they are read.

    UserError when it is missing, is not Parquet or is damaged, here and in the block. UserError when it names another
    stage than the one that makes this file by `dvc.lock`: the lock was merged wrongly, or the file copied.
    A table without a name (of an earlier version, or of another program) is accepted.
    """
    with parquet_errors_explained(path), pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
        require_maker(path)
        yield file


def read_table(path: Path, schema: TableSchema) -> pandas.DataFrame:
    """Returns the table at `path`; UserError as `open_table`, and when it lacks a column of the schema."""
    with open_table(path) as file:
        table = file.read()
    schema = schema.with_those_of(table.column_names)
    missing = [name for name in schema.names if name not in table.column_names]
    # `write_table` writes no other columns: this is an optional column whose name has lost a bit. Pages have checksums,
    # names have none.
    is_ours = (table.schema.metadata or {}).get(KIND) == schema.name.encode()
    if more := [name for name in table.column_names if is_ours and name not in schema.names]:
        raise UserError(
            f"{path} has the columns {more}, which no {schema.name} table has: delete it and run `dvc repro`"
        )
    if missing:
        raise UserError(f"{path} lacks the columns {missing} of a {schema.name} table; it has {table.column_names}")
    try:
        # Tables of other programs may have more columns, and other Arrow types for the same data (large_string for
        # string).
        return table.select(schema.names).cast(schema.arrow).to_pandas()
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        raise UserError(f"{path} has a column of the wrong type for a {schema.name} table: {error}") from None


def write_table(rows: pandas.DataFrame | Sequence[Mapping[str, Any]], path: Path, schema: TableSchema) -> None:
    """Writes Parquet atomically, with the address of the stage that runs and a checksum of each page.

    Equal rows of one stage give equal bytes. Columns outside the schema raise ValueError.
    """
    frame = rows if isinstance(rows, pandas.DataFrame) else pandas.DataFrame(list(rows), columns=None)
    schema = schema.with_those_of(frame.columns)
    unknown = [str(name) for name in frame.columns if name not in schema.names]
    if unknown:
        raise ValueError(f"a {schema.name} table has no columns {unknown}")
    # A column that no row has is filled with nulls: most sources have no worked solutions.
    frame = frame.reindex(columns=schema.names)
    if frame.empty:
        # pandas has no types for an empty frame, for which Arrow would create columns of type null.
        table = schema.arrow.empty_table()
    else:
        table = pyarrow.Table.from_pandas(frame, schema=schema.arrow, preserve_index=False)
    # pandas writes its version and index into the metadata, but equal rows must give equal bytes.
    maker = os.environ.get(MAKER_VARIABLE)
    table = table.replace_schema_metadata({KIND: schema.name} | ({MADE_BY: maker} if maker else {}))
    content = io.BytesIO()
    pyarrow.parquet.write_table(table, content, compression="zstd", write_page_checksum=True)
    write_bytes_atomically(path, content.getvalue())


def require_rows(frame: pandas.DataFrame, path: Path, remedy: str) -> pandas.DataFrame:
    """Returns `frame` unchanged; UserError with the remedy when it has no rows."""
    if frame.empty:
        raise UserError(f"{path} has no rows: {remedy}")
    return frame


REASON = re.compile(r"[a-z][a-z0-9_]*")


class Funnel:
    """The drops of one stage. Every row that enters is either kept by the caller or dropped here, once."""

    def __init__(self, stage: str, rows_in: int) -> None:
        self.stage = stage
        self.rows_in = rows_in
        self._dropped: list[dict[str, str]] = []

    def drop(self, row: Mapping[str, Any], reason: str, detail: str = "", row_id: str = "") -> None:
        """Records one dropped row; `reason` is a snake_case word, `detail` a sentence for this row."""
        if not REASON.fullmatch(reason):
            raise ValueError(f"a reason is snake_case, not {reason!r}")
        self._dropped.append(
            {
                "row_id": row_id or _row_id(row),
                "stage": self.stage,
                "reason": reason,
                "detail": detail,
                # `default`: rows contain numpy numbers and dates, which JSON does not support.
                "row": json.dumps(dict(row), sort_keys=True, default=str, ensure_ascii=False),
            }
        )

    def dropped_frame(self) -> pandas.DataFrame:
        """Returns the dropped rows in the order they were dropped, in the `dropped` table's columns."""
        return pandas.DataFrame(self._dropped, columns=DROPPED.names)

    def metrics(self, kept: int) -> dict[str, int]:
        """Returns `rows/in`, `rows/kept` and `dropped/<reason>`; ValueError when they do not add up."""
        # Detects, at the end of its stage, a filter that did not record a dropped row.
        if self.rows_in != kept + len(self._dropped):
            raise ValueError(f"{self.rows_in} rows in, {kept} kept, {len(self._dropped)} dropped: rows were lost")
        reasons = Counter(row["reason"] for row in self._dropped)
        counts = {f"dropped/{reason}": count for reason, count in sorted(reasons.items())}
        return {"rows/in": self.rows_in, "rows/kept": kept, **counts}


def _row_id(row: Mapping[str, Any]) -> str:
    return next((str(row[name]) for name in row if name.endswith("_id") and row[name] is not None), "")


PROBLEM_COLUMNS = {
    "problem_id": TEXT,
    "source": TEXT,
    "problem": TEXT,
    "answer": TEXT,
    "solution": TEXT,
    "licence": TEXT,
}
MESSAGES = {"messages": TEXT}
"""The turns {role, content} of a conversation, as JSON; null if the row is not a conversation."""
PROBLEM = TableSchema("problem", PROBLEM_COLUMNS, MESSAGES)
"""A problem with its gold answer and, if known, a worked solution. For a conversation, the first user turn."""

BENCHMARK = TableSchema("benchmark", {**PROBLEM_COLUMNS, "benchmark": TEXT})
"""A benchmark problem."""

SAMPLED = {"problem_id": TEXT, "benchmark": TEXT, "mode": TEXT, "sample_index": pyarrow.int32()}
"""Columns that identify a response."""
EPISODE = {
    "observed": pyarrow.list_(pyarrow.int32()),  # start, end, start, end, ... of the observed tokens
    "observed_characters": pyarrow.list_(pyarrow.int32()),  # likewise, of the text; in tables without tokens
    "turns": pyarrow.int32(),
    "calls": pyarrow.int32(),
    "failed_calls": pyarrow.int32(),
    "final_response": TEXT,
    "ending": TEXT,
    "environment_reward": pyarrow.float32(),
    "environment_correct": pyarrow.bool_(),
    "environment_fault": TEXT,
}
"""Columns of responses of several turns: see `Episode`. Its seconds are not here: outputs hold no times."""
RESPONSE = TableSchema(
    "response",
    {
        **SAMPLED,
        "problem": TEXT,
        "answer": TEXT,
        "response": TEXT,
        "response_tokens": pyarrow.int32(),
        "is_truncated": pyarrow.bool_(),
    },
    EPISODE,
)
"""A policy's response to a benchmark problem."""

VERDICT = TableSchema("verdict", {**SAMPLED, "verdict": TEXT, "extracted": TEXT, "path": TEXT, "reason": TEXT})
"""The verifier's verdict on a stored response."""

DIFFICULTY = TableSchema(
    "difficulty",
    {"problem_id": TEXT, "source": TEXT, "pass_rate": pyarrow.float64(), "samples": pyarrow.int32(), "band": TEXT},
)
"""How often a policy solves a problem."""

ROLLOUT = TableSchema(
    "rollout",
    {
        "problem_id": TEXT,
        "step": pyarrow.int32(),
        "policy_version": pyarrow.int32(),
        "sample_index": pyarrow.int32(),
        "response": TEXT,
        "response_tokens": pyarrow.int32(),
        "token_ids": pyarrow.list_(pyarrow.int32()),
        "rollout_logprobs": pyarrow.list_(pyarrow.float32()),
        "reward": pyarrow.float32(),
        "verdict": TEXT,
        "is_truncated": pyarrow.bool_(),
        "is_trained": pyarrow.bool_(),
    },
    EPISODE,
)
"""A response that a round of reinforcement learning has sampled."""

DEMONSTRATION = TableSchema(
    "demonstration",
    dict.fromkeys(("demonstration_id", "problem_id", "source", "kind", "problem", "response", "licence"), TEXT),
    MESSAGES,
)
"""A problem and the response for supervised fine-tuning."""

PAGE = TableSchema("page", dict.fromkeys(("page_id", "url", "format", "content", "licence"), TEXT))
"""A web page or document as it was collected."""

CANDIDATE = TableSchema(
    "candidate",
    {
        **dict.fromkeys(("candidate_id", "page_id", "url", "problem", "solution", "answer", "licence"), TEXT),
        "number": TEXT,  # number of the exercise on the page; empty if it has none
        "evidence": TEXT,  # the rule that found the pair, its labels, and the checks that it failed
        "confidence": pyarrow.float64(),  # share of correct pairs among those found in this way
    },
)
"""An exercise extracted from a page: problem, worked solution, short answer."""

DROPPED = TableSchema("dropped", dict.fromkeys(("row_id", "stage", "reason", "detail", "row"), TEXT))
"""A row that a stage left out, with the reason. `Funnel` collects them."""

DUPLICATE = TableSchema(
    "duplicate",
    {
        "problem_id": TEXT,
        "source": TEXT,
        "problem": TEXT,
        "other_id": TEXT,
        "other_source": TEXT,
        "other_problem": TEXT,
        "scope": TEXT,
        "rule": TEXT,
        "similarity": pyarrow.float64(),
    },
)
"""A problem that was dropped as a duplicate of another."""

CONTAMINATION = TableSchema(
    "contamination",
    {
        "problem_id": TEXT,
        "source": TEXT,
        "problem": TEXT,
        "benchmark": TEXT,
        "benchmark_problem_id": TEXT,
        "benchmark_problem": TEXT,
        "rule": TEXT,
        "overlap": pyarrow.float64(),
        "benchmark_revision": TEXT,
    },
)
"""A problem that overlaps a benchmark problem."""

TRANSFORM = TableSchema(
    "transform",
    {
        "problem_id": TEXT,
        "source": TEXT,
        "original_problem": TEXT,
        "original_answer": TEXT,
        "problem": TEXT,
        "answer": TEXT,
        "form": TEXT,
        "parts": TEXT,
        "inverse": TEXT,
    },
)
"""A problem whose answer was rewritten to an integer, before and after."""

PROMPT = TableSchema("prompt", dict.fromkeys(("prompt_id", "prompt", "split", "source"), TEXT))
"""A prompt for generating images. `split` is train, validation or test."""


def prompt_id(prompt: str) -> str:
    """Returns the id of a prompt: the first 16 digits of the SHA-256 of its exact text."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


IMAGE = TableSchema(
    "image",
    {
        "image_id": TEXT,
        "prompt_id": TEXT,
        "prompt": TEXT,
        "generator": TEXT,
        "seed": pyarrow.int64(),
        "width": pyarrow.int32(),
        "height": pyarrow.int32(),
        "file_sha256": TEXT,
        "source": TEXT,
        "licence": TEXT,
        "png": pyarrow.binary(),
    },
)
"""An image with its prompt, as PNG inside the table.

`image_id` is the hash of the decoded pixels (stages/images/engines/pictures/shards.py), `file_sha256` that of the
original file. `seed` is -1 if unknown: pandas would convert a column with nulls to floats and lose digits.
"""

IMAGE_SCORE = TableSchema(
    "image_score", {**dict.fromkeys(("prompt_id", "image_id", "scorer"), TEXT), "score": pyarrow.float64()}
)
"""A scorer's score of an image for its prompt. Higher is better, and scales differ between scorers."""

ANNOTATOR = TableSchema(
    "annotator",
    {
        "annotator_id": TEXT,
        "rankings": pyarrow.int32(),
        "agreement": pyarrow.float64(),
        "agreement_pairs": pyarrow.int32(),
        "consistency": pyarrow.float64(),
        "gold_accuracy": pyarrow.float64(),
        "median_seconds": pyarrow.float64(),
        "is_kept": pyarrow.bool_(),
        "reason": TEXT,
    },
)
"""Quality measures of an annotator, and whether the annotations are kept.

A measure is null if there was too little data. `reason` names every rule that the annotator breaks.
"""

RANKING = TableSchema(
    "ranking",
    {
        **dict.fromkeys(("task_id", "prompt_id", "annotator_id", "source"), TEXT),
        "is_gold": pyarrow.bool_(),
        "image_ids": pyarrow.list_(TEXT),
        "ranks": pyarrow.list_(pyarrow.int32()),
        "weight": pyarrow.float64(),
        "seconds": pyarrow.float64(),
    },
)
"""An annotator's ranking of the images of a task.

`task_id` names the images that were shown together; agreement of annotators is measured per task. `ranks` are slots, 1
is best and equal ranks are ties. `is_gold` marks the reference answer of a task, for checking annotators.
`annotator_id` is empty for an anonymous vote, which is a ranking of two; `weight` is 1 except for votes that have one.
`seconds` is null if the time was not measured.
"""

ASPECTS = ("overall", "alignment", "fidelity")
"""The three ratings of an image; null if the annotator gave none."""
ISSUES = ("repeated_generation", "body_problem", "blur", "discomfort", "sexual", "violent", "defamatory")
"""Possible faults of an image (ImageReward, arXiv 2304.05977, section 2.2)."""
PROMPT_CATEGORIES = tuple(
    [
        "abstract",
        "animals",
        "artifacts",
        "arts",
        "food_and_beverage",
        "illustrations",
        "indoor_scenes",
        "outdoor_scenes",
        "people",
        "produce_and_plants",
        "vehicles",
        "world_knowledge",
    ]
)
"""Possible categories of a prompt: those of Parti (arXiv 2206.10789), which ImageReward's annotators choose from."""
PROMPT_PROBLEMS = ("ambiguous", "unclear", "pornographic", "violent", "discriminatory")
"""Possible problems of a prompt (ImageReward, section 2.2; the exact words on its boxes are not published)."""
PROMPT_ANNOTATION = TableSchema(
    "prompt_annotation",
    {
        **dict.fromkeys(("task_id", "prompt_id", "annotator_id", "source", "category"), TEXT),
        "problems": pyarrow.list_(TEXT),
    },
)
"""An annotator's statements on a task's prompt, before rating its images; an empty category was not chosen."""
RATING = TableSchema(
    "rating",
    {
        **dict.fromkeys(("task_id", "prompt_id", "image_id", "annotator_id", "source"), TEXT),
        **dict.fromkeys(ASPECTS, pyarrow.float64()),
        "issues": pyarrow.list_(TEXT),
        "seconds": pyarrow.float64(),
        "created": TEXT,
    },
)
"""An annotator's ratings of one image of a task, in points from 1 to 7."""

PAIR = TableSchema(
    "pair",
    {
        **dict.fromkeys(("prompt_id", "annotator_id", "better_image_id", "worse_image_id"), TEXT),
        "weight": pyarrow.float64(),
        "split": TEXT,
    },
)
"""Two images of a prompt of which an annotator preferred one."""

QUANTITIES = ("reward", "held_out", "truth", "alignment", "fidelity", "saturation")
"""Measures of each image; those of the truth are null if it is unknown."""
FEEDBACK_IMAGE = TableSchema(
    "feedback_image",
    {
        "prompt_id": TEXT,
        "prompt": TEXT,
        "seed": pyarrow.int64(),
        **{f"{quantity}_{when}": pyarrow.float64() for quantity in QUANTITIES for when in ("before", "after")},
        "shown_for": TEXT,
        "png_before": pyarrow.binary(),
        "png_after": pyarrow.binary(),
    },
)
"""Two images from the same noise: one by the generator that a round started from, one by the trained generator.

`shown_for` is the rule by which a pair's images are kept: `gain`, `loss` or `middle`. For other pairs it is empty, and
the images are not stored.
"""
