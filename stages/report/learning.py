"""The section on learning over the RL rounds: one after another on one axis, or side by side if they branch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas

from stages.algorithms.emergence import keyword_measure
from stages.algorithms.estimators import Interval
from stages.pages.drawing import SERIES, Chart, Line, lines
from stages.pages.page import Part, charts, html, metric_label, paragraph
from stages.pages.reading import curve_lines
from stages.report.inputs import ReportRun


@dataclass(frozen=True)
class Panel:
    """Columns of a curve that one chart shows, and their unit."""

    title: str
    columns: Mapping[str, str]
    """Column of the curve file -> its name in the legend."""
    unit: str = ""
    """`%` shows fractions as percentages."""
    top: float | None = None
    is_logarithmic: bool = False


PANELS = (
    Panel("Accuracy on training problems", {"accuracy/mean": "sampled responses"}, "%", top=105),
    Panel("Accuracy on held-out problems", {"evaluation/accuracy": "sampled responses (95% interval)"}, "%", top=105),
    Panel("Reward", {"reward/mean": "mean"}),
    Panel("Entropy", {"entropy/mean": "mean"}, "nats/token"),
    Panel("Response length", {"length/response_tokens_mean": "mean"}, "tokens"),
    Panel("Too long", {"length/truncated_fraction": "cut off", "length/punished_fraction": "punished"}, "%"),
    Panel(
        "Clipped tokens",
        {"clip_fraction/high": "upper clip", "clip_fraction/low": "lower clip", "clip_fraction/dual": "dual clip"},
        "%",
    ),
    Panel(
        "Groups of a step",
        {"groups/drawn": "sampled", "groups/trained": "trained", "groups/carried": "kept for the next step"},
    ),
    Panel("Groups with unequal rewards", {"groups/signal_fraction": "share of sampled"}, "%", top=105),
    Panel(
        "Log-probability gap, sampler to trainer",
        {
            "logprob_gap/token_max": "largest",
            "logprob_gap/mean": "mean",
            "sync/logprob_gap_max": "check after a weight transfer",
        },
        "log-prob",
        is_logarithmic=True,
    ),
    Panel("Gradient norm", {"optim/gradient_norm": "before clipping", "critic/gradient_norm": "critic's"}),
    Panel("Variance of the returns that the critic explains", {"critic/explained_variance": "share"}, "%", top=105),
    Panel(
        "Undecided verdicts",
        {"verdict/undecided_fraction": "verifier failed", "verdict/unparsed_fraction": "no answer found"},
        "%",
    ),
    Panel("Turns and calls of a response", {"turns/mean": "turns", "calls/mean": "calls of tools"}),
    Panel(
        "Failures between the turns",
        {"calls/failed_fraction": "failed calls", "environment/fault_fraction": "environment failed"},
        "%",
    ),
    Panel("Text of the environment", {"tokens/observed": "observed in a step"}, "tokens"),
)


_KEYWORD = keyword_measure("")


def learning(run: ReportRun) -> Part:
    """Learning curves of the rounds: those from one policy side by side, then all in their order."""
    segments = join_rounds(run.round_curves, run.rounds)
    branches = charts(branch_charts(run.round_curves, run.rounds))
    parts = [branches and paragraph("Rounds that start from one policy, side by side.", kind="quiet"), branches]
    drawn = charts(curve_charts(segments, *_held_out(run))) if segments else ""
    if drawn:
        faint = ", ".join(segment.name for segment in segments if not segment.is_on_line)
        told = (
            "Each round starts at the step at which the round before it ended. Accuracy, reward and lengths are means "
            "over all responses sampled in a step, before any group is left out. Words of reflection, “alternatively,” "
            "and code are counted in the kept rollouts; those that never occur have no line.{}"
        )
        of_faint = faint and f" Faint lines are rounds that the last one does not build on: {faint}."
        parts += [paragraph(told, of_faint, kind="quiet"), drawn]
    without = ", ".join(name for name in run.rounds if name not in run.round_curves)
    if not run.rounds:
        parts.append(paragraph("This run has no RL rounds.", kind="absent"))
    elif without:
        parts.append(paragraph("No curve yet: {}.", without, kind="absent"))
    return html("{}", parts)


def _held_out(run: ReportRun) -> tuple[dict[str, Interval], str]:
    """Returns the first benchmark's headline score of every policy, and its label."""
    if not run.benchmarks:
        return {}, ""
    first = run.benchmarks[0]
    # Training accuracy is a mean over samples, so it is compared with the headline (avg@k), not with greedy.
    return first.scores(first.headline_metric), f"held out, {metric_label(first.headline_metric)}"


@dataclass(frozen=True)
class Segment:
    """One round on the joined axis."""

    name: str
    start: int
    """Steps of the rounds before it."""
    curve: pandas.DataFrame
    is_on_line: bool
    """True for rounds on the path to the last one; the others are drawn faintly."""

    @property
    def end(self) -> int:
        """Step at which the next round starts."""
        return self.start + int(self.curve["step"].max())


