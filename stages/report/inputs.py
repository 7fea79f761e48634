"""What the report reads of a run, and the scores of its policies. Data that a run does not have are absent."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas

from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.emergence import emergence_measures
from stages.algorithms.estimators import Interval, PairedDifference, compare_paired
from stages.foundations.errors import UserError
from stages.foundations.stage import about
from stages.foundations.tables import RESPONSE, SAMPLED, VERDICT, TableSchema, open_table, read_table
from stages.pages.reading import Metrics, Run
from stages.report.stage import ReportParams

FAMILIES = ("greedy", "avg", "pass", "maj")
"""Scores in the order in which they are shown."""
# `greedy` has no k, the others must have one: a stage's `pass_rate` is not a score.
_SCORE = re.compile(r"(?P<family>greedy|(?:avg|pass|maj)(?=_at_))(?:_at_(?P<k>\d+))?")


class ReportRun(Run):
    """A run with the responses of its policies. Files of what the parameter file no longer names are ignored."""

    def __init__(self, paths: Namespace, report: ReportParams) -> None:
        super().__init__(paths)
        self.report = report
        self.policies: tuple[str, ...] = tuple(self._section("policies", list))
        self.sources: dict[str, Any] = self._section("sources", dict)

    @cached_property
    def rounds(self) -> dict[str, str]:
        """RL rounds, each with the policy that it starts from."""
        # Recognised by the form of the entry: the report does not use the names of other stages.
        items = {stage.item for stage in self.stages}
        return {
            name: str(entry["start_from"])
            for section in self.params.values()
            for name, entry in (section.items() if isinstance(section, dict) else ())
            if name in items and isinstance(entry, dict) and "start_from" in entry
        }

    @cached_property
    def round_curves(self) -> dict[str, pandas.DataFrame]:
        """Curves of RL rounds, by the round's policy, with the columns of `read_emergence`."""
        keywords = (self.params.get("grade") or {}).get("emergence_keywords") or []
        by_item = {stage.item: self.curves.get(stage.address) for stage in self.stages if stage.curves}
        curves = {name: by_item[name] for name in self.rounds if by_item.get(name) is not None}
        for name, curve in curves.items():
            rollouts = self.paths.rollouts / f"{name}.parquet"
            if rollouts.exists():
                curves[name] = curve.merge(read_emergence(rollouts, keywords), on="step", how="left")
        return curves

    @cached_property
    def responses(self) -> dict[str, pandas.DataFrame]:
        """Responses of each policy with their verdicts and verifiers, in the order of the response table."""
        judged = {name: _judged(self.paths.responses, self.paths.verdicts, name) for name in self.policies}
        return {name: frame for name, frame in judged.items() if frame is not None}

    @cached_property
    def benchmarks(self) -> list[Benchmark]:
        """The benchmarks on which some policy has a score, sorted."""
        names = set()
        for policy in self.graded:
            for key in self.grades(policy):
                benchmark, _, metric = key.rpartition("/")
                if benchmark and _SCORE.fullmatch(metric):
                    names.add(benchmark)
        return [Benchmark(self, name, number) for number, name in enumerate(sorted(names), start=1)]

    def grades(self, policy: str) -> Metrics:
        """Scores of a policy; empty when it was not graded."""
        scoring = [stage.address for stage in self.stages if about(stage.name).score_keys and stage.item == policy]
        return self.metrics.get(scoring[0], {}) if scoring else {}

    @cached_property
    def graded(self) -> list[str]:
        """The policies that have grades, in order."""
        return [policy for policy in self.policies if self.grades(policy)]

    @property
    def last(self) -> str | None:
        """The graded policy of the last RL round; without one, the last graded policy."""
        # `policies` may list them in any order; rounds are in the order of the parameter file.
        of_rounds = [name for name in self.rounds if name in self.graded]
        return (of_rounds or self.graded or [None])[-1]

    @property
    def before_rl(self) -> str | None:
        """The policy from which the last policy's first round started; the last policy if no round made it."""
        policy = self.last
        while policy in self.rounds:
            policy = self.rounds[policy]
        return policy

    @property
    def warnings(self) -> list[str]:
        """Problems of stages that raised no error, which their packages derive from the metrics."""
        counted = ((stage, self.metrics.get(stage.address)) for stage in self.stages)
        return [
            line
            for stage, metrics in counted
            if metrics is not None
            for line in about(stage.name).warnings(stage.item, metrics)
        ]

    def table(self, name: str, schema: TableSchema) -> pandas.DataFrame | None:
        """Returns a table below data/, such as `problems/train`; None where it is missing."""
        top, _, rest = name.partition("/")
        path = getattr(self.paths, top) / f"{rest}.parquet"
        return read_table(path, schema) if path.exists() else None

    def _section(self, name: str, kind: type) -> Any:
        """Returns a section of the parameter file, empty if it is absent. UserError if it is of another kind."""
        value = self.params.get(name)
        if value is None:
            return kind()
        if not isinstance(value, kind):
            wanted, path = "mapping" if kind is dict else "list", self.paths.params
            raise UserError(f"{path}: section `{name}` must be a {wanted}, not {type(value).__name__}: see the recipes")
        return value


