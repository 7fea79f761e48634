"""Findings of a run: its numbers and tables, and their meaning in words and plots.

They state the rank of a reward model among its references, which annotators were trusted, and the effect of feedback.
Data that a run does not have are absent here, which is not an error.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas

from stages.algorithms.estimators import Interval
from stages.foundations.params import read_yaml
from stages.foundations.stage_graph import GraphStage, read_definitions, stages_of
from stages.foundations.tables import ANNOTATOR, FEEDBACK_IMAGE, IMAGE_SCORE, PAIR, read_table
from stages.images.engines.pictures.shards import read_image_rows, read_images
from stages.pages.drawing import BAD, SERIES, Chart, Row, intervals, lines
from stages.pages.page import percent, visible_text
from stages.pages.reading import Metrics, curve_lines, read_curves, read_metrics


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


@dataclass(frozen=True)
class Inputs:
    """A run's numbers and tables, in the order of the graph."""

    seed: int
    stages: tuple[GraphStage, ...]
    metrics: dict[str, Metrics]
    """Metrics of each stage that has some, by DVC's name of it."""
    curves: dict[str, pandas.DataFrame]
    ranked: list[RankedRound]
    """The ranking rounds that have preferences."""
    feedback: dict[str, pandas.DataFrame]
    """`feedback_image` table of each round of feedback that has one."""
    params: dict[str, Any]
    params_text: str

    def with_metric(self, name: str) -> dict[str, Metrics]:
        """Returns metrics of the stages with this name, by the stage's item."""
        return {stage.item: own for stage in self.stages if name in (own := self.metrics.get(stage.address, {}))}

    def with_column(self, name: str) -> dict[str, pandas.DataFrame]:
        """Returns curves that have a column, by the stage's item."""
        return {
            stage.item: self.curves[stage.address]
            for stage in self.stages
            if name in self.curves.get(stage.address, ())
        }


def read_inputs(paths: Namespace) -> Inputs:
    """Returns everything under the input folders that belongs to the parameter file; UserError on a broken file."""
    params = read_yaml(paths.params)
    stages = tuple(stages_of(read_definitions(paths.graph), params))
    tables = {name: paths.feedback / f"{name}.parquet" for name in params.get("refl_rounds") or {}}
    rounds = params.get("ranking_rounds") or {}
    ranked = [_ranked(paths, name, str(section["also"])) for name, section in rounds.items()]
    return Inputs(
        seed=int(params.get("seed", 0)),
        stages=stages,
        metrics=read_metrics(stages, paths.metrics),
        curves=read_curves(stages, paths.curves),
        ranked=[one for one in ranked if one is not None],
        feedback={name: read_table(path, FEEDBACK_IMAGE) for name, path in tables.items() if path.exists()},
        params=params,
        params_text=paths.params.read_text(encoding="utf-8"),
    )


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
class Scorer:
    """A row of the table of scorers."""

    name: str
    is_learnt: bool
    values: list[tuple[float | None, Interval | None]]
    """One per column: the number, and its interval where it has one."""


@dataclass(frozen=True)
class ScorerTable:
    """Scorers beside each other."""

    caption: str
    columns: list[str]
    rows: list[Scorer]


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


def scorer_tables(metrics: Metrics) -> list[ScorerTable]:
    """How scorers order pictures, and which they pick: two tables, because one for both is wider than a page."""
    kinds = sorted({key.partition("/")[0] for key in metrics if key.startswith(("recall_at_", "filter_at_"))})
    # By the number in the name: as texts recall_at_10 comes before recall_at_2.
    kinds.sort(key=lambda kind: (kind.startswith("filter"), int(kind.rpartition("_")[2])))
    ordering = {
        "preference/accuracy": "pairs, ties half",
        "preference/accuracy_as_released": "ties wrong",
        "preference/accuracy_by_prompt": "by prompt",
        "preference/on_policy_accuracy": "on this round's images",
        "model_ranking/spearman": "generators, Spearman",
    }
    picking = {kind: kind.replace("_at_", "@") for kind in kinds}
    tables = [
        _scorer_table("Order of pictures on held-out prompts", ordering, metrics),
        _scorer_table(
            "A best picture among the k highest, a worst among the k lowest; several may be best, so chance is higher "
            "than k of n",
            picking,
            metrics,
        ),
    ]
    return [table for table in tables if table.rows]


