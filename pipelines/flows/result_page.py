"""What a run of the graph is called in Prefect's lists, and what it says at its end: state message and artifact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.flows.stage_page import RAN, UNCHANGED, mlflow_link, mlflow_page
from pipelines.graph.resolved_recipes import read_recipe
from pipelines.graph.result import changes_from_recipe, seconds_in_words, told_gain
from pipelines.records.graph_run import variation
from stages.foundations.errors import UserError
from stages.foundations.params import read_yaml
from stages.observe.tracking import recipe_name


@dataclass(frozen=True)
class Done:
    """What a run of the graph did."""

    outcomes: Mapping[str, str]
    """`RAN`, `restored` or `UNCHANGED` for each stage, in the graph's order."""
    seconds: float
    record: Mapping[str, Any] | None = None
    """Of the run of the graph (pipelines/records/graph_run.py); None where none ended, or nothing is tracked."""

    def told(self) -> str:
        """`3 of 24 stages ran`, and how many were restored."""
        restored = len(self.stages("restored"))
        told = f"{len(self.stages(RAN))} of {len(self.outcomes)} stages ran"
        return f"{told}, {restored} restored from DVC's cache" if restored else told

    def stages(self, outcome: str) -> list[str]:
        """The stages that ended so."""
        return [name for name, ended in self.outcomes.items() if ended == outcome]


def run_name(root: Path, recipe: str) -> str:
    """`laptop rl.group_size=8 seed 0`: the recipe, what params.yaml changes in it, and the seed.

    A `recipe` that is named has no changes. A project without recipes has only the seed.
    """
    try:
        params = read_recipe(root, recipe) if recipe else read_yaml(root / "params.yaml")
    except UserError:  # the flow itself reports it
        return recipe
    changes = {} if recipe else changes_from_recipe(root)
    name = recipe or recipe_name(root).removesuffix("+changes")
    seed = f"seed {params['seed']}" if "seed" in params else ""
    return " ".join(filter(None, [name, variation(changes), seed]))


def result_message(result: Mapping[str, Any] | None, done: Done) -> str:
    """One sentence for the flow's state: the last policy's scores, the first gain on each benchmark, what ran."""
    if not result:
        return done.told()
    scores = {
        score["benchmark"]: score for score in result["scores"]
    }  # the last policy's, which are the last
    gains = {gain["benchmark"]: gain for gain in reversed(result["gains"])}
    parts = []
    for benchmark, score in scores.items():
        gain = gains.get(benchmark)
        where = f" on {benchmark}" if len(scores) > 1 else ""
        over = f", {100 * gain['value']:+.1f} over {gain['baseline']}" if gain else ""
        parts.append(f"{score['policy']} {_percent(score)}{where}{over}")
    unscored = (gain for name, gain in gains.items() if name not in scores)
    parts += [
        f"{gain['policy']} - {gain['baseline']}, {gain['metric']}: {told_gain(gain)}" for gain in unscored
    ]
    return "; ".join([*parts, done.told(), *(f"WARNING: {warning}" for warning in result["warnings"])])


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
    for outcome in (RAN, "restored"):
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
    """A browser opens no file for a page of a server, so the link leads to the copy in MLflow."""
    page = (record.get("page") or {}).get("path", "")
    address = mlflow_page(record, f"artifacts/{Path(page).name}") if page else ""
    return f" ([in MLflow]({address}))" if address else ""


def _scores(result: Mapping[str, Any]) -> list[str]:
    lines = []
    for benchmark in dict.fromkeys(score["benchmark"] for score in result["scores"]):
        scores = [score for score in result["scores"] if score["benchmark"] == benchmark]
        first = scores[0]
        lines += [
            f"### {benchmark}: {first['metric']} on {first['problems']} {first.get('unit', 'problems')}",
            "",
        ]
        lines += ["| policy | score | 95% interval |", "|---|--:|--:|"]
        for score in scores:
            low, high = 100 * score["low"], 100 * score["high"]
            cells = [score["policy"], f"{100 * score['value']:.1f} %", f"{low:.1f} to {high:.1f}"]
            lines.append(
                f"| {' | '.join(f'**{cell}**' if score is scores[-1] else cell for cell in cells)} |"
            )
        lines.append("")
    return lines


def _gains(result: Mapping[str, Any]) -> list[str]:
    if not result["gains"]:
        return []
    lines = ["### Gains", "", "| benchmark | policies | score | gain, 95% interval |", "|---|---|---|--:|"]
    lines += [
        f"| {gain['benchmark']} | {gain['policy']} over {gain['baseline']} | {gain['metric']} | {told_gain(gain)} |"
        for gain in result["gains"]
    ]
    return [*lines, ""]


def _percent(score: Mapping[str, float]) -> str:
    return f"{100 * score['value']:.1f} % [{100 * score['low']:.1f}, {100 * score['high']:.1f}]"
