"""`retrace grade`: verdicts for the rows of a JSON lines file, with the verifier that rewards and evaluation use.

A row has `gold` and `prediction` (a whole response or a bare answer), and may have `id`. `truncated` says that a token
limit cut off the response; `tolerance` is the largest difference of two equal numbers. A row may also allow more:
`decimals` (true: the rounding of an exact answer counts), `expressions` (true: so does an unevaluated expression) and
`ordered` (false: the order of letters and in brackets does not matter). Each row gives one line with `line`, `id`,
`verdict`, `reason`, `extracted` and `path`, in order, as soon as its batch is judged. The file may be gzipped.

A row that cannot be judged gets the verdict `unparsed` with its reason, and is counted. A file without a valid row is a
mistake of the caller: exit code 2.

`retrace agreement`: measures how far two verifiers agree on the same rows. Both files come from `retrace grade`: from
the rules, from a model as judge, or from an older version. Cohen's kappa is on correct against everything else, as in a
reward: (observed - expected) / (1 - expected) agreement, where expected is the agreement of independent verifiers with
the same rates (Cohen 1960).
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import STRICT, Judgement, Leniency, Verifier
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT
from stages.foundations.params import load_section
from stages.observe.progress import progress, say

# An installed package has no params.yaml, but the recipe, which has the same limits.
PARAMS = PROJECT / ("params.yaml" if (PROJECT / "params.yaml").is_file() else "pipelines/recipes/laptop.yaml")
_ROWS_AT_ONCE = 500
"""Rows judged together: enough to keep the workers busy, few enough that lines appear soon."""
_LONG_INTEGER = 4_000
_FLAGS = {"truncated": False, "decimals": False, "expressions": False, "ordered": True}
_MAX_LINE_CHARACTERS = 16 * 2**20
"""Longer lines are skipped without being kept in memory."""


@dataclass(frozen=True)
class _Row:
    line: int
    identity: Any
    gold: str
    prediction: str
    is_truncated: bool
    allowed: Leniency
    fault: str
    """The reason why the row cannot be judged; empty when it can."""


def grade(
    file: Annotated[str, typer.Argument(help="JSON lines with gold and prediction; - reads standard input")],
    jobs: Annotated[
        int, typer.Option(min=1, help="worker processes for answers that the exact rules cannot decide")
    ] = 2,
    judge: Annotated[str, typer.Option(help="folder of a policy that judges instead of the rules")] = "",
    judge_tokens: Annotated[int, typer.Option(min=1, help="most tokens of a judgement")] = 1024,
    params: Annotated[Path, typer.Option(help="file with the limits: section verifier")] = PARAMS,
) -> None:
    """Give each row a verdict: correct, wrong, unparsed, exhausted or crashed. Lines go to standard output."""
    try:
        with ExitStack() as opened:
            source = opened.enter_context(_open(file))
            verifier = opened.enter_context(_open_verifier(jobs, judge, judge_tokens, params))
            _write_verdicts(source, verifier, sys.stdout)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{file} is a damaged gzip file ({error}): unpack it, or download it again") from error
    except BrokenPipeError:
        # The reader has closed the pipe, and Python would report an error for it at its end.
        sys.stderr.close()


def _open(file: str) -> TextIO:
    """Opens the file; bytes that are not text become question marks, and a byte order mark is skipped."""
    try:
        return io.TextIOWrapper(_open_binary(file), encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}. Give a file of JSON lines, or - for standard input") from error


def _open_binary(file: str) -> Any:
    if file == "-":
        return sys.stdin.buffer
    return gzip.open(file) if file.endswith(".gz") else Path(file).open("rb")


def _open_verifier(jobs: int, judge: str, judge_tokens: int, params: Path):
    if judge:
        # Imported here, because it imports torch and transformers.
        from stages.engines.verifier.model_judge import open_judge

        return open_judge(params, Path(judge), judge_tokens)
    return Verifier(load_section(params, "verifier", VerifierParams).model_copy(update={"workers": jobs}))


def _write_verdicts(source: TextIO, verifier, target: TextIO) -> None:
    """Judges and writes row by row; a summary goes to standard error. UserError if no row could be judged."""
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    started = time.monotonic()
    for row, judgement in judged_rows(progress(_rows(source), label="grade"), verifier):
        counts[judgement.verdict] += 1
        faults[row.fault] += bool(row.fault)
        line = {
            "line": row.line,
            "verdict": judgement.verdict,
            "reason": judgement.reason,
            "extracted": judgement.extracted,
            "path": judgement.path,
        }
        if row.identity is not None:
            line["id"] = row.identity
        # A decimal id is a Decimal here.
        target.write(json.dumps(line, default=float) + "\n")
        # Flushed, so that a pipe gets each verdict at once: a file may take hours.
        target.flush()
    summary = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    say(f"graded {counts.total()} rows in {time.monotonic() - started:.1f} s: {summary or 'nothing'}")
    for fault, count in sorted((+faults).items()):
        say(f"{count} rows could not be read ({fault}): they are unparsed, with that reason")
    if not counts.total():
        raise UserError("the input holds no rows: give JSON lines with gold and prediction")
    if (+faults).total() == counts.total():
        raise UserError('no row could be read: give JSON lines such as {"gold": "1/2", "prediction": "0.5"}')


def judged_rows(rows: Iterable[_Row], verifier) -> Iterator[tuple[_Row, Judgement]]:
    """Yields rows with their judgements, in order, in batches."""
    rows = iter(rows)
    while batch := list(islice(rows, _ROWS_AT_ONCE)):
        sound = [row for row in batch if not row.fault]
        pairs = [(row.gold, row.prediction) for row in sound]
        cut_off, allowed = [row.is_truncated for row in sound], [row.allowed for row in sound]
        judgements = iter(verifier.judge(pairs, truncated=cut_off, allowed=allowed))
        for row in batch:
            if row.fault:
                yield row, Judgement("unparsed", None, "extraction", row.fault)  # type: ignore[arg-type]
            else:
                yield row, next(judgements)


def _rows(source: TextIO) -> Iterator[_Row]:
    for number, line in enumerate(_lines(source), start=1):
        if line is None:
            yield _faulty(number, None, "line_too_long")
        elif line.strip():
            yield _read_row(number, line)


def _lines(source: TextIO) -> Iterator[str | None]:
    """Yields the lines; None for one that is too long."""
    while line := source.readline(_MAX_LINE_CHARACTERS):
        is_whole = len(line) < _MAX_LINE_CHARACTERS or line.endswith("\n")
        yield line if is_whole else None
        while not is_whole:
            rest = source.readline(_MAX_LINE_CHARACTERS)
            is_whole = len(rest) < _MAX_LINE_CHARACTERS or rest.endswith("\n")


def _read_row(number: int, line: str) -> _Row:
    try:
        # Decimals keep the digits as written. A float would round a long number.
        row = json.loads(line, parse_int=_integer, parse_float=Decimal)
    except (ValueError, RecursionError):
        return _faulty(number, None, "not_json")
    if not isinstance(row, dict):
        return _faulty(number, None, "not_an_object")
    identity = row.get("id")
    for name in ("gold", "prediction"):
        if row.get(name) is None:
            return _faulty(number, identity, f"no_{name}")
        # In Python a bool is an int, but `true` is not an answer.
        if isinstance(row[name], bool) or not isinstance(row[name], str | int | float | Decimal):
            return _faulty(number, identity, f"{name}_is_no_text")
        # Only NaN and Infinity: other numbers are read as decimals.
        if isinstance(row[name], float):
            return _faulty(number, identity, f"{name}_is_no_number")
    flags = {name: row.get(name, default) for name, default in _FLAGS.items()}
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            return _faulty(number, identity, f"{name}_is_no_boolean")
    tolerance = row.get("tolerance")
    is_number = isinstance(tolerance, int | Decimal) and not isinstance(tolerance, bool)
    # As a fraction 1e-999999 would have a million digits.
    if tolerance is not None and not (is_number and (tolerance == 0 or 1e-300 < tolerance < 1e300)):
        return _faulty(number, identity, "tolerance_is_no_number")
    is_truncated = flags.pop("truncated")
    allowed = Leniency(None if tolerance is None else Fraction(tolerance), **flags)
    return _Row(number, identity, str(row["gold"]), str(row["prediction"]), is_truncated, allowed, "")


def _faulty(number: int, identity: Any, fault: str) -> _Row:
    return _Row(number, identity, "", "", False, STRICT, fault)


def _integer(digits: str) -> int | str:
    """Returns the integer; with more than 4,300 digits, which Python does not convert, the text."""
    return int(digits) if len(digits) < _LONG_INTEGER else digits


VERDICTS = ("correct", "wrong", "unparsed", "exhausted", "timed_out", "crashed")


@dataclass(frozen=True)
class Agreement:
    """Agreement of two verifiers on the same rows."""

    rows: int
    observed: float
    """Share of rows that both judge as correct or both do not."""
    kappa: float | None
    """None if both give every row the same verdict: kappa is then undefined."""
    table: dict[tuple[str, str], int]
    """Rows by the first verifier's verdict and the second's."""
    differing: list[dict[str, Any]]
    """Rows that only one of the two judges as correct."""


def agreement(
    first: Annotated[Path, typer.Argument(help="verdicts of one verifier, from retrace grade")],
    second: Annotated[Path, typer.Argument(help="verdicts of the other, on the same rows")],
    rows: Annotated[int, typer.Option(min=0, help="differing rows to print")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of the report")] = False,
) -> None:
    """Compare two verifiers: table of verdicts, Cohen's kappa, rows that differ."""
    found = compare_verdicts(_read(first), _read(second))
    typer.echo(_as_json(found) if as_json else _as_text(found, first.name, second.name, rows))