def _scorer_table(caption: str, titles: Mapping[str, str], metrics: Metrics) -> ScorerTable:
    """Returns a column for each quantity and a row for each scorer that has numbers."""
    columns = {key: heading for key, heading in titles.items() if any(name.startswith(f"{key}/") for name in metrics)}
    rows = [
        Scorer(
            title,
            name == "reward",
            [(metrics.get(f"{key}/{name}"), interval(metrics, f"{key}/{name}")) for key in columns],
        )
        for name, title in SCORERS.items()
    ]
    with_numbers = [row for row in rows if any(value is not None for value, _ in row.values)]
    return ScorerTable(caption, list(columns.values()), with_numbers)


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


def feedback_findings(inputs: Inputs) -> list[Feedback]:
    """Returns findings of every measured round of feedback, in the order of the graph, including controls."""
    controls = inputs.with_metric("gain_over_control/reward/mean")
    rounds_without_reward = (inputs.params.get("refl_controls") or {}).values()
    return [
        feedback_of(
            stage.name,
            stage.item,
            inputs.metrics[stage.address],
            controls.get(stage.item),
            stage.item in rounds_without_reward,
        )
        for stage in inputs.stages
        if f"{stage.name}/hacked" in inputs.metrics.get(stage.address, {})
    ]


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


CURVES = {
    "reward": "Reward, which is climbed",
    "held_out": "Held-out score, which is not",
    "truth": "Truth",
    "saturation": "Saturation",
    "diversity": "Diversity of pictures of one prompt",
    "distance_to_start": "Distance to the start",
}
"""Quantities of a round's validation pictures, reward first."""
MOST_ANNOTATORS = 24
"""Most annotators in the plot of their agreement; with more, only the table is shown."""
CHANCE = 50


def accuracy_chart(round_name: str, scorers: Mapping[str, Interval], learnt: str) -> Chart:
    """Plots each scorer's preference accuracy with its 95% interval; `learnt` is the reward model's name among them."""
    rows = [
        Row(
            name,
            100 * share.estimate,
            [(100 * share.low, 100 * share.high)],
            text=f"{100 * share.estimate:.1f}",
            color=SERIES[0] if name == learnt else SERIES[4],
        )
        for name, share in scorers.items()
    ]
    shares = ", ".join(f"{name} {100 * share.estimate:.1f}%" for name, share in scorers.items())
    spoken = f"Pairs of held-out prompts ordered as people do, {round_name}: {shares}."
    words = {"spoken": spoken, "summary": "95% intervals over prompts", "x_label": "% of pairs"}
    return intervals(f"accuracy-{round_name}", "Pairs ordered as people do", rows, rule=CHANCE, **words)


def agreement_chart(round_name: str, annotators: pandas.DataFrame) -> Chart | None:
    """Plots agreement with others of each annotator, dropped ones in another colour; None where it is not measured."""
    known = annotators.dropna(subset=["agreement"]).sort_values("agreement", ascending=False, kind="stable")
    if not 0 < len(known) <= MOST_ANNOTATORS:
        return None
    rows = [
        Row(
            # Annotators chose the names: invisible and bidirectional characters are written out.
            visible_text(str(one.annotator_id), 28),
            100 * one.agreement,
            text="" if one.is_kept else "left out",
            color=SERIES[0] if one.is_kept else BAD,
        )
        for one in known.itertuples()
    ]
    out = ", ".join(row.name for row in rows if row.text)
    spoken = f"Agreement with other annotators, {round_name}; left out: {out or 'none'}."
    words = {"spoken": spoken, "x_label": "% of pairs"}
    return intervals(f"agreement-{round_name}", "Agreement with others", rows, rule=CHANCE, **words)


def feedback_charts(curves: Mapping[str, pandas.DataFrame]) -> list[Chart]:
    """Plots a chart of each quantity with a line for each round, on one axis of updates."""
    charts = []
    for quantity, title in CURVES.items():
        column = f"validation/{quantity}"
        drawn = [line for name, curve in curves.items() for line in curve_lines(curve, {column: name})]
        if drawn:
            # Not from zero: a reward has no natural zero, and a small rise of a large value must be visible.
            charts.append(lines(f"feedback-{quantity}", title, "", drawn, x_label="update", is_from_zero=False))
    return charts
