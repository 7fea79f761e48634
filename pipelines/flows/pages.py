"""Texts for the UI: the name, state message and result of a graph run; the page of a stage that has ended.

A stage's page has its outcome, resources, the link to MLflow and the metrics.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pipelines.graph.graph import DvcStage
from pipelines.graph.recipes import read_recipe
from pipelines.graph.result import changes_from_recipe, describe_gain, seconds_in_words
from pipelines.records.graph_run import variation
from pipelines.runtime.machine import Usage
from stages.foundations.errors import UserError, without_password
from stages.foundations.params import read_yaml
from stages.foundations.stage_graph import METRICS
from stages.observe.tracking import latest_runs, recipe_name
from stages.pages.page import markdown_table


@dataclass(frozen=True)
class Done:
    """The outcome of a run of the graph."""

    outcomes: Mapping[str, str]
    """`RAN`, `RESTORED` or `UNCHANGED` for each stage, in the graph's order."""
    seconds: float
    record: Mapping[str, Any] | None = None
    """Record of the run of the graph (pipelines/records/graph_run.py); None where no run ended, or tracking is off."""

    def summary(self) -> str:
        """`3 of 24 stages ran`, and how many were restored."""
        restored = len(self.stages(RESTORED))
        summary = f"{len(self.stages(RAN))} of {len(self.outcomes)} stages ran"
        return f"{summary}, {restored} restored from DVC's cache" if restored else summary

    def stages(self, outcome: str) -> list[str]:
        """Returns the stages with this outcome."""
        return [name for name, ended in self.outcomes.items() if ended == outcome]


def run_name(root: Path, recipe: str) -> str:
    """Returns `laptop rl.group_size=8 seed 0`: the recipe, the changes of params.yaml in it, and the seed.

    A named `recipe` has no changes. A project without recipes has only the seed.
    """
    try:
        params = read_recipe(root, recipe) if recipe else read_yaml(root / "params.yaml")
    except UserError:
        # The flow reports the whole error. A name does not need it.
        return recipe
    changes = {} if recipe else changes_from_recipe(root)
    name = recipe or recipe_name(root).removesuffix("+changes")
    seed = f"seed {params['seed']}" if "seed" in params else ""
    return " ".join(filter(None, [name, variation(changes), seed]))


def result_message(result: Mapping[str, Any] | None, done: Done) -> str:
    """One sentence for the flow's state: the last policy's scores, the first gain on each benchmark, the stages."""
    if not result:
        return done.summary()
    # The last policy's scores win: they are last in the list.
    scores = {score["benchmark"]: score for score in result["scores"]}
    # Reversed, so that the first gain of a benchmark is kept.
    gains = {gain["benchmark"]: gain for gain in reversed(result["gains"])}
    parts = []
    for benchmark, score in scores.items():
        gain = gains.get(benchmark)
        where = f" on {benchmark}" if len(scores) > 1 else ""
        over = f", {100 * gain['value']:+.1f} over {gain['baseline']}" if gain else ""
        parts.append(f"{score['policy']} {_percent(score)}{where}{over}")
    unscored = (gain for name, gain in gains.items() if name not in scores)
    parts += [f"{gain['policy']} - {gain['baseline']}, {gain['metric']}: {describe_gain(gain)}" for gain in unscored]
    return "; ".join([*parts, done.summary(), *(f"WARNING: {warning}" for warning in result["warnings"])])


def result_page(root: Path, result: Mapping[str, Any] | None, done: Done) -> str:
    """Markdown: scores and gains with their intervals, warnings, what ran, changes from the recipe, links."""
    lines = [f"## {result['title'] if result else root.name}", ""]
    if result:
        lines += [line for warning in result["warnings"] for line in (f"> **Warning:** {warning}", "")]
        lines += _scores(result)
        lines += _gains(result)
    changes = changes_from_recipe(root)
    recipe = recipe_name(root).removesuffix("+changes")
    if recipe:
        lines += [f"**Recipe:** {recipe}{', changed:' if changes else ', unchanged'}", ""]
        lines += [*(f"- `{key}`: {change}" for key, change in changes.items()), *([""] if changes else [])]
    lines += [f"**Time:** {seconds_in_words(done.seconds)}", ""]
    for outcome in (RAN, RESTORED):
        names = done.stages(outcome)
        if names:
            lines += [f"**{outcome.capitalize()}** ({len(names)}): {', '.join(names)}", ""]
    lines += [f"{len(done.stages(UNCHANGED))} of {len(done.outcomes)} stages were up to date.", ""]
    record = done.record or {}
    if result:
        lines += [f"**Report:** `{root / result['page']}`{_report_in_mlflow(record)}", ""]
    if link := mlflow_link(record):
        lines += [f"**Tracking:** {link} with all parameters and scores of this run", ""]
    return "\n".join(lines)


