"""Compares policies on the same problems: differences, their intervals and tests, and when one is called better.

A problem's score is averaged over its responses and, where a side was trained with several seeds, over the seeds. The
interval and the p-value then resample whole problems (stages/algorithms/estimators.py). They show whether the
difference would hold on other problems, for these trained policies. The spread between seeds is shown beside them.

`shared_benchmarks` computes scores from verdicts, on the problems and samples that all sides answered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import stdev
from typing import Any, Literal

import numpy
import pandas

from pipelines.comparing.sides import Answers, Side, folder_of
from pipelines.records.lock_snapshots import LockSnapshot, snapshot_at, working_snapshot
from stages.algorithms.estimators import (
    Interval,
    PairedDifference,
    Verdict,
    compare_paired,
    holm,
    majority_at_k,
    paired_bootstrap,
    pass_at_k,
    seed_interval,
    welch_interval,
)
from stages.foundations.errors import UserError
from stages.foundations.tables import FEEDBACK_IMAGE, QUANTITIES, read_table
from stages.grade.scores import CORRECT_VOTE, votes


@dataclass(frozen=True)
class PolicyComparison:
    """`second - first` on one metric of one benchmark."""

    benchmark: str
    metric: str
    first: str
    second: str
    first_score: float
    second_score: float
    difference: PairedDifference
    """Over problems."""
    corrected: float
    """Its p-value after Holm, over all comparisons of the table."""
    first_seed_sd: float | None
    """Sample standard deviation of the seeds' scores; None below two seeds."""
    second_seed_sd: float | None
    by_seed: dict[int, float]
    """Differences of the seeds that both sides have; empty when they share none."""
    over_seeds: Interval | None
    """Paired by seed where two are shared, else Welch's; None below two seeds on a side."""
    is_same_side: bool
    """True when no seed, or pair of seeds, contradicts the sign of the difference."""

    @property
    def claim(self) -> str:
        """The subject of the finding: a finding about the setting needs an interval over seeds that excludes 0."""
        holds = self.over_seeds is not None and self.over_seeds.verdict() != "not separated"
        return "the setting" if holds else "these two policies"

    @property
    def verdict(self) -> Verdict | Literal["higher", "lower"]:
        """`better` and `worse` concern the setting, and need both intervals; the others concern policies."""
        called = self.difference.called(self.corrected) if self.is_same_side else "not separated"
        if called == "not separated":
            return called
        if self.claim == "the setting":
            return called
        return "higher" if called == "better" else "lower"


@dataclass(frozen=True)
class SharedBenchmark:
    """Answers of all sides on one benchmark."""

    name: str
    problems: tuple[str, ...]
    samples: int
    """Sampled responses of each problem; 0 when there are none."""
    is_greedy: bool
    leaked: int
    """Problems that all sides answered and that one side was trained on; left out where only clean ones count."""

    def metrics(self, families: Sequence[str]) -> list[str]:
        """The members of `families` that can be computed, by name: `avg_at_8`, `greedy`."""
        return [
            family if family == "greedy" else f"{family}_at_{self.samples}"
            for family in families
            if (self.is_greedy if family == "greedy" else self.samples)
        ]


@dataclass(frozen=True)
class ComparisonFindings:
    """A whole table."""

    sides: tuple[Side, ...]
    benchmarks: tuple[SharedBenchmark, ...]
    comparisons: tuple[PolicyComparison, ...]
    restrictions: tuple[str, ...]
    """Parts that were left out so that all sides are measured on the same; empty when there are none."""
    scores: dict[tuple[str, str], pandas.DataFrame]
    """(side, benchmark) -> scores of problems, averaged over seeds."""
    is_clean: bool
    """Problems in the training data of a side were left out."""


def compare(
    sides: Sequence[Side], families: Sequence[str], is_common: bool, is_all_pairs: bool, is_clean: bool = False
) -> ComparisonFindings:
    """Every side against the first one, or all pairs. UserError as in `shared_benchmarks`."""
    benchmarks, restrictions = shared_benchmarks(sides, is_common, is_clean)
    by_seed = {
        (side.name, benchmark.name): [problem_scores(own, benchmark, families) for own in side.answers]
        for side in sides
        for benchmark in benchmarks
    }
    # Holm corrects for each comparison: against one baseline there are fewer, and more differences are significant.
    pairs = list(combinations(sides, 2)) if is_all_pairs else [(sides[0], side) for side in sides[1:]]
    planned = [
        (benchmark, metric, first, second)
        for first, second in pairs
        for benchmark in benchmarks
        for metric in benchmark.metrics(families)
    ]
    found = [_compare(benchmark, metric, (first, second), by_seed) for benchmark, metric, first, second in planned]
    corrected = holm([one.difference.p_value for one in found])
    scores = {key: sum(tables) / len(tables) for key, tables in by_seed.items()}
    return ComparisonFindings(
        tuple(sides),
        tuple(benchmarks),
        tuple(replace(one, corrected=value) for one, value in zip(found, corrected, strict=True)),
        tuple(restrictions),
        scores,
        is_clean,
    )