@dataclass(frozen=True)
class Comparison:
    """A policy against the baseline on the problems that both answered."""

    benchmark: str
    metric: str
    """`greedy` or `avg_at_<k>`."""
    baseline: str
    policy: str
    difference: PairedDifference
    """Policy minus baseline, as fractions."""


class Benchmark:
    """One benchmark's scores, and which of their differences are significant."""

    def __init__(self, run: ReportRun, name: str, number: int) -> None:
        self.report_run, self.name, self.number = run, name, number
        # avg@k uses every sample of a problem, so its interval is the narrowest.
        self.headline_metric = next((metric for metric in self.metrics if metric.startswith("avg")), self.metrics[0])

    @cached_property
    def metrics(self) -> list[str]:
        """The metric with the largest k of each family that some policy has, in the order of `FAMILIES`."""
        largest: dict[str, int] = {}
        for policy in self.report_run.graded:
            for key in self.report_run.grades(policy):
                name, _, metric = key.rpartition("/")
                match = _SCORE.fullmatch(metric)
                if match and name == self.name:
                    family, k = match["family"], int(match["k"] or 0)
                    largest[family] = max(k, largest.get(family, 0))
        known = [family for family in FAMILIES if family in largest]
        return [family if family == "greedy" else f"{family}_at_{largest[family]}" for family in known]

    @property
    def problems(self) -> int | None:
        """The number of its problems."""
        return next((int(n) for policy in self.report_run.graded if (n := self.value(policy, "problems"))), None)

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """The last policy against the baseline, then against the policy that RL started from if that is another one.

        Each on the headline's metric, then greedy.
        """
        metrics = dict.fromkeys([self.headline_metric, *(["greedy"] if "greedy" in self.metrics else [])])
        # They may be the same policy, whose comparison is then shown once.
        starts = dict.fromkeys([self.report_run.report.baseline_policy, self.report_run.before_rl])
        compared = [self.compare(metric, start, self.report_run.last) for start in starts for metric in metrics]
        return [comparison for comparison in compared if comparison]

    def value(self, policy: str, quantity: str) -> float | None:
        """Returns one of a policy's numbers."""
        return self.report_run.grades(policy).get(f"{self.name}/{quantity}")

    def values(self, quantity: str) -> dict[str, float]:
        """Returns a number of each policy that has it."""
        found = {policy: self.value(policy, quantity) for policy in self.report_run.graded}
        return {policy: value for policy, value in found.items() if value is not None}

    def score(self, policy: str, metric: str) -> Interval | None:
        """Returns a score with its interval, as fractions; None when it or its interval is missing."""
        found = [self.value(policy, metric + end) for end in ("", "_low", "_high")]
        return None if None in found else Interval(*found)

    def scores(self, metric: str, policies: Sequence[str | None] | None = None) -> dict[str, Interval]:
        """Returns the score of each policy that has one."""
        known = self.report_run.graded if policies is None else dict.fromkeys(policies)
        return {
            policy: own for policy in known if policy in self.report_run.graded and (own := self.score(policy, metric))
        }

    def passes(self, policy: str) -> dict[int, Interval]:
        """Returns all pass@k of a policy by k, smallest k first."""
        by_k: dict[int, Interval] = {}
        for key in self.report_run.grades(policy):
            name, _, metric = key.rpartition("/")
            match = _SCORE.fullmatch(metric)
            if name == self.name and match and match["family"] == "pass":
                own = self.score(policy, metric)
                by_k |= {int(match["k"]): own} if own else {}
        return dict(sorted(by_k.items()))

    def compare(self, metric: str, baseline: str | None, policy: str | None) -> Comparison | None:
        """Returns the paired difference; None when a policy is missing or they have no problem in common.

        A problem's score is the mean over its responses, so that all responses of a problem stay together. An undecided
        verdict counts as not correct, as in the scores.
        """
        mode = "greedy" if metric == "greedy" else "sampled"
        scores = [self._problem_scores(name, mode) for name in (baseline, policy)]
        if baseline == policy or any(series is None for series in scores):
            return None
        # Sorted, because resampling draws positions, so the order of a table would change the interval.
        both = pandas.concat(scores, axis=1, join="inner", keys=["first", "second"]).sort_index()
        if both.empty:
            return None
        return Comparison(self.name, metric, baseline, policy, compare_paired(both["first"], both["second"]))

    def _problem_scores(self, policy: str | None, mode: str) -> pandas.Series | None:
        """Returns the share of correct responses of each problem, by problem id; None without responses."""
        rows = self.report_run.responses.get(policy)
        if rows is None:
            return None
        rows = rows[(rows["benchmark"] == self.name) & (rows["mode"] == mode)]
        if rows.empty:
            return None
        return (rows["verdict"] == Verdict.CORRECT.value).groupby(rows["problem_id"]).mean()


