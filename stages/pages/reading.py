"""What the report pages read of a run, and the sections that they share: losses, dropped rows, times, parameters.

Data that a run does not have are absent, which is not an error.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas
from markupsafe import Markup
from pydantic import TypeAdapter, ValidationError

from stages.algorithms.estimators import Interval
from stages.foundations.errors import UserError
from stages.foundations.params import read_yaml
from stages.foundations.stage_graph import GraphStage, read_definitions, stages_of
from stages.pages.drawing import Chart, Line, lines
from stages.pages.page import FOLDER, Part, charts, count, details, html, page, paragraph, percent, table
from stages.pages.shown_stages import shown

Metrics = dict[str, float]
_METRICS = TypeAdapter(Metrics)


class Run:
    """A run's parameters, metrics and curves, in the order of the graph; UserError for a broken file."""

    def __init__(self, paths: Namespace) -> None:
        self.paths = paths
        self.params: dict[str, Any] = read_yaml(paths.params)
        self.params_text = paths.params.read_text(encoding="utf-8")
        self.seed = int(self.params.get("seed", 0))
        self.stages = tuple(stages_of(read_definitions(paths.graph), self.params))

    @cached_property
    def metrics(self) -> dict[str, Metrics]:
        """Metrics of each stage that has some, by DVC's name of it: `curate`, `collect@gsm8k`, `grade@rl_1`."""
        return {
            stage.address: _metrics(place)
            for stage in self.stages
            for path in stage.metrics
            if (place := self.paths.metrics / path.removeprefix("data/metrics/")).exists()
        }

    @cached_property
    def curves(self) -> dict[str, pandas.DataFrame]:
        """Curves of each stage that has some, likewise."""
        folder = self.paths.curves
        curves = {
            stage.address: _curve(folder / path.removeprefix("data/curves/"))
            for stage in self.stages
            for path in stage.curves
        }
        return {name: curve for name, curve in curves.items() if curve is not None}


Sections = Sequence[tuple[str, str, str, Callable[[Any], Part]]]
"""Id, word in the navigation, heading and function of each section, in the order of the page.

The function takes the run and returns its part; one that returns None leaves its section out.
"""


def report_page(run: Run, title: str, about: Part, sections: Sections) -> str:
    """Returns the page of a report, which loads only `timings.js` beside it, with the run's times."""
    shown_sections = [(place, word, heading, section(run)) for place, word, heading, section in sections]
    script = (FOLDER / "time_table.js").read_text(encoding="utf-8")
    return page(title, "Retrace report", shown_sections, about=about, scripts=["timings.js"], inline=script)


def numbers_of(own: Interval) -> dict[str, float]:
    """Returns an interval as the file beside a report has it."""
    return {"value": own.estimate, "low": own.low, "high": own.high}


def paragraphs_of(notes: str) -> list[str]:
    """Returns the paragraphs of a text in which a blank line begins a new one."""
    return [part.strip() for part in notes.split("\n\n") if part.strip()]


def _metrics(path: Path) -> Metrics:
    try:
        return _METRICS.validate_python(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, ValidationError) as error:
        what = f"{error.error_count()} values are no numbers" if isinstance(error, ValidationError) else error
        raise UserError(f"{path} is not a metrics file ({what}): delete it and run `dvc repro`") from None


def _curve(path: Path) -> pandas.DataFrame | None:
    if not path.exists():
        return None
    try:
        # One broken cell makes pandas read a whole column as text; `to_numeric` finds it.
        curve = pandas.read_csv(path).apply(pandas.to_numeric)
    except (ValueError, pandas.errors.EmptyDataError) as error:
        raise UserError(f"{path} is not a table of curves ({error}): delete it and run `dvc repro`") from None
    if "step" not in curve:
        raise UserError(f"{path} has no column `step`: delete it and run `dvc repro`")
    return curve if len(curve) else None


def curve_lines(curve: pandas.DataFrame, columns: Mapping[str, str]) -> list[Line]:
    """Returns a line over the steps for each column that has numbers; `columns` has its label by its name."""
    numbers = {label: curve[["step", name]].dropna() for name, label in columns.items() if name in curve}
    return [Line(label, *values.to_numpy().T.tolist()) for label, values in numbers.items() if len(values)]


def losses(curves: Mapping[str, pandas.DataFrame], unit: str, x_label: str) -> Markup:
    """Shows training and validation loss of each curve that has them, by the stage's address."""
    drawn: list[Chart] = []
    for stage, curve in curves.items():
        of_stage = curve_lines(curve, {"loss/train": "training", "loss/validation": "validation"})
        drawn += [lines(f"loss-{stage}", f"Loss of {stage}", unit, of_stage, x_label=x_label)] if of_stage else []
    return charts(drawn) or paragraph("This run has no loss curve.", kind="absent")


def times(run: Run) -> Markup:
    """Returns the place of the times, which the script fills."""
    return html(
        '<div id="timings" data-stages="{}"><p class="absent">The times are in <code>timings.js</code> beside this '
        "page; each stage writes it when it ends. It is a separate file because times differ between equal runs. This "
        "page needs that file, and scripts, to show them.</p></div>\n",
        " ".join(stage.address for stage in run.stages),
    )


def made(run: Run, more: Markup, rounds: Collection[str] = ()) -> Markup:
    """Shows the graph, `more` below it, the parameters and every metric."""
    lanes = [
        html(
            '<div class="lane"><h3>{}</h3><ol>\n{}</ol></div>\n',
            lane,
            [html("<li>{}</li>\n", [html("<code>{}</code>", name) for name in names]) for names in groups],
        )
        for lane, groups in graph_lanes(run.stages, rounds)
    ]
    metrics = [
        details(stage, table(f"Metrics of {stage}", [], [(name, f"{one:.10g}") for name, one in own.items()], kind=""))
        for stage, own in run.metrics.items()
    ]
    params = html('<pre class="params" tabindex="0">{}</pre>', run.params_text)
    graph = html('<div class="lanes">\n{}</div>\n', lanes)
    return graph + more + details("The parameters", params) + details("Every metric", metrics)


