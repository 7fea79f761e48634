"""What a run of the graph is called in Prefect's lists, and what it says at its end: state message and artifact."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.flows.stage_page import RAN, mlflow_search
from pipelines.graph.resolved_recipes import read_recipe
from pipelines.graph.result import changes_from_recipe
from stages.foundations.errors import UserError
from stages.foundations.params import read_yaml
from stages.observe.tracking import recipe_name

MOST_NAMED_CHANGES, MOST_NAMED_STAGES = 2, 3
"""More of them are counted in names and messages; the artifact lists them all."""


@dataclass
class Done:
    """What a run of the graph did: stages by outcome (`RAN`, `restored`, `unchanged`), in the graph's order."""

    stages: dict[str, list[str]] = field(default_factory=lambda: {RAN: [], "restored": [], "unchanged": []})

    def add(self, outcome: str, names: Sequence[str]) -> None:
        self.stages[outcome] += names

    def told(self) -> str:
        """`ran code, grade@sft` or `24 stages ran`, and what was restored."""
        ran, restored = self.stages[RAN], self.stages["restored"]
        parts = [
            f"{len(ran)} stages ran" if len(ran) > MOST_NAMED_STAGES else f"ran {', '.join(ran) or 'nothing'}"
        ]
        return "; ".join([*parts, *([f"{len(restored)} restored from DVC's cache"] if restored else [])])


def run_name(root: Path, recipe: str) -> str:
    """`laptop rl.group_size=8 s0`: recipe, changes of params.yaml and seed. A `recipe` that is named has no changes.

    What is unknown is left out, such as the recipe of a project without recipes.
    """
    try:
        params = read_recipe(root, recipe) if recipe else read_yaml(root / "params.yaml")
    except UserError:  # the flow itself reports it
        return recipe
    changes = {} if recipe else changes_from_recipe(root)
    named = [f"{key}={change.rpartition(' -> ')[2]}" for key, change in changes.items() if key != "seed"]
    name = recipe or recipe_name(root).removesuffix("+changes")
    seed = [f"s{params['seed']}"] if "seed" in params else []
    shown = named if len(named) <= MOST_NAMED_CHANGES else [f"{len(named)} changes"]
    return " ".join([*filter(None, [name]), *shown, *seed])


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
        over = f", {100 * gain['value']:+.1f} points over {gain['baseline']}" if gain else ""
        parts.append(f"{score['policy']} {_percent(score)} on {benchmark}{over}")
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
    for outcome, names in done.stages.items():
        if names:
            lines += [f"**{outcome.capitalize()}** ({len(names)}): {', '.join(names)}", ""]
    if result:
        lines += [f"**Report:** `{root / result['page']}`", ""]
    address = mlflow_search()
    if address and os.environ.get("RETRACE_TRACKING") != "off":
        lines += [f"**MLflow:** [all runs]({address})", ""]
    return "\n".join(lines)


def _scores(result: Mapping[str, Any]) -> list[str]:
    lines = []
    for benchmark in dict.fromkeys(score["benchmark"] for score in result["scores"]):
        scores = [score for score in result["scores"] if score["benchmark"] == benchmark]
        first = scores[0]
        lines += [f"### {benchmark}: {first['metric']} on {first['problems']} problems", ""]
        lines += ["| policy | score | 95% interval |", "|---|--:|--:|"]
        for score in scores:
            low, high = 100 * score["low"], 100 * score["high"]
            cells = [score["policy"], f"{100 * score['value']:.1f}%", f"{low:.1f} to {high:.1f}"]
            lines.append(
                f"| {' | '.join(f'**{cell}**' if score is scores[-1] else cell for cell in cells)} |"
            )
        lines.append("")
    return lines


def _gains(result: Mapping[str, Any]) -> list[str]:
    if not result["gains"]:
        return []
    lines = [
        "### Gains",
        "",
        "| benchmark | policies | score | points | 95% interval |",
        "|---|---|---|--:|--:|",
    ]
    for gain in result["gains"]:
        low, high = 100 * gain["low"], 100 * gain["high"]
        pair = f"{gain['policy']} over {gain['baseline']}"
        lines.append(
            f"| {gain['benchmark']} | {pair} | {gain['metric']} | **{100 * gain['value']:+.1f}** "
            f"| {low:+.1f} to {high:+.1f} |"
        )
    return [*lines, ""]


def _percent(score: Mapping[str, float]) -> str:
    return f"{100 * score['value']:.1f}% [{100 * score['low']:.1f}, {100 * score['high']:.1f}]"
