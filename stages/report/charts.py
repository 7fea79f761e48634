"""What the page plots: scores by policy, learning curves over rounds, the loss of supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas
from matplotlib.axes import Axes

from stages.algorithms.estimators import Interval
from stages.pages.drawing import (
    DASHES,
    INK,
    LINE,
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


@dataclass(frozen=True)
class Panel:
    """A learning curve: which columns stand together, and in which unit."""

    name: str
    title: str
    columns: Mapping[str, str]
    """Column of the curve file -> what the legend calls it."""
    unit: str = ""
    """`%` shows fractions as percentages."""
    is_logarithmic: bool = False


PANELS = (
    Panel("accuracy", "Accuracy on training problems", {"accuracy/mean": "sampled responses"}, "%"),
    Panel("reward", "Reward", {"reward/mean": "mean"}),
    Panel("entropy", "Entropy", {"entropy/mean": "mean"}, "nats/token"),
    Panel("length", "Response length", {"length/response_tokens_mean": "mean"}, "tokens"),
    Panel(
        "overlong", "Too long", {"length/truncated_fraction": "cut off", "length/punished_fraction": "punished"}, "%"
    ),
    Panel(
        "clip",
        "Clipped tokens",
        {"clip_fraction/high": "upper clip", "clip_fraction/low": "lower clip", "clip_fraction/dual": "dual clip"},
        "%",
    ),
    Panel(
        "groups",
        "Groups of a step",
        {"groups/drawn": "sampled", "groups/trained": "trained", "groups/carried": "kept for the next step"},
    ),
    Panel("signal", "Groups with unequal rewards", {"groups/signal_fraction": "share of sampled"}, "%"),
    Panel(
        "gap",
        "Log-probability gap, sampler to trainer",
        {
            "logprob_gap/token_max": "largest",
            "logprob_gap/mean": "mean",
            "sync/logprob_gap_max": "check after a weight transfer",
        },
        "log-prob",
        is_logarithmic=True,
    ),
    Panel("gradient", "Gradient norm", {"optim/gradient_norm": "before clipping"}),
    Panel(
        "undecided",
        "Undecided verdicts",
        {"verdict/undecided_fraction": "verifier failed", "verdict/unparsed_fraction": "no answer found"},
        "%",
    ),
)


@dataclass(frozen=True)
class Segment:
    """One round on the joined axis."""

    name: str
    start: int
    """Steps of the rounds before it."""
    curve: pandas.DataFrame
    is_on_line: bool
    """True on the line of rounds that leads to the last one; the others are drawn faintly."""

    @property
    def end(self) -> int:
        """Step at which the next round starts."""
        return self.start + int(self.curve["step"].max())


def join_rounds(curves: Mapping[str, pandas.DataFrame], rounds: Mapping[str, str]) -> list[Segment]:
    """Rounds one after another, each where the round that it starts from ends; rounds that branch lie together.

    Rounds without a curve are left out.
    """
    segments: dict[str, Segment] = {}
    line: list[str] = []
    ahead = next((name for name in reversed(rounds) if name in curves), None)
    while ahead in curves and ahead not in line:
        line.append(ahead)
        ahead = rounds[ahead]
    waiting = [name for name in rounds if name in curves]
    while waiting:
        ready = [name for name in waiting if rounds[name] not in waiting] or waiting[:1]
        for name in ready:
            before = segments.get(rounds[name])
            segments[name] = Segment(name, before.end if before else 0, curves[name], name in line)
        waiting = [name for name in waiting if name not in segments]
    return [segments[name] for name in rounds if name in segments]


def curve_charts(segments: Sequence[Segment], held_out: Mapping[str, Interval], held_out_label: str) -> list[Chart]:
    """A chart of each panel that has data. `held_out` are scores by policy, drawn where their round ends."""
    charts = []
    for panel in PANELS:
        found = {
            column: label
            for column, label in panel.columns.items()
            if any(column in segment.curve and segment.curve[column].notna().any() for segment in segments)
        }
        if found:
            points = held_out if panel.name == "accuracy" else {}
            charts.append(_curve_chart(panel, found, segments, points, held_out_label))
    return charts


def _curve_chart(
    panel: Panel,
    columns: Mapping[str, str],
    segments: Sequence[Segment],
    held_out: Mapping[str, Interval],
    held_out_label: str,
) -> Chart:
    factor = 100 if panel.unit == "%" else 1
    values = pandas.concat(
        [segment.curve[column] for segment in segments for column in columns if column in segment.curve]
    )
    is_logarithmic = panel.is_logarithmic and bool((values > 0).any())

    def paint(axes: Axes) -> None:
        for number, (column, label) in enumerate(columns.items()):
            parts = sorted((part for part in segments if column in part.curve), key=lambda part: not part.is_on_line)
            for count, segment in enumerate(parts):
                own = segment.curve[["step", column]].dropna()
                own = own[own[column] > 0] if is_logarithmic else own
                axes.plot(
                    segment.start + own["step"],
                    own[column] * factor,
                    color=SERIES[number],
                    linestyle=DASHES[number],
                    label=None if count else label,
                    marker="o" if len(own) == 1 else "",
                    alpha=1 if segment.is_on_line else 0.35,
                )
        _mark_rounds(axes, segments)
        _mark_held_out(axes, segments, held_out, held_out_label)
        axes.set_yscale("log" if is_logarithmic else "linear")
        if not is_logarithmic and (values >= 0).all():
            axes.set_ylim(bottom=0, **({"top": 105} if panel.name in ("accuracy", "signal") else {}))
        axes.set_xlabel("step")
        axes.set_ylabel(panel.unit)
        show_legend(axes)

    summary = "; ".join(_first_to_last(panel, column, label, segments, factor) for column, label in columns.items())
    if is_logarithmic and (values == 0).any():
        summary += "; zeros are not drawn"
    return Chart(panel.title, summary, draw(f"curve-{panel.name}", f"{panel.title}. {summary}.", paint))


def _mark_rounds(axes: Axes, segments: Sequence[Segment]) -> None:
    steps = max(segment.end for segment in segments)
    for segment in (part for part in segments if part.is_on_line):
        if segment.start:
            axes.axvline(segment.start + 0.5, color=LINE, linewidth=1.2)
        room = max(3, 46 * (segment.end - segment.start) // steps)  # letters that fit over the plot
        name = segment.name if len(segment.name) <= room else segment.name[: room - 1] + "…"
        axes.text(
            segment.start + 0.8,
            1.0,
            plain_text(name),
            color=MUTED,
            fontsize=10,
            va="bottom",
            clip_on=False,
            transform=axes.get_xaxis_transform(),
        )
    axes.set_xlim(0, steps + 1)


def _mark_held_out(axes: Axes, segments: Sequence[Segment], held_out: Mapping[str, Interval], label: str) -> None:
    places = {segment.name: segment.end for segment in segments if segment.is_on_line}
    points = [(places[name], own) for name, own in held_out.items() if name in places]
    if points:
        x, intervals = zip(*points, strict=True)
        axes.errorbar(
            x,
            [100 * own.estimate for own in intervals],
            yerr=whiskers(intervals),
            fmt=MARKERS[1],
            color=SERIES[1],
            markersize=5,
            capsize=3,
            label=plain_text(label),
            zorder=5,
        )


def _first_to_last(panel: Panel, column: str, label: str, segments: Sequence[Segment], factor: int) -> str:
    parts = [part for part in segments if column in part.curve and part.curve[column].notna().any()]
    line = sorted((part for part in parts if part.is_on_line), key=lambda part: part.start) or parts
    own = pandas.concat([part.curve[column].dropna() for part in line])
    first, last = (f"{value * factor:.3g}" for value in (own.iloc[0], own.iloc[-1]))
    unit = "%" if panel.unit == "%" else ""
    return f"{label} {first}{unit} → {last}{unit}"


def branch_chart(name: str, title: str, column: str, unit: str, curves: Mapping[str, pandas.DataFrame]) -> Chart:
    """One column of several rounds that start from one policy, a line for each; the first lines where colours end."""
    factor = 100 if unit == "%" else 1
    shown = dict(list(curves.items())[: len(SERIES)])

    def paint(axes: Axes) -> None:
        for number, (label, curve) in enumerate(shown.items()):
            own = curve[["step", column]].dropna()
            axes.plot(
                own["step"],
                own[column] * factor,
                color=SERIES[number],
                linestyle=DASHES[number],
                label=plain_text(label),
            )
        axes.set_ylim(bottom=0)
        axes.set_xlabel("step")
        axes.set_ylabel(unit)
        show_legend(axes)

    summary = "; ".join(
        f"{label} {own.iloc[0] * factor:.3g} → {own.iloc[-1] * factor:.3g}{'%' if unit == '%' else ''}"
        for label, own in ((label, curve[column].dropna()) for label, curve in shown.items())
        if len(own)
    )
    return Chart(title, summary, draw(name, f"{title}. {summary}.", paint))


def pass_chart(name: str, title: str, scores: Mapping[str, Mapping[int, Interval]]) -> Chart:
    """pass@k of each policy over k, which is logarithmic; policies beyond the colours are left out."""
    shown = dict(list(scores.items())[-len(SERIES) :])

    def paint(axes: Axes) -> None:
        for number, (policy, own) in enumerate(shown.items()):
            axes.errorbar(
                list(own),
                [100 * one.estimate for one in own.values()],
                yerr=whiskers(list(own.values())),
                color=SERIES[number],
                linestyle=DASHES[number],
                marker=MARKERS[number],
                markersize=4,
                capsize=3,
                label=plain_text(policy),
            )
        ticks = sorted({k for own in shown.values() for k in own})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(k) for k in ticks])
        axes.minorticks_off()
        axes.set_ylim(0, 105)
        axes.set_xlabel("k")
        axes.set_ylabel("%")
        show_legend(axes)

    summary = "; ".join(
        f"{policy} " + ", ".join(f"{100 * one.estimate:.1f}% at {k}" for k, one in own.items())
        for policy, own in shown.items()
    )
    return Chart(title, summary, draw(name, f"{title} by policy. {summary}.", paint))


def loss_chart(stage: str, curve: pandas.DataFrame) -> Chart | None:
    """Training and validation loss of a stage; None when the curve has neither."""
    names = {"loss/train": "training", "loss/validation": "validation"}
    found = {label: curve[["step", name]].dropna() for name, label in names.items() if name in curve}
    found = {label: own for label, own in found.items() if len(own)}
    if not found:
        return None

    def paint(axes: Axes) -> None:
        for number, (label, own) in enumerate(found.items()):
            marker = MARKERS[number] if number or len(own) == 1 else ""
            axes.plot(
                own["step"],
                own.iloc[:, 1],
                color=SERIES[number],
                marker=marker,
                markersize=4,
                label=label,
                linewidth=1.1 if number == 0 else 1.7,
            )
        axes.set_ylim(bottom=0)
        axes.set_xlabel("step")
        axes.set_ylabel("nats/token")
        show_legend(axes)

    parts = [f"{label} {own.iloc[0, 1]:.3g} → {own.iloc[-1, 1]:.3g}" for label, own in found.items()]
    spoken = f"Loss of {stage}. {'; '.join(parts)}."
    return Chart(f"Loss of {stage}", "; ".join(parts), draw(f"loss-{stage}", spoken, paint))


def score_chart(name: str, title: str, scores: Mapping[str, Interval]) -> Chart:
    """One score of each policy in percent, with its 95% interval."""

    def paint(axes: Axes) -> None:
        intervals = list(scores.values())
        heights = [100 * own.estimate for own in intervals]
        axes.bar(range(len(scores)), heights, width=0.62, color=SERIES[0], alpha=0.22)
        axes.errorbar(
            range(len(scores)),
            heights,
            yerr=whiskers(intervals),
            fmt="o",
            color=SERIES[0],
            markersize=5,
            capsize=4,
            elinewidth=1.7,
        )
        for place, own in enumerate(intervals):
            axes.text(
                place,
                min(100 * own.high + 2.5, 101),
                f"{100 * own.estimate:.1f}",
                color=INK,
                ha="center",
                va="bottom",
                fontsize=11,
            )
        axes.set_ylim(0, 112)
        axes.set_yticks(range(0, 101, 25))
        axes.set_ylabel("%")
        show_policies(axes, scores)

    summary = ", ".join(f"{policy} {100 * own.estimate:.1f}%" for policy, own in scores.items())
    return Chart(title, "", draw(name, f"{title} by policy: {summary}.", paint))


def value_chart(name: str, title: str, unit: str, series: Mapping[str, Mapping[str, float]]) -> Chart:
    """One or more numbers of each policy as bars, without an interval; `unit` % shows fractions as percentages."""
    factor = 100 if unit == "%" else 1
    policies = list(dict.fromkeys(policy for values in series.values() for policy in values))

    def paint(axes: Axes) -> None:
        width = 0.62 / len(series)
        for number, (label, values) in enumerate(series.items()):
            places = [policies.index(policy) + (number - (len(series) - 1) / 2) * width for policy in values]
            heights = [value * factor for value in values.values()]
            axes.bar(places, heights, width=width * 0.92, color=SERIES[number], alpha=0.55, label=label)
            for place, height in zip(places, heights, strict=True):
                axes.text(place, height, _short(height), color=INK, ha="center", va="bottom", fontsize=9.5)
        axes.margins(y=0.16)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(unit)
        show_policies(axes, policies)
        show_legend(axes)

    summary = "; ".join(
        f"{label}: "
        + ", ".join(f"{policy} {value * factor:.3g}{'%' if unit == '%' else ''}" for policy, value in values.items())
        for label, values in series.items()
    )
    return Chart(title, "", draw(name, f"{title} by policy. {summary}.", paint))


def _short(number: float) -> str:
    if number < 0.05:
        return "0"
    return f"{number:.0f}" if number >= 99.95 else f"{number:.1f}"