def compare_verdicts(first: dict[Any, dict], second: dict[Any, dict]) -> Agreement:
    """Returns the agreement on rows with the same keys; UserError when one has rows that the other lacks, or none."""
    if not first or first.keys() != second.keys():
        alone = len(first.keys() ^ second.keys())
        raise UserError(f"the files hold different rows ({alone} are in one only): grade the same file with both")
    table = Counter((first[key]["verdict"], second[key]["verdict"]) for key in first)
    total = len(first)
    correct = [sum(row["verdict"] == "correct" for row in side.values()) / total for side in (first, second)]
    differing = [
        {"row": key, "first": first[key], "second": second[key]}
        for key in first
        if (first[key]["verdict"] == "correct") != (second[key]["verdict"] == "correct")
    ]
    observed = 1 - len(differing) / total
    expected = correct[0] * correct[1] + (1 - correct[0]) * (1 - correct[1])
    kappa = (observed - expected) / (1 - expected) if expected < 1 else None
    return Agreement(total, observed, kappa, dict(table), differing)


def _read(path: Path) -> dict[Any, dict]:
    """Returns rows by id, or by line if one has no id; UserError for files that `retrace grade` did not write."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        is_sound = all(row["verdict"] in VERDICTS and isinstance(row["line"], int) for row in rows)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError):
        is_sound = False
    if not is_sound:
        raise UserError(f"{path} is no output of retrace grade: each line needs line and a verdict")
    names = [str(row["id"]) if "id" in row else None for row in rows]
    # Repeated ids do not identify rows, so the line number does.
    has_names = None not in names and len(set(names)) == len(names)
    return {name if has_names else row["line"]: row for name, row in zip(names, rows, strict=True)}


def _as_text(found: Agreement, first: str, second: str, most: int) -> str:
    seen = [verdict for verdict in VERDICTS if any(verdict in pair for pair in found.table)]
    kappa = "undefined" if found.kappa is None else f"{found.kappa:.3f}"
    lines = [
        f"{found.rows} rows; agreement on correct {found.observed:.4f}; Cohen's kappa {kappa}",
        f"rows: {first}; columns: {second}",
        " " * 12 + "".join(f"{verdict:>12}" for verdict in seen),
    ]
    for one in seen:
        lines.append(f"{one:<12}" + "".join(f"{found.table.get((one, other), 0):>12}" for other in seen))
    if found.differing:
        lines.append(f"{len(found.differing)} rows differ:")
    for row in found.differing[:most]:
        sides = [f"{row[side]['verdict']} ({row[side].get('reason')})" for side in ("first", "second")]
        lines.append(f"  {row['row']}: {sides[0]} against {sides[1]}; {row['first'].get('extracted')!r:.100}")
    return "\n".join(lines)


def _as_json(found: Agreement) -> str:
    table = {f"{one}/{other}": count for (one, other), count in sorted(found.table.items())}
    return json.dumps({**vars(found), "table": table}, indent=1)
