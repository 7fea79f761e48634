"""Writes what an ablation found: page, JSON metrics, Markdown, MLflow runs.

`show_claims` puts the claims of all ablations into one table: what the paper has, and what each world here found.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.ablating.definition import Ablation, ablation_names, read_ablation
from pipelines.ablating.page import (
    ABSENT,
    Table,
    claim_table,
    describe_claim,
    describe_missing,
    format_difference,
    metric_table,
    overview_table,
    published,
    render_page,
)
from pipelines.ablating.plan import PlannedRun, plan_runs
from pipelines.ablating.results import (
    Difference,
    Judged,
    Row,
    finished,
    is_one_code,
    judge_claims,
    measure,
    record_folder,
    rows_of,
)
from pipelines.records.tracking_store import mlflow_faults, open_store
from stages.foundations.errors import UserError
from stages.foundations.files import stable_hash, write_json, write_text_atomically
from stages.pages.page import markdown_table

if TYPE_CHECKING:
    from stages.observe.mlflow_store import MlflowStore


class Findings:
    """Everything that the finished runs say; `about` tells which runs they are."""

    def __init__(self, ablation: Ablation, state: Path, runs: Sequence[PlannedRun]) -> None:
        """UserError when no run of `runs` is finished, whatever code it ran."""
        records = {run: finished(state, ablation.name, run, None) for run in runs}
        done = {run: record for run, record in records.items() if record}
        if not done:
            raise UserError(f"ablation {ablation.name} has no finished run: run `retrace ablate {ablation.name}`")
        places = {run: record_folder(state, ablation.name, run) for run in done}
        measured = measure(ablation, places)
        self.ablation = ablation
        self.tables = {name: rows_of(ablation, name, own) for name, own in measured.items()}
        self.judged = judge_claims(ablation, measured)
        self.about: dict[str, Any] = {
            "missing": describe_missing(*([(run.variant, run.seed) for run in some] for some in (runs, done))),
            "seeds": sorted({run.seed for run in done}),
            "commits": sorted({record["commit"][:12] for record in done.values()}),
            "is_one_code": is_one_code(done.values()),
            "is_dirty": any(record["is_dirty"] for record in done.values()),
            "seconds": sum(record["seconds"] for record in done.values()),
        }

    def markdown(self) -> str:
        """The section of docs/ablations.md: claim, table, verdicts."""
        first, *others = self.ablation.metrics
        tables = [metric_table(self.ablation, first, self.tables[first])]
        tables += [overview_table(self.ablation, self.tables)] if others else []
        tables.append(claim_table(self.ablation, self.judged))
        seeds = ", ".join(map(str, self.about["seeds"]))
        paper, dirty = self.ablation.paper, "; dirty" if self.about["is_dirty"] else ""
        claim = f"{self.ablation.claim} ({paper.reference}; its numbers: {paper.measures}.)"
        code = f"Seeds {seeds}; code {', '.join(self.about['commits'])}{dirty}."
        lines = [f"## {self.ablation.name}", "", claim, "", code]
        if self.about["missing"]:
            lines.append(f"Missing: {'; '.join(self.about['missing'])}.")
        for table in tables:
            lines += ["", *markdown_table(table.head, table.rows)]
        return "\n".join(lines) + "\n"

    def metrics(self) -> dict[str, Any]:
        """Everything as JSON can hold it, in the metrics' own units (fractions, tokens)."""
        variants = {name: {row.variant: _row(row) for row in rows} for name, rows in self.tables.items()}
        return {
            "ablation": self.ablation.name,
            **self.about,
            "metrics": variants,
            "claims": [_judged(one) for one in self.judged],
        }

    def write(self, folder: Path) -> Path:
        """Writes <name>.html and <name>.json; returns the page's path."""
        page = folder / f"{self.ablation.name}.html"
        write_text_atomically(page, render_page(self.ablation, self.tables, self.judged, self.about))
        write_json(folder / f"{self.ablation.name}.json", self.metrics())
        return page

    def track(self) -> bool:
        """One MLflow run for each variant and one for the whole; False when these results are there already.

        UserError when MLflow cannot be reached; what a killed call has made is not made again.
        """
        if os.environ.get("RETRACE_TRACKING") == "off":
            return False
        with mlflow_faults("`retrace mirror` gives it the results, which are kept"):
            return self._track(open_store())

    def _track(self, store: MlflowStore) -> bool:
        tags = {"ablation": self.ablation.name, "kind": "ablation_result", "results": stable_hash(self.metrics())}
        is_new = False
        for variant in dict.fromkeys(row.variant for rows in self.tables.values() for row in rows):
            numbers = {
                f"{name}/{key}": value
                for name, rows in self.tables.items()
                for row in rows
                if row.variant == variant
                for key, value in _numbers(row).items()
            }
            is_new |= _log(store, f"{self.ablation.name}: {variant}", {**tags, "variant": variant}, numbers, {})
        verdicts = {
            f"claim.{place}": f"{one.claimed.metric}: {one.claimed.variant} {one.claimed.direction} "
            f"{one.claimed.against}: {one.verdict}"
            for place, one in enumerate(self.judged)
        }
        files = {
            f"{self.ablation.name}.md": self.markdown(),
            f"{self.ablation.name}.json": json.dumps(self.metrics(), indent=2),
        }
        tags |= {**verdicts, "variant": "all"}
        return _log(store, f"{self.ablation.name}: results", tags, {}, files) or is_new


