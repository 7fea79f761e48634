"""What the page reads of a run, and its findings: scorers between chance and truth, and the effect of feedback.

Data that a run does not have are absent here, which is not an error.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas

from stages.algorithms.estimators import Interval
from stages.foundations.tables import ANNOTATOR, FEEDBACK_IMAGE, IMAGE_SCORE, PAIR, read_table
from stages.images.engines.pictures.shards import read_image_rows, read_images
from stages.images.t2i_report.stage import T2iReportParams
from stages.pages.page import percent
from stages.pages.reading import Metrics, Run


@dataclass(frozen=True)
class RankedRound:
    """A ranking round as far as it has come."""

    name: str
    annotators: pandas.DataFrame
    """`annotator` table."""
    pairs: pandas.DataFrame
    """`pair` table, only the pairs of test prompts."""
    scores: pandas.DataFrame
    """A row for each image id, a column for each scorer; empty where nothing is scored yet."""
    images: pandas.DataFrame
    """`image` table without pictures, by image id: of the round and of the earlier one that counts as well."""
    pools: tuple[Path, ...]

    def pictures(self, wanted: Collection[str]) -> dict[str, bytes]:
        """PNG of the wanted images, by id."""
        return {row.image_id: row.png for row in read_images(self.pools, wanted)}


class PicturesRun(Run):
    """A run with the judgements of people and of scorers."""

    def __init__(self, paths: Namespace, report: T2iReportParams) -> None:
        super().__init__(paths)
        self.report = report
        self.controls: dict[str, str] = self.params.get("refl_controls") or {}
        """Control without a reward of each round of feedback that has one."""

    @cached_property
    def ranked(self) -> list[RankedRound]:
        """The ranking rounds that have preferences."""
        rounds = self.params.get("ranking_rounds") or {}
        ranked = [_ranked(self.paths, name, str(section["also"])) for name, section in rounds.items()]
        return [one for one in ranked if one is not None]

    @cached_property
    def pictures(self) -> dict[str, pandas.DataFrame]:
        """`feedback_image` table of each round of feedback that has one, without controls.

        A control's pictures show the effect of training alone: its numbers state that, and a gallery adds nothing.
        """
        names = [name for name in self.params.get("refl_rounds") or {} if name not in self.controls.values()]
        tables = {name: self.paths.feedback / f"{name}.parquet" for name in names}
        return {name: read_table(path, FEEDBACK_IMAGE) for name, path in tables.items() if path.exists()}

    @cached_property
    def feedback(self) -> list[Feedback]:
        """Findings of every measured round of feedback, including controls."""
        over = self.with_metric("gain_over_control/reward/mean")
        measured = ((stage, self.metrics.get(stage.address, {})) for stage in self.stages)
        return [
            feedback_of(stage.name, stage.item, own, over.get(stage.item), stage.item in self.controls.values())
            for stage, own in measured
            if f"{stage.name}/hacked" in own
        ]

    @property
    def evaluated(self) -> dict[str, Metrics]:
        """Metrics of each evaluated reward model, by its round."""
        return self.with_metric(f"preference/accuracy/{LEARNT}")

    def with_metric(self, name: str) -> dict[str, Metrics]:
        """Returns metrics of the stages with this name, by the stage's item."""
        return {stage.item: own for stage in self.stages if name in (own := self.metrics.get(stage.address, {}))}

    def with_column(self, name: str) -> dict[str, pandas.DataFrame]:
        """Returns curves that have a column, by the stage's item."""
        known = ((stage.item, self.curves.get(stage.address)) for stage in self.stages)
        return {item: curve for item, curve in known if curve is not None and name in curve}