def read_emergence(path: Path, keywords: list[str]) -> pandas.DataFrame:
    """Returns the means of `emergence_measures` over the responses that each version of the policy has sampled.

    Column `step` is the first step that could train on them. Reads a table of any size in pieces.
    """
    pieces = [pandas.DataFrame({"step": []}, dtype="int64")]
    with open_table(path) as file:
        # Not `read_table`: the tokens beside the texts take many times their memory.
        for batch in file.iter_batches(1000, columns=["policy_version", "response"]):
            rows = batch.to_pylist()
            measured = [
                {"step": row["policy_version"] + 1} | emergence_measures(row["response"], keywords) for row in rows
            ]
            pieces.append(pandas.DataFrame(measured))
    return pandas.concat(pieces).groupby("step", as_index=False).mean()


def _judged(responses: Path, verdicts: Path, policy: str) -> pandas.DataFrame | None:
    """Returns the response table with columns `verdict` and `path`; None unless both tables are there."""
    places = [folder / f"{policy}.parquet" for folder in (responses, verdicts)]
    if not all(place.exists() for place in places):
        return None
    judged = read_table(places[1], VERDICT)[[*SAMPLED, "verdict", "path"]]
    try:
        # `left` keeps responses without a verdict, which are an error below and must not disappear.
        joined = read_table(places[0], RESPONSE).merge(judged, on=[*SAMPLED], how="left", validate="one_to_one")
    except pandas.errors.MergeError:
        raise UserError(
            f"{places[0]} or {places[1]} holds a response twice: run `dvc repro --force respond@{policy}`"
        ) from None
    if joined["verdict"].isna().any():
        raise UserError(f"{places[1]} lacks verdicts for responses of {places[0]}: run `dvc repro grade@{policy}`")
    # For a table without rows, the share of correct responses is undefined.
    return joined if len(joined) else None