def graph_lanes(stages: Iterable[GraphStage], rounds: Collection[str]) -> list[tuple[str, list[list[str]]]]:
    """The graph as lanes of stages: each list of names runs after the one before; `rounds` follow each other."""
    lanes: dict[str, dict[str, list[str]]] = {}
    for stage in stages:
        # Rounds follow each other, so each is a separate step. Other items of a stage run side by side.
        group = stage.address if stage.item in rounds and stage.curves else stage.name
        if shown(stage.name).lane:
            lanes.setdefault(shown(stage.name).lane, {}).setdefault(group, []).append(stage.address)
    return [(lane, list(groups.values())) for lane, groups in lanes.items()]


def dropped(run: Run) -> Markup:
    """Shows the ways on which rows are lost, and a funnel for each stage that may drop rows."""
    titles = dict.fromkeys(way.title for stage in run.stages if (way := shown(stage.name).way))
    ways = [_way(title, run) for title in titles]
    funnels = [
        _funnel(stage.address, run.metrics[stage.address])
        for stage in run.stages
        if shown(stage.name).has_funnel and "rows/in" in run.metrics.get(stage.address, {})
    ]
    if not funnels:
        return html("{}{}", ways, paragraph("No data stage has counted its rows yet.", kind="absent"))
    legend = '<span><i class="kept"></i>kept</span><span><i class="lost"></i>dropped, by reason</span>'
    below = "The dropped rows themselves, with a sentence each, are in <code>data/dropped/</code>."
    boxes = html('<div class="funnels">{}</div>\n', funnels)
    return html("{}{}{}{}", ways, paragraph(legend, kind="legend"), boxes, paragraph(below, kind="quiet"))


def _funnel(stage: str, metrics: Metrics) -> Markup:
    """Shows the rows of one stage: kept, and dropped by reason, most rows first."""
    rows_in, kept = int(metrics["rows/in"]), int(metrics.get("rows/kept", 0))
    ranked = sorted(_drops(metrics).items(), key=lambda item: (-item[1], item[0]))
    reasons = [(reason.replace("_", " "), rows, rows / rows_in if rows_in else 0.0) for reason, rows in ranked]
    share = kept / rows_in if rows_in else 0.0
    bar = [html('<span class="kept" style="width:{}%"></span>', f"{100 * share:.2f}")]
    bar += [
        html('<span class="lost" style="width:{}%" title="{}: {}"></span>', f"{100 * lost:.2f}", reason, count(rows))
        for reason, rows, lost in reasons
    ]
    cells = '<tr><th scope="row">{}</th><td class="number">{}</td><td class="number quiet">{}</td></tr>\n'
    listed = [html(cells, reason, count(rows), percent(lost)) for reason, rows, lost in reasons]
    caption = html('<caption class="unseen">Rows dropped by {}</caption>', stage)
    return html(
        '<article class="card">\n<h3>{}</h3>\n{}<span class="bar stacked" role="img" aria-label="{} kept">{}</span>\n'
        "{}</article>\n",
        stage,
        paragraph("{} in, {} kept ({})", count(rows_in), count(kept), percent(share), kind="quiet"),
        percent(share),
        bar,
        html('<table class="bars">{}<tbody>\n{}</tbody></table>\n', caption, listed)
        if reasons
        else paragraph("Nothing was dropped.", kind="quiet"),
    )


def _way(title: str, run: Run) -> Part:
    """Shows a chain from the input, such as pages, to the trusted rows; None unless each stage has counted its rows."""
    steps: list[tuple[str, str, str, str]] = []
    notes, left, before = [], 0, ""
    for stage in run.stages:
        step, metrics = shown(stage.name).way, run.metrics.get(stage.address, {})
        if step is None or step.title != title:
            continue
        # A stage of the chain has not run: rows would vanish there without a reason.
        if "rows/in" not in metrics:
            return None
        if step.first:
            left = int(metrics["rows/in"])
            steps.append((step.first, before or stage.address, "", f"{count(left)} {step.unit}"))
        for reason, rows in _in_order(_drops(metrics), step.reasons):
            left -= rows
            lost = count(rows) if rows else ""
            steps.append((reason.replace("_", " "), stage.address, lost, f"{count(left)} {step.unit}"))
        if step.last:
            kept = count(int(metrics.get("rows/kept", 0)))
            steps.append((step.last, stage.address, "", f"{kept} {step.unit}"))
        notes.append(step.note(run.params.get(stage.name) or {}))
        before = stage.address
    told = " ".join(filter(None, notes))
    caption = f"{title}. Each row is dropped once, for the first reason that applies. {told}"
    inputs = {what for what, _, lost, _ in steps if not lost}
    return table(title, ["Step", "stage", "dropped", "left"], steps, caption, marked=inputs)


def _drops(metrics: Metrics) -> dict[str, int]:
    return {key.removeprefix("dropped/"): int(rows) for key, rows in metrics.items() if key.startswith("dropped/")}


def _in_order(drops: Mapping[str, int], listed: Sequence[str]) -> list[tuple[str, int]]:
    order = {reason: place for place, reason in enumerate(listed)}
    # Reasons that the stage does not list come last, by name.
    return sorted(drops.items(), key=lambda item: (order.get(item[0], len(order)), item[0]))
