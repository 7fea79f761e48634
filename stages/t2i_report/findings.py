"""What the numbers say, in words and plots: a reward model between its references, annotators, and feedback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas

from stages.algorithms.estimators import Interval
from stages.pages.drawing import BAD, SERIES, Chart, Row, intervals, lines
from stages.pages.page import percent, visible_text
from stages.pages.reading import Metrics, curve_lines
from stages.t2i_report.inputs import Inputs, RankedRound

SCORERS = {
    "random": "chance",
    "clip": "CLIP score",
    "blip": "BLIP score",
    "reward_before": "round before",
    "reward": "reward model",
    "annotator": "an annotator",
    "truth": "truth",
}
"""Scorers as metrics call them and as people do, in the order of the page."""
QUANTITIES = {
    "reward": "reward",
    "held_out": "held-out score",
    "truth": "truth",
    "alignment": "alignment",
    "fidelity": "fidelity",
    "saturation": "saturation",
}
MOST_SATURATION = 0.2
"""Rise of the saturation from which the page warns: over-saturated pictures are how rewards are often hacked."""


@dataclass(frozen=True)
class Scorer:
    """A row of the table of scorers."""

    name: str
    is_learnt: bool
    values: list[tuple[float | None, Interval | None]]
    """One of each column: the number, and its interval where it has one."""


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
    """What is to be said of a round of feedback."""

    name: str
    verdict: str
    """`hacked`, `better`, `worse` or `not separated`."""
    judge: str
    difference: Interval
    """Of the judge: over the control where there is one, else over the start."""
    is_over_control: bool
    sentences: list[str]
    measured: list[Measured]


def accuracies(metrics: Metrics) -> dict[str, Interval]:
    """Preference accuracy by scorer, as people call it; chance has no width."""
    key = "preference/accuracy/{}".format
    return {
        told: interval(metrics, key(name)) or Interval(*[metrics[key(name)]] * 3)
        for name, told in SCORERS.items()
        if key(name) in metrics
    }


def scorer_tables(metrics: Metrics) -> list[ScorerTable]:
    """How scorers order pictures, and what they pick: two tables, because one of both is wider than a page."""
    kinds = sorted({key.partition("/")[0] for key in metrics if key.startswith(("recall_at_", "filter_at_"))})
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
    """A column for each quantity and a row for each scorer that has numbers."""
    columns = {key: title for key, title in titles.items() if any(name.startswith(f"{key}/") for name in metrics)}
    rows = [
        Scorer(
            told,
            name == "reward",
            [(metrics.get(f"{key}/{name}"), interval(metrics, f"{key}/{name}")) for key in columns],
        )
        for name, told in SCORERS.items()
    ]
    with_numbers = [row for row in rows if any(value is not None for value, _ in row.values)]
    return ScorerTable(caption, list(columns.values()), with_numbers)


def gains_of(metrics: Metrics) -> list[tuple[str, Interval, float, str]]:
    """The reward model's accuracy by prompt less that of each other scorer: name, difference, p-value, verdict."""
    found = []
    for thing, judged in (("gain", ""), ("gain_by_truth", ", where the truth judges")):
        for name, told in SCORERS.items():
            key = f"{thing}/reward_model_minus_{name}"
            if f"{key}/mean" in metrics and not (judged and name == "random"):
                difference = _mean(metrics, key)
                found.append((told + judged, difference, metrics[f"{key}/p_value"], difference.verdict()))
    return found