def join_rounds(curves: Mapping[str, pandas.DataFrame], rounds: Mapping[str, str]) -> list[Segment]:
    """Places rounds one after another, each at the end of the round that it starts from; branches overlap.

    Rounds without a curve are left out.
    """
    segments: dict[str, Segment] = {}
    line: list[str] = []
    ahead = next((name for name in reversed(rounds) if name in curves), None)
    # Backwards from the last round. `not in line`: rounds that start from each other must not loop.
    while ahead in curves and ahead not in line:
        line.append(ahead)
        ahead = rounds[ahead]
    waiting = [name for name in rounds if name in curves]
    while waiting:
        # In a cycle no round is ready: the first one is taken, so that the page can be written.
        ready = [name for name in waiting if rounds[name] not in waiting] or waiting[:1]
        for name in ready:
            before = segments.get(rounds[name])
            segments[name] = Segment(name, before.end if before else 0, curves[name], name in line)
        waiting = [name for name in waiting if name not in segments]
    return [segments[name] for name in rounds if name in segments]


def curve_charts(segments: Sequence[Segment], held_out: Mapping[str, Interval], held_out_label: str) -> list[Chart]:
    """Returns a chart of each panel that has data. `held_out` are scores by policy, drawn at the end of their round."""
    line = [segment for segment in segments if segment.is_on_line]
    stretches = [(segment.name, segment.start, segment.end) for segment in line]
    scores = {segment.end: held_out[segment.name] for segment in line if segment.name in held_out}
    charts = []
    for panel in (*PANELS, *_emergence_panels(segments)):
        drawn = [
            # A column has the same colour in every round, so its index among the columns is the style.
            replace(own, x=[segment.start + x for x in own.x], y=y, style=style, is_faint=not segment.is_on_line)
            for style, (column, label) in enumerate(panel.columns.items())
            # The legend shows the first line of a label, which must not be faint.
            for segment in sorted(segments, key=lambda segment: (not segment.is_on_line, segment.start))
            for own in curve_lines(segment.curve, {column: label})
            for y in [_with_intervals(own.y, column, segment.curve)]
        ]
        if not drawn:
            continue
        # Both are shares of correct answers: training accuracy may rise while the held-out one does not.
        if scores and "accuracy/mean" in panel.columns:
            drawn.append(Line(held_out_label, [*scores], [*scores.values()], style=1, is_joined=False))
        more = {"top": panel.top, "is_logarithmic": panel.is_logarithmic, "stretches": stretches}
        charts.append(lines(f"curve-{panel.title}", panel.title, panel.unit, drawn, **more))
    return charts


def _emergence_panels(segments: Sequence[Segment]) -> list[Panel]:
    """Returns panels of the columns of `read_emergence`, without those that are 0 in every step."""
    names = dict.fromkeys(name for segment in segments for name in segment.curve)
    found = [name for name in names if any((one.curve[name] > 0).any() for one in segments if name in one.curve)]
    words = [name for name in found if name.startswith(_KEYWORD)][: len(SERIES)]
    panels = (
        Panel(
            "Words of reflection", {name: f"“{name.removeprefix(_KEYWORD).replace('_', ' ')}”" for name in words}, "%"
        ),
        Panel("Branching", {"branching_frequency": "“alternatively,” in a response"}),
        Panel("Responses with Python code", {"coding_rate": "share of sampled"}, "%"),
    )
    return [panel for panel in panels if any(name in found for name in panel.columns)]


def _with_intervals(values: Sequence[float], column: str, curve: pandas.DataFrame) -> Sequence[float] | list[Interval]:
    """Returns the numbers of a column, with its intervals if the curve has them."""
    if f"{column}_low" not in curve:
        return values
    ends = curve[[f"{column}_low", f"{column}_high"]].dropna().to_numpy().tolist()
    return [Interval(value, *own) for value, own in zip(values, ends, strict=True)]


BRANCHED = {
    "Response length, by round": ("length/response_tokens_mean", "tokens"),
    "Cut off, by round": ("length/truncated_fraction", "%"),
    "Accuracy on training problems, by round": ("accuracy/mean", "%"),
}
"""Title -> column and unit of the curves that are drawn if rounds start from one policy."""


def branch_charts(curves: Mapping[str, pandas.DataFrame], rounds: Mapping[str, str]) -> list[Chart]:
    """Returns curves of the rounds that start from one policy, one line each; empty if there are none.

    With more rounds than colours, only the first ones.
    """
    starts = [start for name, start in rounds.items() if name in curves]
    together = [name for name in curves if starts.count(rounds[name]) > 1]
    charts = []
    for title, (column, unit) in BRANCHED.items():
        drawn = [line for name in together for line in curve_lines(curves[name], {column: name})]
        # A single line would compare nothing.
        if len(drawn) > 1:
            charts.append(lines(f"branch-{column}", title, unit, drawn[: len(SERIES)]))
    return charts
