"""Evaluates finished runs of an ablation: seed means, differences with two intervals, and a verdict on each claim.

Two sources of chance are kept apart. Problems: per-problem scores are averaged over the seeds and compared over
problems (stages/algorithms/estimators.py). This shows whether the difference would hold on other problems, for
these trained policies. Seeds: the t-interval over the paired differences of the seeds shows whether it would hold if
everything were trained again; with three seeds it is wide.

A run's results are kept in state/ablations/<name>/results/<variant>-<seed>/:

run.json    hashes (parameters, files of code), commit, seconds; written last, so that its presence means a complete run
params.yaml, dvc.lock, metrics/, curves/, verdicts/
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

import numpy
import pandas

from pipelines.ablating.definition import (
    Ablation,
    Claim,
    CurveMean,
    Metric,
    Score,
    StepsToReach,
    TokensToReach,
    resolve,
)
from pipelines.ablating.plan import PlannedRun, applies, scores_policy
from stages.algorithms.estimators import Interval, compare_paired, pass_at_k, seed_interval
from stages.foundations.errors import UserError
from stages.foundations.files import replace_folder, write_json
from stages.foundations.tables import VERDICT, read_table

Verdict = Literal["agrees", "leans for", "not separated", "leans against", "disagrees", "not tried"]


@dataclass(frozen=True)
class MeasuredVariant:
    """One metric of one variant."""

    by_seed: dict[int, float | None]
    """None where a run has no such number: no RL round, or an accuracy that was never reached."""
    problems: dict[int, dict[str, float]]
    """Seed -> problem -> score; empty for metrics that are not scored problem by problem."""

    @property
    def values(self) -> list[float]:
        return [value for value in self.by_seed.values() if value is not None]

    @property
    def mean(self) -> float | None:
        """None unless every seed has a number: a mean over the successful seeds alone would flatter the variant."""
        return mean(self.values) if self.values and len(self.values) == len(self.by_seed) else None

    @property
    def seed_sd(self) -> float | None:
        """Sample standard deviation over seeds; None below two."""
        return stdev(self.values) if len(self.values) > 1 and self.mean is not None else None


@dataclass(frozen=True)
class Difference:
    """A variant minus another, on the seeds and problems that both have."""

    by_seed: dict[int, float]
    over_problems: Interval | None
    over_seeds: Interval | None
    """In the metric's unit; conversion to percentage points and the like is left to the display."""

    @property
    def mean(self) -> float | None:
        return mean(self.by_seed.values()) if self.by_seed else None

    @property
    def interval(self) -> Interval | None:
        """Over problems where problems have scores, else over seeds."""
        return self.over_problems or self.over_seeds


def difference(variant: MeasuredVariant, against: MeasuredVariant) -> Difference:
    """Returns `variant - against`; empty if they share no seed, or only one of them lacks a number in a shared seed.

    A seed in which both lack it, such as an accuracy that neither reached, is left out.
    """
    shared = [seed for seed in variant.by_seed if seed in against.by_seed]
    # A seed in which both variants lack the number says nothing about their difference.
    seeds = [seed for seed in shared if not variant.by_seed[seed] is against.by_seed[seed] is None]
    pairs = [(seed, variant.by_seed[seed], against.by_seed[seed]) for seed in seeds]
    # Where one variant alone lacks a number, leaving that seed out would compare its good seeds only.
    if not pairs or any(first is None or second is None for _, first, second in pairs):
        return Difference({}, None, None)
    by_seed = {seed: first - second for seed, first, second in pairs}
    return Difference(by_seed, _over_problems(variant, against, seeds), seed_interval(list(by_seed.values())))


def _over_problems(variant: MeasuredVariant, against: MeasuredVariant, seeds: Sequence[int]) -> Interval | None:
    first, second = (_averaged(measured, seeds) for measured in (against, variant))
    # A paired interval needs the same problems on both sides.
    if not first or set(first) != set(second):
        return None
    names = sorted(first)
    return compare_paired([first[name] for name in names], [second[name] for name in names]).interval


def _averaged(measured: MeasuredVariant, seeds: Sequence[int]) -> dict[str, float]:
    """Returns problem -> score averaged over the seeds; empty when a seed lacks a problem that another has."""
    tables = [measured.problems.get(seed, {}) for seed in seeds]
    if len({frozenset(table) for table in tables}) != 1:
        return {}
    return {name: mean(table[name] for table in tables) for name in tables[0]}