def accuracy_sentence(metrics: Metrics) -> str:
    """Where the reward model stands."""
    known = accuracies(metrics)
    own = known[SCORERS["reward"]]
    parts = [f"chance {percent(known[SCORERS['random']].estimate)}"] if SCORERS["random"] in known else []
    parts += [
        f"{name} {percent(known[name].estimate)}" for name in (SCORERS["annotator"], SCORERS["truth"]) if name in known
    ]
    return (
        f"of {metrics['pairs/test']:,.0f} pairs of {metrics['prompts/test']:,.0f} held-out prompts are ordered as "
        f"people do, 95% interval {percent(own.low)} to {percent(own.high)}; {', '.join(parts)}."
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
    table = pandas.DataFrame({"pictures": sides.groupby("generator")["image"].nunique()})
    table["won"] = sums["won"] / sums["weight"]
    for scorer in (name for name in SCORERS if name in ranked.scores):
        scores = ranked.scores[scorer]
        table[SCORERS[scorer]] = scores.groupby(generators.reindex(scores.index)).mean()
    return table.sort_values("won", ascending=False, kind="stable")


def feedback_of(stage: str, name: str, metrics: Metrics, control: Metrics | None, is_control: bool = False) -> Feedback:
    """A round's findings; `stage` is how its metrics begin, `control` compares it with a round without reward, which it
    may be itself."""
    told = {quantity: words for quantity, words in QUANTITIES.items() if f"{stage}/{quantity}/gain" in metrics}
    measured = [
        Measured(
            words,
            metrics[f"{stage}/{quantity}/before"],
            metrics[f"{stage}/{quantity}/after"],
            _gain(metrics, f"{stage}/{quantity}"),
            _over_control(control, quantity),
        )
        for quantity, words in told.items()
    ]
    judge = "truth" if "truth" in told else "held_out"
    own = next(one for one in measured if one.name == QUANTITIES[judge])
    difference = own.over_control or own.gain
    verdict = "hacked" if metrics[f"{stage}/hacked"] else difference.verdict()
    return Feedback(
        name,
        verdict,
        QUANTITIES[judge],
        difference,
        own.over_control is not None,
        [*_hacks(stage, metrics), *_warnings(stage, metrics, is_control or own.over_control is not None)],
        measured,
    )


def feedback_findings(inputs: Inputs) -> list[Feedback]:
    """Findings of every round of feedback that was measured, in the order of the graph; controls are among them."""
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


def interval(metrics: Mapping[str, float], key: str) -> Interval | None:
    """Of a metric with `/low` and `/high` beside it; None where it has none."""
    ends = [f"{key}/low", f"{key}/high"]
    return Interval(*(metrics[name] for name in (key, *ends))) if all(end in metrics for end in ends) else None


def _hacks(stage: str, metrics: Metrics) -> list[str]:
    return [
        f"Hacked: the reward rose while the {QUANTITIES[quantity]} fell, each by more than its 95% interval, {where}."
        for place, where in (("", "in the generator that was kept"), ("at_end/", "at the end of the curve"))
        for quantity in ("held_out", "truth")
        if metrics.get(f"{stage}/{place}reward_without_{quantity}")
    ]


def _warnings(stage: str, metrics: Metrics, has_control: bool) -> list[str]:
    found = []
    if metrics.get(f"{stage}/saturation/change", 0.0) > MOST_SATURATION:
        change = metrics[f"{stage}/saturation/change"]
        found.append(f"Saturation rose by {100 * change:.0f}%, more than {100 * MOST_SATURATION:.0f}%.")
    updates, kept = metrics.get(f"{stage}/updates"), metrics.get(f"{stage}/selected_update")
    if kept == 0:
        found.append("No point of the curve had a better held-out score than the start: the round gives its start.")
    elif updates is not None and kept is not None:
        found.append(f"Weights of update {kept:.0f} of {updates:.0f} were kept.")
    if not has_control:
        found.append("Compared with its start alone: the same updates without a reward move a generator too.")
    return found


def _gain(metrics: Metrics, key: str) -> Interval:
    return Interval(*(metrics[f"{key}/{name}"] for name in ("gain", "low", "high")))


def _mean(metrics: Metrics, key: str) -> Interval:
    return Interval(*(metrics[f"{key}/{name}"] for name in ("mean", "low", "high")))


def _over_control(control: Metrics | None, quantity: str) -> Interval | None:
    key = f"gain_over_control/{quantity}"
    return _mean(control, key) if control is not None and f"{key}/mean" in control else None


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
"""In the plot of their agreement; of more there is the table alone."""
CHANCE = 50


def accuracy_chart(round_name: str, scorers: Mapping[str, Interval], learnt: str) -> Chart:
    """Preference accuracy of each scorer with its 95% interval; `learnt` is the reward model's name among them."""
    rows = [
        Row(
            name,
            100 * own.estimate,
            [(100 * own.low, 100 * own.high)],
            text=f"{100 * own.estimate:.1f}",
            color=SERIES[0] if name == learnt else SERIES[4],
        )
        for name, own in scorers.items()
    ]
    shares = ", ".join(f"{name} {100 * own.estimate:.1f}%" for name, own in scorers.items())
    spoken = f"Pairs of held-out prompts ordered as people do, {round_name}: {shares}."
    words = {"spoken": spoken, "summary": "95% intervals over prompts", "x_label": "% of pairs"}
    return intervals(f"accuracy-{round_name}", "Pairs ordered as people do", rows, rule=CHANCE, **words)


def agreement_chart(round_name: str, annotators: pandas.DataFrame) -> Chart | None:
    """Agreement with others of each annotator, those left out in another colour; None where it is not measured."""
    known = annotators.dropna(subset=["agreement"]).sort_values("agreement", ascending=False, kind="stable")
    if not 0 < len(known) <= MOST_ANNOTATORS:
        return None
    rows = [
        Row(
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
    """A chart of each quantity with a line for each round, on one axis of updates."""
    charts = []
    for quantity, title in CURVES.items():
        column = f"validation/{quantity}"
        drawn = [line for name, curve in curves.items() for line in curve_lines(curve, {column: name})]
        if drawn:
            charts.append(lines(f"feedback-{quantity}", title, "", drawn, x_label="update", is_from_zero=False))
    return charts