def _compare(
    benchmark: SharedBenchmark,
    metric: str,
    pair: tuple[Side, Side],
    by_seed: dict[tuple[str, str], list[pandas.DataFrame]],
) -> PolicyComparison:
    tables = [[table[metric].to_numpy() for table in by_seed[side.name, benchmark.name]] for side in pair]
    first, second = (sum(own) / len(own) for own in tables)
    seed_scores = [
        {
            # Without a recorded seed a negative number is used, which the other side never shares.
            answers.seed if answers.seed is not None else -1 - place: float(table.mean())
            for place, (answers, table) in enumerate(zip(side.answers, own, strict=True))
        }
        for side, own in zip(pair, tables, strict=True)
    ]
    shared, over_seeds, is_same_side = _over_seeds(*seed_scores)
    sds = [stdev(own.values()) if len(own) > 1 else None for own in seed_scores]
    difference = compare_paired(first, second)
    return PolicyComparison(
        benchmark.name,
        metric,
        pair[0].name,
        pair[1].name,
        float(first.mean()),
        float(second.mean()),
        difference,
        difference.p_value,
        sds[0],
        sds[1],
        shared,
        over_seeds,
        is_same_side,
    )


def _over_seeds(first: dict[int, float], second: dict[int, float]) -> tuple[dict[int, float], Interval | None, bool]:
    """Returns differences of shared seeds, the interval over seeds, and whether the seeds agree on the sign."""
    shared = {seed: second[seed] - first[seed] for seed in first if seed in second and seed >= 0}
    signs = numpy.sign(list(shared.values()))
    # Pairing by seed removes the effect of the seed: the data order and the samples of both sides.
    if len(shared) == len(first) == len(second):
        return shared, seed_interval(list(shared.values())), len(set(signs)) == 1
    apart = min(second.values()) > max(first.values()) or max(second.values()) < min(first.values())
    # One seed has no spread: there is no interval, and only the ranges can show that seeds agree.
    if min(len(first), len(second)) < 2:
        return shared, None, apart
    return shared, welch_interval(list(first.values()), list(second.values())), apart


FAMILIES = ("avg", "greedy", "pass", "maj")
"""Metrics, the leading one first: mean of the samples, greedy response, any of the samples, most frequent answer."""
MOST_LISTED = 6
_Problems = dict[str, str]
"""Problem id -> hash of its text and answer, "" where only verdicts are there."""


def shared_benchmarks(
    sides: Sequence[Side], is_common: bool, is_clean: bool = False
) -> tuple[list[SharedBenchmark], list[str]]:
    """Returns the benchmarks that all sides answered, and a line for each restriction to their common part.

    With `is_clean`, without the problems that a side was trained on. UserError when they did not answer
    the same problems equally often (unless `is_common`), share nothing, or the training data of a side are unknown.
    """
    tables = {f"{side.name}{_seed_suffix(own, side)}": own for side in sides for own in side.answers}
    unknown = [label for label, own in tables.items() if own.leaked is None]
    # Unknown training data must not count as clean.
    if is_clean and unknown:
        raise UserError(
            f"--clean: the training data of {', '.join(unknown)} are unknown: a training table is neither there nor in "
            "DVC's cache. Run `dvc pull` there, or leave out --clean"
        )
    names = sorted({name for own in tables.values() for name in own.verdicts["benchmark"].unique()})
    found, differences = [], []
    for name in names:
        benchmark, lines = _shared(name, tables, is_clean)
        differences += lines
        if benchmark and benchmark.problems and (benchmark.samples or benchmark.is_greedy):
            found.append(benchmark)
    if differences and not is_common:
        more = [f"  ... and {len(differences) - MOST_LISTED} more"] if len(differences) > MOST_LISTED else []
        listed = "\n".join([f"  {line}" for line in differences[:MOST_LISTED]] + more)
        raise UserError(
            f"the sides did not answer the same problems:\n{listed}\nA paired comparison needs the same: grade them "
            "on the same benchmarks, or compare what they share with --common"
        )
    if not found:
        raise UserError(
            f"{', '.join(side.name for side in sides)} share no {'clean ' if is_clean else ''}problem: there is "
            "nothing to compare"
        )
    return found, differences