def _report_in_mlflow(record: Mapping[str, Any]) -> str:
    """A browser opens no local file from a server's page, so the link leads to the copy in MLflow."""
    page = (record.get("page") or {}).get("path", "")
    address = mlflow_page(record, f"artifacts/{Path(page).name}") if page else ""
    return f" ([in MLflow]({address}))" if address else ""


def _scores(result: Mapping[str, Any]) -> list[str]:
    lines = []
    for benchmark in dict.fromkeys(score["benchmark"] for score in result["scores"]):
        scores = [score for score in result["scores"] if score["benchmark"] == benchmark]
        rows = []
        for score in scores:
            value, low, high = (100 * score[name] for name in ("value", "low", "high"))
            rows.append((score["policy"], f"{value:.1f} %", f"{low:.1f} to {high:.1f}"))
        rows[-1] = tuple(f"**{cell}**" for cell in rows[-1])
        first = scores[0]
        lines += [f"### {benchmark}: {first['metric']} on {first['problems']} {first.get('unit', 'problems')}", ""]
        lines += _table(("policy", "score", "95% interval"), rows)
    return lines


def _gains(result: Mapping[str, Any]) -> list[str]:
    rows = [
        (gain["benchmark"], f"{gain['policy']} over {gain['baseline']}", gain["metric"], describe_gain(gain))
        for gain in result["gains"]
    ]
    return ["### Gains", "", *_table(("benchmark", "policies", "score", "gain, 95% interval"), rows)] if rows else []


def _percent(score: Mapping[str, float]) -> str:
    return f"{100 * score['value']:.1f} % [{100 * score['low']:.1f}, {100 * score['high']:.1f}]"


TRAINING_PAGES = "workflowType=machine_learning"
"""Without it MLflow shows its pages for agents' traces."""
RAN, RESTORED, UNCHANGED = "ran", "restored", "unchanged"
"""Outcomes of a stage's task, in the words of `StageReport`."""
_SENTENCES = {
    RAN: "Finished.",
    RESTORED: "Restored from DVC's run cache: nothing was computed.",
    UNCHANGED: "Up to date: another run did its work in the meantime.",
}
HEADLINES = "data/headline/"
"""Where stages write the few numbers that `dvc metrics show` shows."""


@dataclass(frozen=True)
class StagePage:
    """Facts about a stage that ended successfully."""

    stage: DvcStage
    root: Path
    env: Mapping[str, str]
    """The environment in which it ran."""
    outcome: str
    """`RAN`, `RESTORED` or `UNCHANGED`."""
    slots: str
    usage: Usage


def describe(page: StagePage) -> str:
    """Markdown: what happened, a link to the stage's last MLflow run, and its metrics as a table."""
    lines = [f"## {page.stage.name}", "", _SENTENCES[page.outcome], ""]
    if page.outcome == RAN:
        lines += [f"Resources: {page.slots}, {page.usage.in_words()}", ""]
    state = Path(page.env.get("RETRACE_STATE") or page.root / "state")
    runs = {run["name"]: run for run in latest_runs(state / "ledger.jsonl")}
    if page.stage.name in runs:
        run = runs[page.stage.name]
        lines += [f"{run['seconds']:.1f} s, started {run['started']}. {mlflow_link(run)}", ""]
    for path in page.stage.metrics:
        if (page.root / path).exists():
            lines += metric_tables(page.root, path)
    return "\n".join(lines)


