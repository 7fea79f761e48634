"""What the page plots: scorers between chance and truth, annotators, curves."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pandas
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from stages.algorithms.estimators import Interval
from stages.foundations.legible import legible
from stages.pages.drawing import (
    DASHES,
    INK,
    MARKERS,
    MUTED,
    SERIES,
    Chart,
    draw,
    plain_text,
    show_legend,
    show_policies,
    whiskers,
)

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
MOST_MARKERS = 24
"""Points of a line that are marked one by one."""
_LETTERS = 14


def accuracy_chart(round_name: str, accuracies: Mapping[str, Interval], learnt: str) -> Chart:
    """Preference accuracy of each scorer with its 95% interval; `learnt` is the reward model's name among them."""

    def paint(axes: Axes) -> None:
        for place, (name, own) in enumerate(accuracies.items()):
            color = SERIES[0] if name == learnt else SERIES[4]
            axes.errorbar(
                place,
                100 * own.estimate,
                yerr=whiskers([own]),
                fmt=MARKERS[0] if name == learnt else MARKERS[1],
                color=color,
                markersize=6,
                capsize=4,
                elinewidth=1.7,
            )
            axes.text(
                place,
                100 * own.high + 1.5,
                f"{100 * own.estimate:.1f}",
                color=INK,
                ha="center",
                va="bottom",
                fontsize=10,
            )
        axes.axhline(50, color=MUTED, linewidth=1, linestyle=":")  # chance
        axes.set_ylim(min(45.0, *(100 * own.low - 2 for own in accuracies.values())), 106)
        axes.set_ylabel("% of pairs")
        show_policies(axes, accuracies)

    told = ", ".join(f"{name} {100 * own.estimate:.1f}%" for name, own in accuracies.items())
    spoken = f"Pairs of held-out prompts ordered as people do, {round_name}: {told}."
    title = "Pairs ordered as people do"
    return Chart(title, "95% intervals over prompts", draw(f"accuracy-{_plain(round_name)}", spoken, paint))


def agreement_chart(round_name: str, annotators: pandas.DataFrame) -> Chart | None:
    """Agreement with others of each annotator, those left out in another colour; None where it is not measured."""
    known = annotators.dropna(subset=["agreement"]).sort_values("agreement", kind="stable")
    if not 0 < len(known) <= MOST_ANNOTATORS:
        return None
    places = pandas.Series(range(len(known)), index=known.index)

    def paint(axes: Axes) -> None:
        for number, (label, own) in enumerate(
            (("kept", known[known["is_kept"]]), ("left out", known[~known["is_kept"]]))
        ):
            axes.plot(
                places[own.index],
                100 * own["agreement"],
                linestyle="",
                marker=MARKERS[number],
                color=SERIES[number],
                label=label,
            )
        axes.axhline(50, color=MUTED, linewidth=1, linestyle=":")
        axes.set_ylim(min(45.0, 100 * known["agreement"].min() - 3), 102)
        axes.set_ylabel("% of pairs")
        show_policies(axes, [legible(str(name), _LETTERS) for name in known["annotator_id"]])
        show_legend(axes)

    out = ", ".join(legible(str(name), _LETTERS) for name in known.loc[~known["is_kept"], "annotator_id"])
    spoken = f"Agreement with other annotators, {round_name}; left out: {out or 'none'}."
    return Chart("Agreement with others", "", draw(f"agreement-{_plain(round_name)}", spoken, paint))


def line_chart(name: str, title: str, unit: str, series: Mapping[str, tuple[pandas.Series, pandas.Series]]) -> Chart:
    """Lines over updates; `series` has steps and values of each."""

    def paint(axes: Axes) -> None:
        for number, (label, (steps, values)) in enumerate(series.items()):
            axes.plot(
                steps,
                values,
                color=SERIES[number % len(SERIES)],
                linestyle=DASHES[number % len(DASHES)],
                marker=MARKERS[number % len(MARKERS)] if len(values) <= MOST_MARKERS else "",
                markersize=4,
                label=plain_text(label),
            )
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.set_xlabel("update")
        axes.set_ylabel(unit)
        show_legend(axes)

    told = "; ".join(f"{label} {values.iloc[0]:.3g} → {values.iloc[-1]:.3g}" for label, (_, values) in series.items())
    return Chart(title, told, draw(f"line-{_plain(name)}", f"{title}. {told}.", paint))


def feedback_charts(curves: Mapping[str, pandas.DataFrame]) -> list[Chart]:
    """A chart of each quantity with a line for each round, on one axis of updates."""
    charts = []
    for quantity, title in CURVES.items():
        column = f"validation/{quantity}"
        found = {name: curve[["step", column]].dropna() for name, curve in curves.items() if column in curve}
        series = {name: (own["step"], own[column]) for name, own in found.items() if len(own)}
        if series:
            charts.append(line_chart(f"feedback-{quantity}", title, "", series))
    return charts


def loss_charts(curves: Mapping[str, pandas.DataFrame]) -> list[Chart]:
    """Training and validation loss of each curve that has them, by the stage's address."""
    charts = []
    for stage, curve in curves.items():
        found = {
            label: curve[["step", column]].dropna()
            for label, column in (("training", "loss/train"), ("validation", "loss/validation"))
            if column in curve
        }
        series = {label: (own["step"], own.iloc[:, 1]) for label, own in found.items() if len(own)}
        if series:
            charts.append(line_chart(f"loss-{stage}", f"Loss of {stage}", "", series))
    return charts


def _plain(name: str) -> str:
    """A name as ids of the drawing may have it."""
    return re.sub("[^a-z0-9]+", "-", name.casefold())
