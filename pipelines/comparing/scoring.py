"""Scores of problems from verdicts, on the problems and samples that all sides answered."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import pandas

from pipelines.comparing.sides import Answers, Side
from stages.algorithms.estimators import majority_at_k, pass_at_k
from stages.foundations.errors import UserError
from stages.grade.scores import CORRECT_VOTE, votes

FAMILIES = ("avg", "greedy", "pass", "maj")
"""Metrics, the leading one first: mean of the samples, greedy response, any of the samples, most frequent answer."""
MOST_TOLD = 6
_Problems = dict[str, str]
"""Problem id -> hash of its text and answer, "" where only verdicts are there."""


@dataclass(frozen=True)
class Benchmark:
    """What all sides answered of one benchmark."""

    name: str
    problems: tuple[str, ...]
    samples: int
    """Sampled responses of each problem; 0 when there are none."""
    is_greedy: bool
    leaked: int
    """Problems that all sides answered and that one was trained on; left out where only clean ones count."""

    def metrics(self, families: Sequence[str]) -> list[str]:
        """Those of `families` that can be computed, by name: `avg_at_8`, `greedy`."""
        return [
            family if family == "greedy" else f"{family}_at_{self.samples}"
            for family in families
            if (self.is_greedy if family == "greedy" else self.samples)
        ]


def shared_benchmarks(
    sides: Sequence[Side], is_common: bool, is_clean: bool = False
) -> tuple[list[Benchmark], list[str]]:
    """The benchmarks that all sides answered, and a line for each restriction to what they share.

    With `is_clean` without the problems that a side was trained on. UserError when they did not answer
    the same problems equally often (unless `is_common`), share nothing, or nobody knows what is clean.
    """
    tables = {f"{side.name}{_told_seed(own, side)}": own for side in sides for own in side.answers}
    unknown = [label for label, own in tables.items() if own.leaked is None]
    if is_clean and unknown:
        raise UserError(
            f"--clean: what {', '.join(unknown)} was trained on is not known: a training table is neither there nor "
            "in DVC's cache. Run `dvc pull` there, or leave --clean out"
        )
    names = sorted({name for own in tables.values() for name in own.verdicts["benchmark"].unique()})
    found, differences = [], []
    for name in names:
        benchmark, told = _shared(name, tables, is_clean)
        differences += told
        if benchmark and benchmark.problems and (benchmark.samples or benchmark.is_greedy):
            found.append(benchmark)
    if differences and not is_common:
        more = [f"  ... and {len(differences) - MOST_TOLD} more"] if len(differences) > MOST_TOLD else []
        lines = "\n".join([f"  {line}" for line in differences[:MOST_TOLD]] + more)
        raise UserError(
            f"the sides did not answer the same problems:\n{lines}\nA paired comparison needs the same: grade them "
            "on the same benchmarks, or compare what they share with --common"
        )
    if not found:
        raise UserError(
            f"{', '.join(side.name for side in sides)} share no {'clean ' if is_clean else ''}problem: there is "
            "nothing to compare"
        )
    return found, differences


def _told_seed(own: Answers, side: Side) -> str:
    return f" seed {own.seed}" if len(side.answers) > 1 else ""


def _shared(name: str, tables: dict[str, Answers], is_clean: bool) -> tuple[Benchmark | None, list[str]]:
    rows = {label: own.verdicts[own.verdicts["benchmark"] == name] for label, own in tables.items()}
    absent = [label for label, own in rows.items() if own.empty]
    if absent:
        return None, [f"{name}: not answered by {', '.join(absent)}; the benchmark is left out"]
    told = []
    problems = {label: _problems(tables[label], own, name) for label, own in rows.items()}
    shared = set.intersection(*(set(own) for own in problems.values()))
    for label, own in problems.items():
        if len(own) > len(shared):
            told.append(
                f"{name}: {len(own) - len(shared)} of {label}'s {len(own)} problems are not in all others"
            )
    changed = {key for key in shared if len({own[key] for own in problems.values()} - {""}) > 1}
    if changed:
        told.append(f"{name}: {len(changed)} problems have the same id and another text or answer")
    shared -= changed
    leaked = shared & {
        key for own in tables.values() for benchmark, key in own.leaked or () if benchmark == name
    }
    shared -= leaked if is_clean else set()
    counts = {
        mode: {label: _fewest(own, mode, shared) for label, own in rows.items()}
        for mode in ("sampled", "greedy")
    }
    for mode, by_label in counts.items():
        if len(set(by_label.values())) > 1:
            listed = ", ".join(f"{label} {count}" for label, count in by_label.items())
            told.append(
                f"{name}: {mode} responses for each problem differ ({listed}); the first ones are compared"
            )
    samples, greedy = (min(counts[mode].values()) for mode in ("sampled", "greedy"))
    return Benchmark(name, tuple(sorted(shared)), samples, greedy > 0, len(leaked)), told


def _problems(answers: Answers, rows: pandas.DataFrame, benchmark: str) -> _Problems:
    found = dict.fromkeys(rows["problem_id"].unique(), "")
    if answers.responses is not None:
        own = answers.responses[answers.responses["benchmark"] == benchmark].drop_duplicates("problem_id")
        for row in own[["problem_id", "problem", "answer"]].itertuples(index=False):
            text = f"{row.problem}\0{row.answer}".encode("utf-8", "replace")
            found[row.problem_id] = hashlib.sha256(text).hexdigest()
    return found


def _fewest(rows: pandas.DataFrame, mode: str, problems: set[str]) -> int:
    own = rows[(rows["mode"] == mode) & rows["problem_id"].isin(problems)]
    counts = own.groupby("problem_id").size().reindex(sorted(problems), fill_value=0)
    return int(counts.min()) if len(counts) else 0


def problem_scores(answers: Answers, benchmark: Benchmark, families: Sequence[str]) -> pandas.DataFrame:
    """A row for each of the benchmark's problems, in its order, a column for each metric: scores from 0 to 1.

    As in `grade`, a response without a verdict of `correct` counts as not correct. Where a side has more samples than
    all share, its first ones are taken.
    """
    verdicts = answers.verdicts
    rows = verdicts[
        (verdicts["benchmark"] == benchmark.name) & verdicts["problem_id"].isin(benchmark.problems)
    ]
    rows = rows.assign(is_correct=rows["verdict"] == "correct")
    columns: dict[str, Sequence[float]] = {}
    for metric in benchmark.metrics(families):
        family, k = metric.partition("_")[0], benchmark.samples
        own = rows[rows["mode"] == ("greedy" if family == "greedy" else "sampled")].sort_values(
            ["problem_id", "sample_index"], kind="stable"
        )
        groups = (
            own.groupby("problem_id", sort=True)
            .head(1 if family == "greedy" else k)
            .groupby("problem_id", sort=True)
        )
        match family:
            case "pass":
                columns[metric] = numpy.atleast_1d(pass_at_k(k, groups["is_correct"].sum().to_numpy(), k))
            case "maj":
                columns[metric] = [majority_at_k(votes(group), CORRECT_VOTE, k) for _, group in groups]
            case _:
                columns[metric] = groups["is_correct"].mean().to_numpy()
    return pandas.DataFrame(columns, index=list(benchmark.problems))
