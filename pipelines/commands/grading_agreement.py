"""`retrace agreement`: how far two verifiers agree on the same rows.

Both files come from `retrace grade`: of the rules, of a model as judge, or of an older version. Cohen's kappa is on
correct against all else, as a reward sees it: (observed - expected) / (1 - expected) agreement, where expected is what
independent verifiers with the same rates would have (Cohen 1960).
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from stages.foundations.errors import UserError

VERDICTS = ("correct", "wrong", "unparsed", "exhausted", "timed_out", "crashed")


@dataclass(frozen=True)
class Agreement:
    """What two verifiers said about the same rows."""

    rows: int
    table: dict[tuple[str, str], int]
    """Rows by the first verifier's verdict and the second's."""
    observed: float
    """Share of rows that both call correct or both do not."""
    kappa: float | None
    """None where both say the same of every row, by chance or not: kappa is then undefined."""
    differing: list[dict[str, Any]]
    """Rows of which one says correct and the other does not."""


def agreement(
    first: Annotated[Path, typer.Argument(help="verdicts of one verifier, from retrace grade")],
    second: Annotated[Path, typer.Argument(help="verdicts of the other, on the same rows")],
    rows: Annotated[int, typer.Option(min=0, help="differing rows to print")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object instead of the report")] = False,
) -> None:
    """Compare two verifiers: table of verdicts, Cohen's kappa, rows that differ."""
    try:
        found = compare_verdicts(_read(first), _read(second))
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(_as_json(found) if as_json else _as_text(found, first.name, second.name, rows))


def compare_verdicts(first: dict[Any, dict], second: dict[Any, dict]) -> Agreement:
    """The agreement on rows with the same keys; UserError when one has rows that the other lacks, or none."""
    if not first or first.keys() != second.keys():
        alone = len(first.keys() ^ second.keys())
        raise UserError(
            f"the files hold different rows ({alone} are in one only): grade the same file with both"
        )
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
    return Agreement(total, dict(table), observed, kappa, differing)


def _read(path: Path) -> dict[Any, dict]:
    """Rows by id, or by line where one has none; UserError for what `retrace grade` did not write."""
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
    return json.dumps(
        {
            "rows": found.rows,
            "observed": found.observed,
            "kappa": found.kappa,
            "table": table,
            "differing": found.differing,
        },
        indent=1,
    )