def _ranked(paths: Namespace, name: str, also: str) -> RankedRound | None:
    folder = paths.rankings / name
    # Once where no earlier round counts: `also` then names the round itself.
    pools = [paths.pool / one for one in dict.fromkeys([name, also])]
    # A recipe names its rounds from the start; rounds that have not run yet are not an error of the page.
    if not all(place.exists() for place in (folder, *pools)):
        return None
    scored = paths.scores / f"{name}.parquet"
    pairs = read_table(folder / "pairs.parquet", PAIR)
    scores = pandas.DataFrame()
    if scored.exists():
        scores = read_table(scored, IMAGE_SCORE).pivot(index="image_id", columns="scorer", values="score")
    images = pandas.concat([read_image_rows(pool) for pool in pools], ignore_index=True)
    return RankedRound(
        name=name,
        annotators=read_table(folder / "annotators.parquet", ANNOTATOR),
        # The reward model has learnt from the others: its scores on those prove nothing.
        pairs=pairs[pairs["split"] == "test"].reset_index(drop=True),
        scores=scores,
        images=images.drop_duplicates("image_id").set_index("image_id"),
        pools=tuple(pools),
    )


CHARACTERS = 400
"""Longest prompt, name or reason from outside that is shown."""
LEARNT = "reward"
"""The reward model among the scorers."""
SCORERS = {
    "random": "chance",
    "clip": "CLIP score",
    "blip": "BLIP score",
    "aesthetic": "aesthetic score",
    "reward_before": "round before",
    "reward": "reward model",
    "annotator": "an annotator",
    "truth": "truth",
}
"""Scorers by their names in metrics and in text, in the order of the page."""
QUANTITIES = {
    "reward": "reward",
    "held_out": "held-out score",
    "truth": "truth",
    "alignment": "alignment",
    "fidelity": "fidelity",
    "saturation": "saturation",
}
MOST_SATURATION = 0.2
"""Rise of the saturation that triggers a warning: over-saturated pictures are a frequent way to hack rewards."""


@dataclass(frozen=True)
class Measured:
    """A quantity of pictures before and after feedback."""

    name: str
    before: float
    after: float
    gain: Interval
    over_control: Interval | None


@dataclass(frozen=True)
class Feedback:
    """The findings for a round of feedback."""

    name: str
    verdict: str
    """`hacked`, `better`, `worse` or `not separated`."""
    judge: str
    difference: Interval
    """Gain of the judge: over the control if there is one, else over the start."""
    is_over_control: bool
    sentences: list[str]
    measured: list[Measured]


def accuracies(metrics: Metrics) -> dict[str, Interval]:
    """Preference accuracy by the scorer's name in text; chance has no width."""
    key = "preference/accuracy/{}".format
    return {
        title: interval(metrics, key(name)) or Interval(*[metrics[key(name)]] * 3)
        for name, title in SCORERS.items()
        if key(name) in metrics
    }


def gains_of(metrics: Metrics) -> list[tuple[str, Interval, float, str]]:
    """The reward model's accuracy by prompt minus that of each other scorer: name, difference, p-value, verdict."""
    gains = []
    for thing, judged in (("gain", ""), ("gain_by_truth", ", where the truth judges")):
        for name, title in SCORERS.items():
            key = f"{thing}/reward_model_minus_{name}"
            difference = interval(metrics, key, "/mean")
            # Chance is 0.5 for every judge: one row about it is enough.
            if difference is not None and not (judged and name == "random"):
                gains.append((title + judged, difference, metrics[f"{key}/p_value"], difference.verdict()))
    return gains


def accuracy_sentence(metrics: Metrics) -> str:
    """Says how the reward model compares."""
    known = accuracies(metrics)
    learnt = known[SCORERS["reward"]]
    # A share alone says little: it is between chance and the agreement of people with each other.
    parts = [f"chance {percent(known[SCORERS['random']].estimate)}"] if SCORERS["random"] in known else []
    parts += [
        f"{name} {percent(known[name].estimate)}" for name in (SCORERS["annotator"], SCORERS["truth"]) if name in known
    ]
    return (
        f"of {metrics['pairs/test']:,.0f} pairs of {metrics['prompts/test']:,.0f} held-out prompts are ordered as "
        f"people do, 95% interval {percent(learnt.low)} to {percent(learnt.high)}; {', '.join(parts)}."
    )