def _seed_suffix(own: Answers, side: Side) -> str:
    return f" seed {own.seed}" if len(side.answers) > 1 else ""


def _shared(name: str, tables: dict[str, Answers], is_clean: bool) -> tuple[SharedBenchmark | None, list[str]]:
    rows = {label: own.verdicts[own.verdicts["benchmark"] == name] for label, own in tables.items()}
    absent = [label for label, own in rows.items() if own.empty]
    if absent:
        return None, [f"{name}: not answered by {', '.join(absent)}; the benchmark is left out"]
    lines = []
    problems = {label: _problems(tables[label], own, name) for label, own in rows.items()}
    shared = set.intersection(*(set(own) for own in problems.values()))
    for label, own in problems.items():
        if len(own) > len(shared):
            lines.append(f"{name}: {len(own) - len(shared)} of {label}'s {len(own)} problems are not shared by all")
    # An empty hash belongs to a side that kept only verdicts, so it contradicts no other side.
    changed = {key for key in shared if len({own[key] for own in problems.values()} - {""}) > 1}
    if changed:
        lines.append(f"{name}: {len(changed)} problems have the same id but another text or answer")
    shared -= changed
    # A problem that one side was trained on is left out for all: a paired comparison needs the same problems.
    leaked = shared & {key for own in tables.values() for benchmark, key in own.leaked or () if benchmark == name}
    shared -= leaked if is_clean else set()
    counts = {
        mode: {label: _fewest(own, mode, shared) for label, own in rows.items()} for mode in ("sampled", "greedy")
    }
    for mode, by_label in counts.items():
        if len(set(by_label.values())) > 1:
            listed = ", ".join(f"{label} {count}" for label, count in by_label.items())
            lines.append(f"{name}: {mode} responses for each problem differ ({listed}); the first ones are compared")
    samples, greedy = (min(counts[mode].values()) for mode in ("sampled", "greedy"))
    return SharedBenchmark(name, tuple(sorted(shared)), samples, greedy > 0, len(leaked)), lines


def _problems(answers: Answers, rows: pandas.DataFrame, benchmark: str) -> _Problems:
    found = dict.fromkeys(rows["problem_id"].unique(), "")
    if answers.responses is not None:
        own = answers.responses[answers.responses["benchmark"] == benchmark].drop_duplicates("problem_id")
        for row in own[["problem_id", "problem", "answer"]].itertuples(index=False):
            # A text may contain half of a surrogate pair, which UTF-8 cannot encode.
            text = f"{row.problem}\0{row.answer}".encode("utf-8", "replace")
            found[row.problem_id] = hashlib.sha256(text).hexdigest()
    return found


def _fewest(rows: pandas.DataFrame, mode: str, problems: set[str]) -> int:
    own = rows[(rows["mode"] == mode) & rows["problem_id"].isin(problems)]
    counts = own.groupby("problem_id").size().reindex(sorted(problems), fill_value=0)
    return int(counts.min()) if len(counts) else 0


def problem_scores(answers: Answers, benchmark: SharedBenchmark, families: Sequence[str]) -> pandas.DataFrame:
    """Returns a row for each of the benchmark's problems, in order, with a column per metric: scores from 0 to 1.

    As in `grade`, a response without the verdict `correct` counts as not correct. If a side has more samples than
    all share, its first ones are used.
    """
    verdicts = answers.verdicts
    rows = verdicts[(verdicts["benchmark"] == benchmark.name) & verdicts["problem_id"].isin(benchmark.problems)]
    # Unparsed and undecided responses count as not correct, as in `grade`.
    rows = rows.assign(is_correct=rows["verdict"] == "correct")
    columns: dict[str, Sequence[float]] = {}
    for metric in benchmark.metrics(families):
        family, k = metric.partition("_")[0], benchmark.samples
        own = rows[rows["mode"] == ("greedy" if family == "greedy" else "sampled")].sort_values(
            ["problem_id", "sample_index"], kind="stable"
        )
        groups = (
            # The first samples of each problem: a side with more samples must not get more chances.
            own.groupby("problem_id", sort=True).head(1 if family == "greedy" else k).groupby("problem_id", sort=True)
        )
        match family:
            case "pass":
                # With k samples of k this is "any of them correct", by the estimator that `grade` uses.
                columns[metric] = numpy.atleast_1d(pass_at_k(k, groups["is_correct"].sum().to_numpy(), k))
            case "maj":
                columns[metric] = [majority_at_k(votes(group), CORRECT_VOTE, k) for _, group in groups]
            case _:
                columns[metric] = groups["is_correct"].mean().to_numpy()
    return pandas.DataFrame(columns, index=list(benchmark.problems))


