"""What the UI says about a stage that has ended: what happened, resources, the link to MLflow, the metrics."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from pipelines.graph.graph import DvcStage
from pipelines.runtime.usage import Usage
from stages.foundations.addresses import without_password
from stages.foundations.stage_graph import METRICS
from stages.observe.stage_timings import latest_runs

TRAINING_PAGES = "workflowType=machine_learning"
"""Without it MLflow shows its pages for agents' traces."""
RAN, UNCHANGED = "ran", "up to date"
OUTCOMES = {"didn't change, skipping": UNCHANGED, "is cached - skipping run": "restored"}
"""What a stage's task did, by the line of DVC that says so; without such a line the stage ran."""
_SENTENCES = {
    RAN: "Finished.",
    "restored": "Restored from DVC's run cache: nothing was computed.",
    UNCHANGED: "Up to date: another run did its work in the meantime.",
}
HEADLINES = "data/headline/"
"""Where stages write the few numbers that `dvc metrics show` has."""


@dataclass(frozen=True)
class StagePage:
    """What is known when a stage has ended well."""

    stage: DvcStage
    root: Path
    env: Mapping[str, str]
    """The environment in which it ran."""
    outcome: str
    """`RAN`, or an outcome of `OUTCOMES`."""
    slots: str
    usage: Usage


def describe(page: StagePage) -> str:
    """Markdown: what happened, a link to the stage's last MLflow run, and its metrics as a table."""
    lines = [f"## {page.stage.name}", "", _SENTENCES[page.outcome], ""]
    if page.outcome == RAN:
        lines += [f"Resources: {page.slots}, {page.usage.told()}", ""]
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
    """Lines of markdown: scores with their intervals, the headline numbers, then all other numbers of a metric file.

    Bold is the score that the report compares policies by: the average over samples, on all problems of a benchmark.
    """
    metrics = json.loads((root / path).read_text())
    best, others = _scores(metrics)
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
    """The bold scores of `metric_tables` in one sentence; "" for a file without scores."""
    metrics = json.loads((root / path).read_text())
    return ", ".join(
        f"{name} {metrics[name]:.3f} [{metrics[f'{name}_low']:.3f}, {metrics[f'{name}_high']:.3f}]"
        for name in _scores(metrics)[0]
    )


def _scores(metrics: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """Names of the numbers that have an interval: those to compare policies by, and the others."""

    def rank(name: str) -> tuple[bool, bool]:
        return "clean_" in name, "/avg" not in name

    names = sorted((name for name in metrics if {f"{name}_low", f"{name}_high"} <= set(metrics)), key=rank)
    best = [name for name in names if rank(name) == rank(names[0])]
    return best, names[len(best) :]


def _numbers(values: Mapping[str, float]) -> list[tuple[str, ...]]:
    return [(name, f"{value:.6g}") for name, value in values.items()]


def _interval(metrics: Mapping[str, float], name: str) -> str:
    return f"{metrics[f'{name}_low']:.4f} to {metrics[f'{name}_high']:.4f}"


def _headlines(root: Path, path: str) -> dict[str, float]:
    """The numbers that `dvc metrics show` has of the stage: a file, or a folder with a file for each benchmark."""
    file = root / HEADLINES / path.removeprefix(METRICS)
    files = (
        {"": file} if file.is_file() else {f"{one.stem}/": one for one in file.with_suffix("").glob("*.json")}
    )
    return {
        f"{benchmark}{name}": value
        for benchmark, one in sorted(files.items())
        for name, value in json.loads(one.read_text()).items()
        if name not in ("score", "low", "high")  # scores have a table of their intervals
    }


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return [f"| {' | '.join(head)} |", "|---" + "|--:" * (len(head) - 1) + "|", *lines, ""]


def has_mlflow_run(stage: DvcStage, env: Mapping[str, str]) -> bool:
    """Whether MLflow shows the stage: each one with metrics, unless tracking is off."""
    return bool(stage.metrics) and env.get("RETRACE_TRACKING") != "off"


def mlflow_link(run: Mapping[str, str]) -> str:
    """Markdown that leads to a run of the ledger, or of the graph; its bare id where no server is known."""
    if not run.get("run_id"):
        return ""
    address = mlflow_page(run)
    return f"[MLflow run]({address})" if address else f"MLflow run `{run['run_id']}`"


def mlflow_page(run: Mapping[str, str], inside: str = "") -> str:
    """Address of a run, or of a page `inside` it; "" where run or server are unknown."""
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
    """The server's address, "" for none: `RETRACE_MLFLOW_URL` is that of the server that `make ui` started."""
    base = os.environ.get("RETRACE_MLFLOW_URL") or os.environ.get("MLFLOW_TRACKING_URI", "")
    return without_password(base.rstrip("/")) if base.startswith("http") else ""