def generator_table(ranked: RankedRound) -> pandas.DataFrame:
    """By generator: its pictures of held-out prompts, the share of their pairs that they won, and their mean scores."""
    pairs, generators = ranked.pairs, ranked.images["generator"]
    sides = pandas.concat(
        [
            pandas.DataFrame({"image": pairs["better_image_id"], "won": pairs["weight"], "weight": pairs["weight"]}),
            pandas.DataFrame({"image": pairs["worse_image_id"], "won": 0.0, "weight": pairs["weight"]}),
        ]
    )
    sides["generator"] = sides["image"].map(generators)
    sums = sides.groupby("generator")[["won", "weight"]].sum()
    # Wins are counted by the weight of their pairs, as votes of Rapidata's form have one.
    table = pandas.DataFrame({"pictures": sides.groupby("generator")["image"].nunique()})
    table["won"] = sums["won"] / sums["weight"]
    for scorer in (name for name in SCORERS if name in ranked.scores):
        scores = ranked.scores[scorer]
        table[SCORERS[scorer]] = scores.groupby(generators.reindex(scores.index)).mean()
    return table.sort_values("won", ascending=False, kind="stable")


def feedback_of(stage: str, name: str, metrics: Metrics, control: Metrics | None, is_control: bool = False) -> Feedback:
    """Returns a round's findings; `stage` begins the names of its metrics, `control` compares it with a round without
    reward, which it may be itself."""
    measured = {
        quantity: Measured(
            words,
            metrics[f"{stage}/{quantity}/before"],
            metrics[f"{stage}/{quantity}/after"],
            gain,
            interval(control or {}, f"gain_over_control/{quantity}", "/mean"),
        )
        for quantity, words in QUANTITIES.items()
        if (gain := interval(metrics, f"{stage}/{quantity}", "/gain")) is not None
    }
    # Never the reward: it was optimised, and rises in hacked rounds too.
    judge = measured.get("truth") or measured["held_out"]
    # The same updates without a reward move a generator too, so a control is the better comparison.
    difference = judge.over_control or judge.gain
    has_control = judge.over_control is not None
    return Feedback(
        name,
        # A hack counts even if the judge disagrees: the held-out score may stay while the truth falls.
        "hacked" if metrics[f"{stage}/hacked"] else difference.verdict(),
        judge.name,
        difference,
        has_control,
        [*_hacks(stage, metrics), *_warnings(stage, metrics, is_control or has_control)],
        list(measured.values()),
    )


def interval(metrics: Metrics, key: str, middle: str = "") -> Interval | None:
    """Returns metric `key` + `middle` with `key`/low and `key`/high; None where one is missing."""
    names = [f"{key}{middle}", f"{key}/low", f"{key}/high"]
    return Interval(*(metrics[name] for name in names)) if all(name in metrics for name in names) else None


def _hacks(stage: str, metrics: Metrics) -> list[str]:
    return [
        f"Hacked: the reward rose while the {QUANTITIES[quantity]} fell, each by more than its 95% interval, {where}."
        for place, where in (("", "in the generator that was kept"), ("at_end/", "at the end of the curve"))
        for quantity in ("held_out", "truth")
        if metrics.get(f"{stage}/{place}reward_without_{quantity}")
    ]


def _warnings(stage: str, metrics: Metrics, has_control: bool) -> list[str]:
    sentences = []
    if (change := metrics.get(f"{stage}/saturation/change", 0.0)) > MOST_SATURATION:
        sentences.append(f"Saturation rose by {100 * change:.0f}%, more than {100 * MOST_SATURATION:.0f}%.")
    updates, kept = metrics.get(f"{stage}/updates"), metrics.get(f"{stage}/selected_update")
    # Update 0 is the start, which is a point of the curve like the others.
    if kept == 0:
        sentences.append("No point of the curve had a better held-out score than the start, so the round keeps it.")
    elif updates is not None and kept is not None:
        sentences.append(f"Weights of update {kept:.0f} of {updates:.0f} were kept.")
    if not has_control:
        sentences.append("Compared only with its start: the same updates without a reward also change a generator.")
    return sentences
