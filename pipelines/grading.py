"""`retrace grade`: verdicts for the rows of a JSON lines file, with the verifier that rewards and evaluation use.

A row has `gold` and `prediction` (a whole response or a bare answer), and may have `id`, `truncated` (a token limit cut
the response off) and `tolerance` (how far apart two numbers may be and agree). Each row gives one line with `line`,
`id`, `verdict`, `reason`, `extracted` and `path`, in order, as soon as its batch is judged.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from stages.engines.verifier import Judgement, Verifier, VerifierParams
from stages.foundations.errors import UserError
from stages.foundations.params import load_section
from stages.foundations.progress import progress, say
from stages.foundations.scratch import PROJECT

_ROWS_AT_ONCE = 500
"""Rows judged together: enough to keep the workers busy, few enough to see the lines come."""


@dataclass(frozen=True)
class _Row:
    line: int
    identity: Any
    gold: str
    prediction: str
    is_truncated: bool
    tolerance: Fraction | None
    fault: str
    """Why the row cannot be judged; empty when it can."""


def grade(
    file: Annotated[str, typer.Argument(help="JSON lines with gold and prediction; - reads standard input")],
    jobs: Annotated[
        int, typer.Option(min=1, help="worker processes for what the exact path cannot decide")
    ] = 2,
    judge: Annotated[str, typer.Option(help="folder of a policy that judges instead of the rules")] = "",
    params: Annotated[Path, typer.Option(help="file with the limits: section verifier")] = PROJECT
    / "params.yaml",
) -> None:
    """Give each row a verdict: correct, wrong, unparsed, timed_out or crashed. Lines to standard output."""
    try:
        with ExitStack() as opened:
            source = sys.stdin if file == "-" else opened.enter_context(_open(Path(file)))
            verifier = opened.enter_context(_open_verifier(jobs, judge, params))
            _write_verdicts(source, verifier, sys.stdout)
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    except BrokenPipeError:
        sys.stderr.close()  # who reads the lines has seen enough


def _open(path: Path) -> TextIO:
    try:
        return path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror}. Give a file of JSON lines, or - for standard input"
        ) from error


def _open_verifier(jobs: int, judge: str, params: Path):
    if judge:
        from stages.grade.judging import open_judge

        return open_judge(params, Path(judge))
    return Verifier(load_section(params, "verifier", VerifierParams).model_copy(update={"workers": jobs}))


def _write_verdicts(source: Iterable[str], verifier, target: TextIO) -> None:
    """Judges and writes row by row; a summary goes to standard error."""
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    started = time.monotonic()
    for row, judgement in judged_rows(progress(_rows(source), label="grade"), verifier):
        counts[judgement.verdict] += 1
        faults[row.fault] += bool(row.fault)
        line = {"line": row.line, "verdict": judgement.verdict, "reason": judgement.reason,
                "extracted": judgement.extracted, "path": judgement.path}  # fmt: skip
        if row.identity is not None:
            line["id"] = row.identity
        target.write(json.dumps(line) + "\n")
        target.flush()
    told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    say(f"graded {counts.total()} rows in {time.monotonic() - started:.1f} s: {told or 'nothing'}")
    for fault, count in sorted((+faults).items()):
        say(f"{count} rows could not be read ({fault}): they are unparsed, with that reason")


def judged_rows(rows: Iterable[_Row], verifier) -> Iterator[tuple[_Row, Judgement]]:
    """Rows with their judgements, in order, in batches."""
    rows = iter(rows)
    while batch := list(islice(rows, _ROWS_AT_ONCE)):
        sound = [row for row in batch if not row.fault]
        options: dict[str, Any] = {"truncated": [row.is_truncated for row in sound]}
        if any(row.tolerance is not None for row in sound):
            options["tolerances"] = [row.tolerance for row in sound]
        judgements = iter(verifier.judge([(row.gold, row.prediction) for row in sound], **options))
        for row in batch:
            if row.fault:
                yield row, Judgement("unparsed", None, "extraction", row.fault)  # type: ignore[arg-type]
            else:
                yield row, next(judgements)


def _rows(lines: Iterable[str]) -> Iterator[_Row]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _read_row(number, line)


def _read_row(number: int, line: str) -> _Row:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return _faulty(number, None, "not_json")
    if not isinstance(row, dict):
        return _faulty(number, None, "not_an_object")
    identity = row.get("id")
    texts = [_text(row.get(name)) for name in ("gold", "prediction")]
    for name, text in zip(("gold", "prediction"), texts, strict=True):
        if text is None:
            return _faulty(number, identity, f"no_{name}")
    tolerance = row.get("tolerance")
    is_number = isinstance(tolerance, int | float) and not isinstance(tolerance, bool)
    if tolerance is not None and not (is_number and 0 <= tolerance < float("inf")):
        return _faulty(number, identity, "tolerance_is_no_number")
    exact = None if tolerance is None else Fraction(str(tolerance))
    return _Row(number, identity, str(texts[0]), str(texts[1]), row.get("truncated") is True, exact, "")


def _faulty(number: int, identity: Any, fault: str) -> _Row:
    return _Row(number, identity, "", "", False, None, fault)


def _text(value: Any) -> str | None:
    """A field as text: strings and numbers; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return str(value)