FOLDER = "data/images/feedback/"
NOISE = ["prompt_id", "seed"]
"""The common key of two pictures from the same noise."""


@dataclass(frozen=True)
class PictureComparison:
    """One quantity of two generators' pictures."""

    first: str
    second: str
    quantity: str
    means: tuple[float, float]
    difference: Interval
    """The second minus the first, with whole prompts resampled."""
    pictures: int

    @property
    def verdict(self) -> str:
        """A quantity such as saturation is neither better nor worse: it is higher, lower, or not separated."""
        return {"better": "higher", "worse": "lower"}.get(self.difference.verdict(), "not separated")


def find_pictures(arguments: Sequence[str], root: Path) -> dict[str, Path] | None:
    """Returns the table of each argument (NAME, REV:NAME, FOLDER:NAME); None where none has pictures of feedback.

    UserError where some have and some have not, such as the generator that a round started from.
    """
    tables = {argument: _pictures_of(argument, root) for argument in arguments}
    found = {name: path for name, path in tables.items() if path}
    if found and (lacking := [name for name in tables if name not in found]):
        raise UserError(
            f"{', '.join(lacking)} has no pictures of feedback, {', '.join(found)} has: compare rounds of feedback "
            "with each other; a round's gain over its start is in its metrics, refl/*/gain"
        )
    return found or None


def compare_pictures(tables: dict[str, Path]) -> list[PictureComparison]:
    """Compares every further generator with the first. UserError when there is only one, or when noise differs."""
    if len(tables) < 2:
        raise UserError(f"there must be two to compare, given: {', '.join(tables)}")
    frames = {
        name: read_table(path, FEEDBACK_IMAGE).drop(columns=["png_before", "png_after"])
        for name, path in tables.items()
    }
    first, *others = frames
    return [row for other in others for row in _compare_quantities(first, frames[first], other, frames[other])]


def picture_table(found: Sequence[PictureComparison]) -> str:
    """Returns the differences for readers."""
    lines = []
    for one in found:
        low, high = one.difference.low, one.difference.high
        lines.append(
            f"{one.second} less {one.first}  {one.quantity:<11} {one.means[0]:8.4f} -> {one.means[1]:8.4f}  "
            f"{one.difference.estimate:+.4f} [{low:+.4f}, {high:+.4f}]  {one.verdict}"
        )
    lines.append(f"{found[0].pictures} pictures each, from the same noise; 95% intervals over prompts, not corrected")
    return "\n".join(lines)


def picture_json(found: Sequence[PictureComparison]) -> list[dict[str, Any]]:
    """The same as plain values."""
    return [
        {**vars(one), "means": list(one.means), "difference": one.difference._asdict(), "verdict": one.verdict}
        for one in found
    ]


def _pictures_of(argument: str, root: Path) -> Path | None:
    before, _, name = argument.rpartition(":")
    snapshot: LockSnapshot
    if not before:
        snapshot = working_snapshot(root)
    elif folder := folder_of(root, before):
        snapshot = working_snapshot(folder, str(folder), root)
    else:
        snapshot = snapshot_at(root, before)
    return snapshot.file(f"{FOLDER}{name}.parquet")


def _compare_quantities(
    first: str, one: pandas.DataFrame, second: str, other: pandas.DataFrame
) -> list[PictureComparison]:
    # One to one: a picture that occurs twice would count twice.
    both = one.merge(other, on=NOISE, suffixes=("_first", "_second"), validate="one_to_one")
    if not len(one) == len(other) == len(both):
        raise UserError(
            f"of {len(one)} pictures of {first} and {len(other)} of {second}, {len(both)} are from the same noise: "
            "compare rounds with the same refl.measurement, prompts and seed"
        )
    found = []
    for quantity in QUANTITIES:
        values = [both[f"{quantity}_after_{side}"] for side in ("first", "second")]
        if any(side.isna().any() for side in values):  # the truth of these prompts is unknown
            continue
        means = (float(values[0].mean()), float(values[1].mean()))
        # Pictures of one prompt are alike, so whole prompts are resampled.
        difference = paired_bootstrap(*values, both["prompt_id"])
        found.append(PictureComparison(first, second, quantity, means, difference, len(both)))
    return found