def _log(
    store: MlflowStore, name: str, tags: Mapping[str, str], numbers: Mapping[str, float], files: Mapping[str, str]
) -> bool:
    """Makes the run unless MLflow has it whole."""
    from mlflow.entities import Metric

    from pipelines.records.stage_runs import whole_run

    known = f"tags.results = '{tags['results']}' and tags.variant = '{tags['variant']}'"
    if store.client.search_runs([store.experiment_id], known, max_results=1):
        return False
    now = int(time.time() * 1000)
    with whole_run(store, {"ms": now, "name": name, "params": {}, "inputs": {}}, tags) as run_id:
        store.client.log_batch(run_id, metrics=[Metric(key, value, now, 0) for key, value in numbers.items()])
        for file, text in files.items():
            store.client.log_text(run_id, text, file)
        store.end(run_id, "FINISHED", now)
    return True


def _numbers(row: Row) -> dict[str, float]:
    own = row.to_baseline
    found = {"mean": row.measured.mean, "seed_sd": row.measured.seed_sd}
    if own:
        found |= {"minus_baseline": own.mean}
        for name, interval in (("problems", own.over_problems), ("seeds", own.over_seeds)):
            if interval:
                found |= {f"minus_baseline_{name}_low": interval.low, f"minus_baseline_{name}_high": interval.high}
    return {name: value for name, value in found.items() if value is not None}


def _row(row: Row) -> dict[str, Any]:
    return {
        "mean": row.measured.mean,
        "seed_sd": row.measured.seed_sd,
        "by_seed": {str(seed): value for seed, value in row.measured.by_seed.items()},
        "minus_baseline": _difference(row.to_baseline),
        "minus_previous": _difference(row.to_previous),
        "published": row.published,
    }


def _difference(found: Difference | None) -> dict[str, Any] | None:
    if found is None:
        return None
    intervals = {"over_problems": found.over_problems, "over_seeds": found.over_seeds}
    return {
        "mean": found.mean,
        "by_seed": {str(seed): value for seed, value in found.by_seed.items()},
        **{name: list(own[1:]) if own else None for name, own in intervals.items()},
    }


def _judged(one: Judged) -> dict[str, Any]:
    return {
        **one.claimed.model_dump(),
        "found": _difference(one.found),
        "published": one.published,
        "verdict": one.verdict,
    }


Place = tuple[str, str]
"""The paper's reference and the claim: ablations of one paper in several worlds share both words."""


def show_claims(root: Path, state: Path) -> str:
    """The table of all finished runs as Markdown. UserError when nothing is finished."""
    found = _findings(root, state)
    if not found:
        raise UserError("no ablation has a finished run: run `retrace ablate NAME`")
    table = claims_by_world(found)
    return "\n".join(markdown_table(table.head, table.rows)) + "\n"


def claims_by_world(found: Iterable[tuple[Ablation, Sequence[Judged]]]) -> Table:
    """A row for each claim, a column for each world (the first word of the recipe's name), papers together."""
    cells: dict[Place, dict[str, str]] = defaultdict(dict)
    of_paper: dict[Place, str] = {}
    worlds: list[str] = []
    for ablation, judged in found:
        world = ablation.recipe.partition("-")[0]
        worlds += [world] if world not in worlds else []
        for one in judged:
            place = ablation.paper.reference, describe_claim(ablation, one.claimed)
            cells[place][world] = _cell(ablation, one)
            of_paper.setdefault(place, published(one.published, True))
    papers = list(dict.fromkeys(reference for reference, _ in cells))
    rows = [
        [*place, of_paper[place], *(cells[place].get(world, ABSENT) for world in worlds)]
        for paper in papers
        for place in cells
        if place[0] == paper
    ]
    return Table("Claims", ["paper", "claim", "there", *worlds], rows)


def _findings(root: Path, state: Path) -> list[tuple[Ablation, list[Judged]]]:
    found = []
    for name in ablation_names(root):
        ablation = read_ablation(root, name)
        try:
            found.append((ablation, Findings(ablation, state, plan_runs(root, ablation, None, None)).judged))
        except UserError:
            continue  # none of its runs is finished, or it is not whole: the table says what there is
    return found


def _cell(ablation: Ablation, one: Judged) -> str:
    if one.found.mean is None:
        return ABSENT
    return f"{format_difference(one.found, ablation.metrics[one.claimed.metric].unit)}: {one.verdict}"