def verdict(claimed: Claim, found: Difference) -> Verdict:
    """Returns the verdict of the runs on a claimed direction.

    `agrees`: the intervals (over problems where problems have scores, and over seeds) exclude 0 on the claimed
    side, and every seed is there. `leans for`: the interval over problems excludes 0, but the interval over seeds does
    not, or there is only one seed. The direction holds for these trained policies, but new training may reverse it.
    `disagrees` and `leans against` are the same for the other side. For `same`, intervals and seeds are within the
    margin, or completely beyond it on one side. Everything else is `not separated`.
    """
    if found.interval is None:
        return "not separated"
    # A seed is an interval of width 0, so that one rule judges seeds and intervals.
    sides = [found.interval, *(Interval(value, value, value) for value in found.by_seed.values())]
    is_claimed = _all_say(sides, claimed)
    if is_claimed is None:
        return "not separated"
    # With one seed there is no interval over seeds, and no evidence that new training would show the same.
    is_firm = found.over_seeds is not None and _all_say([*sides, found.over_seeds], claimed) is not None
    if is_claimed:
        return "agrees" if is_firm else "leans for"
    return "disagrees" if is_firm else "leans against"


def _all_say(sides: Sequence[Interval], claimed: Claim) -> bool | None:
    """Returns True when all are on the claimed side, False when all are on one other side, None otherwise."""
    margin = claimed.margin or 0.0
    if claimed.direction == "same" and all(-margin <= side.low and side.high <= margin for side in sides):
        return True
    # One interval across 0, or seeds on two sides, leave the claim open.
    verdicts = {side.verdict(margin) for side in sides}
    if len(verdicts) > 1 or "not separated" in verdicts:
        return None
    return verdicts == {{"higher": "better", "lower": "worse"}.get(claimed.direction)}


@dataclass(frozen=True)
class VariantRow:
    """A variant in the table of one metric."""

    variant: str
    measured: MeasuredVariant
    to_baseline: Difference | None
    """None for the baseline itself."""
    to_previous: Difference | None
    """None if there is no previous rung, or it is the baseline."""
    published: float | None


@dataclass(frozen=True)
class Judged:
    """A claim of the paper and our result."""

    claimed: Claim
    found: Difference
    published: float | None
    """The paper's difference, in the paper's unit."""
    verdict: Verdict


def rows_of(ablation: Ablation, metric: str, measured: Mapping[str, MeasuredVariant]) -> list[VariantRow]:
    """The rows of a metric's table in the order of the file; variants without results are left out."""
    rows, baseline = [], measured.get(ablation.baseline)
    names = [name for name in ablation.variants if name in measured]
    for place, name in enumerate(names):
        previous = names[place - 1] if ablation.is_ladder and place else None
        rows.append(
            VariantRow(
                name,
                measured[name],
                difference(measured[name], baseline) if baseline and name != ablation.baseline else None,
                difference(measured[name], measured[previous]) if previous and previous != ablation.baseline else None,
                ablation.published.get(name, {}).get(metric),
            )
        )
    return rows


def judge_claims(ablation: Ablation, measured: Mapping[str, Mapping[str, MeasuredVariant]]) -> list[Judged]:
    """Yields every comparison of the file, except those with a variant that has no results."""
    judged = []
    for claimed in ablation.comparisons:
        own = measured.get(claimed.metric, {})
        if claimed.variant in own and claimed.against in own:
            found = difference(own[claimed.variant], own[claimed.against])
            said = verdict(claimed, found)
        else:
            found, said = Difference({}, None, None), "not tried"
        judged.append(Judged(claimed, found, _published(ablation, claimed), said))
    return judged


def _published(ablation: Ablation, claimed: Claim) -> float | None:
    numbers = [ablation.published.get(name, {}).get(claimed.metric) for name in (claimed.variant, claimed.against)]
    # The paper may have numbers for only one of the two variants.
    return None if None in numbers else numbers[0] - numbers[1]


def spent_to_reach(accuracies: Sequence[float], spent: Sequence[float], goal: float, window: int) -> float | None:
    """Returns the sum of `spent` up to the first step at which the mean of the last `window` accuracies reaches `goal`.

    Both have a number for each step. None when no step reaches it. The first `window - 1` steps cannot.
    """
    if len(accuracies) < window:
        return None
    # A single step's accuracy covers only a few problems, and would reach the goal by chance.
    smooth = numpy.convolve(accuracies, numpy.full(window, 1 / window), mode="valid")
    reached = numpy.flatnonzero(smooth >= goal)
    return float(numpy.cumsum(spent)[reached[0] + window - 1]) if len(reached) else None


def measure(ablation: Ablation, places: Mapping[PlannedRun, Path]) -> dict[str, dict[str, MeasuredVariant]]:
    """Returns metric -> variant -> measured values of its finished runs. UserError names a metric that a run lacks."""
    measured: dict[str, dict[str, MeasuredVariant]] = {}
    for name, metric in ablation.metrics.items():
        for run, place in places.items():
            own = measured.setdefault(name, {}).setdefault(run.variant, MeasuredVariant({}, {}))
            policy = ablation.policy_of(run.variant)
            # A variant without RL has no training curve. Its row shows a dash.
            if not applies(metric, policy, run.params):
                own.by_seed[run.seed] = None
                continue
            try:
                own.by_seed[run.seed] = _value(metric, policy, place)
            except (KeyError, OSError) as error:
                raise UserError(f"ablation {ablation.name}, metrics.{name}: {place} has no {error}") from None
            if scores_policy(metric, policy, run.params) and (scores := _scores_of_problems(metric, policy, place)):
                own.problems[run.seed] = scores
    return measured