def metric_tables(root: Path, path: str) -> list[str]:
    """Returns lines of markdown: scores with intervals, headline numbers, then all other numbers of a metric file.

    The score that the report compares policies by is bold: the average over samples, on all problems of a benchmark.
    """
    metrics = json.loads((root / path).read_text())
    best, others = _best_and_others(metrics)
    rows = [(name, f"{metrics[name]:.4f}", _interval(metrics, name)) for name in [*best, *others]]
    rows[: len(best)] = [tuple(f"**{cell}**" for cell in row) for row in rows[: len(best)]]
    shown = {f"{name}{end}" for name in [*best, *others] for end in ("", "_low", "_high")}
    rest = {name: value for name, value in metrics.items() if name not in shown}
    return [
        *_table(("score", "value", "95% interval"), rows),
        *_table(("headline", "value"), _numbers(_headlines(root, path))),
        *_table(("other numbers", "value"), _numbers(rest)),
    ]


def best_scores(root: Path, path: str) -> str:
    """Returns the bold scores of `metric_tables` in one sentence; "" for a file without scores."""
    metrics = json.loads((root / path).read_text())
    return ", ".join(
        f"{name} {metrics[name]:.3f} [{metrics[f'{name}_low']:.3f}, {metrics[f'{name}_high']:.3f}]"
        for name in _best_and_others(metrics)[0]
    )


def _best_and_others(metrics: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """Names of the numbers with an interval: those to compare policies by, and the others."""

    def rank(name: str) -> tuple[bool, bool]:
        # All problems come before the clean ones, and averages over samples before other scores.
        return "clean_" in name, "/avg" not in name

    names = sorted((name for name in metrics if {f"{name}_low", f"{name}_high"} <= set(metrics)), key=rank)
    best = [name for name in names if rank(name) == rank(names[0])]
    return best, names[len(best) :]


def _numbers(values: Mapping[str, float]) -> list[tuple[str, ...]]:
    return [(name, f"{value:.6g}") for name, value in values.items()]


def _interval(metrics: Mapping[str, float], name: str) -> str:
    return f"{metrics[f'{name}_low']:.4f} to {metrics[f'{name}_high']:.4f}"


def _headlines(root: Path, path: str) -> dict[str, float]:
    """Returns the stage's numbers of `dvc metrics show`: from a file, or a folder with a file for each benchmark."""
    file = root / HEADLINES / path.removeprefix(METRICS)
    files = {"": file} if file.is_file() else {f"{one.stem}/": one for one in file.with_suffix("").glob("*.json")}
    return {
        f"{benchmark}{name}": value
        for benchmark, one in sorted(files.items())
        for name, value in json.loads(one.read_text()).items()
        # Scores have a separate table with their intervals.
        if name not in ("score", "low", "high")
    }


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [*markdown_table(head, rows, is_of_numbers=True), ""] if rows else []


def has_mlflow_run(stage: DvcStage, env: Mapping[str, str]) -> bool:
    """True where MLflow shows the stage: every stage with metrics, unless tracking is off."""
    return bool(stage.metrics) and env.get("RETRACE_TRACKING") != "off"


def mlflow_link(run: Mapping[str, str]) -> str:
    """Returns markdown that leads to a run of the ledger, or of the graph; its bare id where no server is known."""
    if not run.get("run_id"):
        return ""
    address = mlflow_page(run)
    return f"[MLflow run]({address})" if address else f"MLflow run `{run['run_id']}`"


def mlflow_page(run: Mapping[str, str], inside: str = "") -> str:
    """Returns the address of a run, or of a page `inside` it; "" where run or server are unknown."""
    if not run.get("run_id") or not _base():
        return ""
    place = "/".join(filter(None, [run["run_id"], inside]))
    return f"{_base()}/#/experiments/{run['experiment_id']}/runs/{place}?{TRAINING_PAGES}"


def mlflow_search(stage: str) -> str:
    """Address of all runs of a stage in MLflow; "" where no server is known.

    MLflow's start page where its experiment is not known.
    """
    experiment, base = os.environ.get("RETRACE_MLFLOW_EXPERIMENT"), _base()
    if not experiment or not base:
        return base
    search = quote(f"tags.`dvc.stage` = '{stage}'")
    return f"{base}/#/experiments/{experiment}/runs?searchFilter={search}&{TRAINING_PAGES}"


def _base() -> str:
    """Returns the server's address, "" for none: `RETRACE_MLFLOW_URL` is set by the server that `make ui` started."""
    base = os.environ.get("RETRACE_MLFLOW_URL") or os.environ.get("MLFLOW_TRACKING_URI", "")
    return without_password(base.rstrip("/")) if base.startswith("http") else ""