def _value(metric: Metric, policy: str, place: Path) -> float | None:
    file = resolve(metric.file, policy)
    match metric:
        case Score():
            return json.loads((place / "metrics" / f"{file}.json").read_text())[metric.key]
        case CurveMean():
            # Steps without such a number, for example without a response that ended, leave the cell empty.
            values = pandas.read_csv(place / "curves" / f"{file}.csv")[metric.column].dropna()
            chosen = values if metric.last_steps is None else values.tail(metric.last_steps)
            return float(chosen.mean()) if len(chosen) else None
        case TokensToReach() | StepsToReach():
            # Step 0, where a round evaluates it, has drawn nothing.
            curve = pandas.read_csv(place / "curves" / f"{file}.csv").dropna(subset="accuracy/mean")
            accuracies, tokens = curve["accuracy/mean"].to_list(), curve["tokens/sampled"].to_list()
            spent = tokens if isinstance(metric, TokensToReach) else [1] * len(tokens)
            return spent_to_reach(accuracies, spent, metric.accuracy, metric.window_steps)


def _scores_of_problems(metric: Score, policy: str, place: Path) -> dict[str, float]:
    """Returns problem -> score for accuracies; empty for other metrics of a benchmark."""
    benchmark, _, quantity = metric.key.partition("/")
    is_greedy = quantity == "greedy"
    if not is_greedy and not quantity.startswith(("avg_at_", "pass_at_")):
        return {}
    verdicts = read_table(place / "verdicts" / f"{policy}.parquet", VERDICT)
    own = verdicts[(verdicts["benchmark"] == benchmark) & (verdicts["mode"] == ("greedy" if is_greedy else "sampled"))]
    correct = (own["verdict"] == "correct").groupby(own["problem_id"])
    if not quantity.startswith("pass_at_"):
        return correct.mean().to_dict()
    return _pass_rates(correct, int(quantity.removeprefix("pass_at_")))


def _pass_rates(correct: Any, k: int) -> dict[str, float]:
    counts: pandas.DataFrame = correct.agg(["count", "sum"])
    return dict(zip(counts.index, numpy.atleast_1d(pass_at_k(counts["count"], counts["sum"], k)).tolist(), strict=True))


KEPT = ("metrics", "curves", "verdicts")


def ablation_folder(state: Path, name: str) -> Path:
    """Folder of worktrees, logs and results of an ablation."""
    return state / "ablations" / name


def record_folder(state: Path, name: str, run: PlannedRun) -> Path:
    return ablation_folder(state, name) / "results" / run.name


def keep_results(checkout: Path, place: Path, run: PlannedRun, about: dict[str, Any]) -> None:
    """Copies the outputs of the targets from the worktree. UserError when a target has no output."""
    with replace_folder(place) as folder:
        # With these `retrace compare`, `mirror` and `explain` read a kept run as they read a checkout.
        for name in ("params.yaml", "dvc.lock"):
            shutil.copy2(checkout / name, folder / name)
        for kind in KEPT:
            if (checkout / "data" / kind).is_dir():
                shutil.copytree(checkout / "data" / kind, folder / kind, ignore=shutil.ignore_patterns(".gitignore"))
        for target in run.targets:
            # Before run.json is written: without it the folder counts as no finished run.
            if not (folder / "metrics" / f"{target.replace('@', '/')}.json").exists():
                raise UserError(f"DVC succeeded but left no metrics of {target}")
        write_json(folder / "run.json", about)


def finished(state: Path, name: str, run: PlannedRun, code: Mapping[str, str] | None) -> dict[str, Any] | None:
    """Returns the record of the run if it has these parameters and (unless None) ran these definitions."""
    # Equal parameters and equal code, also at another commit: an edit that the run does not reach keeps it valid.
    file = record_folder(state, name, run) / "run.json"
    record = json.loads(file.read_text()) if file.exists() else None
    if record is None or record["params_hash"] != run.params_hash:
        return None
    return record if code in (None, record.get("code")) else None


def is_one_code(records: Iterable[Mapping[str, Any]]) -> bool:
    """True if no two runs had different versions of a definition; definitions of only one of them do not matter."""
    versions: dict[str, str] = {}
    return all(
        versions.setdefault(name, digest) == digest
        for record in records
        for name, digest in record.get("code", {}).items()
    )


def seconds_of_others(state: Path, name: str, runs: Iterable[PlannedRun]) -> list[float]:
    """Times of finished runs that found their shared stages in the cache."""
    # Runs that made the shared stages took longer, and would spoil the estimate for those that do not.
    records = [finished(state, name, run, None) for run in runs]
    return [record["seconds"] for record in records if record and not record["made_shared_stages"]]
