"""Writes the results of an ablation: page, JSON metrics, Markdown, MLflow runs.

`show_claims` puts the claims of all ablations into one table: the paper's results, and those of each world here.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from pipelines.ablating.definition import Ablation, Claim, Metric, ablation_names, read_ablation
from pipelines.ablating.plan import PlannedRun, plan_runs
from pipelines.ablating.results import (
    Difference,
    Judged,
    MeasuredVariant,
    VariantRow,
    finished,
    is_one_code,
    judge_claims,
    measure,
    record_folder,
    rows_of,
)
from pipelines.records.tracking_store import is_tracking_off, mlflow_faults, open_store, whole_run
from stages.algorithms.estimators import Interval
from stages.foundations.errors import UserError
from stages.foundations.files import stable_hash, write_json, write_text_atomically
from stages.pages.drawing import WIDE, Chart, Row, intervals
from stages.pages.page import (
    ABSENT,
    Cell,
    html,
    markdown_table,
    note,
    page,
    paragraph,
    table,
    verdict_class,
    wide_chart,
)

if TYPE_CHECKING:
    from stages.observe.mlflow_store import MlflowStore


class AblationFindings:
    """All results of the finished runs; `about` states which runs they are."""

    def __init__(self, ablation: Ablation, state: Path, runs: Sequence[PlannedRun]) -> None:
        """UserError when no run of `runs` is finished, with any code."""
        # With any code: the page marks runs whose code differs, and an old result is better than none.
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
            # Twelve digits identify a commit for readers; run.json has the whole hash.
            "commits": sorted({record["commit"][:12] for record in done.values()}),
            "is_one_code": is_one_code(done.values()),
            "is_dirty": any(record["is_dirty"] for record in done.values()),
            "seconds": sum(record["seconds"] for record in done.values()),
        }

    def markdown(self) -> str:
        """The section of docs/evidence/ablations.md: claim, table, verdicts."""
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
        for one in tables:
            lines += ["", *markdown_table(one.head, one.rows)]
        return "\n".join(lines) + "\n"

    def metrics(self) -> dict[str, Any]:
        """Returns everything as JSON, in the metrics' units (fractions, tokens)."""
        variants = {name: {row.variant: _row(row) for row in rows} for name, rows in self.tables.items()}
        return {
            "ablation": self.ablation.name,
            **self.about,
            "metrics": variants,
            "claims": [_judged(one) for one in self.judged],
        }

    def write(self, folder: Path) -> Path:
        """Writes <name>.html and <name>.json; returns the page's path."""
        place = folder / f"{self.ablation.name}.html"
        write_text_atomically(place, render_page(self.ablation, self.tables, self.judged, self.about))
        # The page is for readers. Tests, the table of all claims and MLflow read this file.
        write_json(folder / f"{self.ablation.name}.json", self.metrics())
        return place

    def track(self) -> bool:
        """Creates one MLflow run for each variant and one for the whole; False when these results exist already.

        UserError when MLflow cannot be reached; runs that a killed call has created are not created again.
        """
        if is_tracking_off():
            return False
        with mlflow_faults("the results are kept, and `retrace mirror` adds them to MLflow later"):
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
    """Creates the run unless MLflow has it completely."""
    from mlflow.entities import Metric

    # The hash of all results: after another run the numbers are new, and so are the runs in MLflow.
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


def _numbers(row: VariantRow) -> dict[str, float]:
    own = row.to_baseline
    found = {"mean": row.measured.mean, "seed_sd": row.measured.seed_sd}
    if own:
        found |= {"minus_baseline": own.mean}
        for name, interval in (("problems", own.over_problems), ("seeds", own.over_seeds)):
            if interval:
                found |= {f"minus_baseline_{name}_low": interval.low, f"minus_baseline_{name}_high": interval.high}
    return {name: value for name, value in found.items() if value is not None}


def _row(row: VariantRow) -> dict[str, Any]:
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


ClaimKey = tuple[str, str]
"""The paper's reference and the claim: ablations of one paper in several worlds share both texts."""


def show_claims(root: Path, state: Path) -> str:
    """The claims of all finished runs as Markdown, and how many hold. UserError when nothing is finished."""
    found = _findings(root, state)
    if not found:
        raise UserError("no ablation has a finished run: run `retrace ablate NAME`")
    claims = claims_by_world(found)
    tables = claims, count_claims(claims)
    return "\n".join("\n".join(markdown_table(one.head, one.rows)) + "\n" for one in tables)


def claims_by_world(found: Iterable[tuple[Ablation, Sequence[Judged]]]) -> Table:
    """One row per claim, one column per world (the first word of the recipe's name), grouped by paper."""
    cells: dict[ClaimKey, dict[str, str]] = defaultdict(dict)
    of_paper: dict[ClaimKey, str] = {}
    worlds: list[str] = []
    for ablation, judged in found:
        # Recipes of one world share the first word of their names: laptop, laptop-asynchronous.
        world = ablation.recipe.partition("-")[0]
        worlds += [world] if world not in worlds else []
        for one in judged:
            place = ablation.paper.reference, describe_claim(ablation, one.claimed)
            cells[place][world] = _cell(ablation, one)
            # The paper has one number for a claim, which is the same for every world.
            of_paper.setdefault(place, published(one.published, True))
    papers = list(dict.fromkeys(reference for reference, _ in cells))
    rows = [
        [*place, of_paper[place], *(cells[place].get(world, ABSENT) for world in worlds)]
        for paper in papers
        for place in cells
        if place[0] == paper
    ]
    return Table("Claims", ["paper", "claim", "there", *worlds], rows)


VERDICTS = ("agrees", "leans for", "not separated", "leans against", "disagrees")
NUMBERED, DIRECTION, CONTROL = "the paper has a number", "the paper has a direction", "control, no paper"


def count_claims(claims: Table) -> Table:
    """Counts verdicts in a table of `claims_by_world`, by world and by what the paper says of the claim."""
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for paper, _, there, *cells in claims.rows:
        kind = CONTROL if "no paper" in paper else NUMBERED if there != ABSENT else DIRECTION
        for world, cell in zip(claims.head[3:], cells, strict=True):
            if cell != ABSENT:
                counts[world, kind][cell.rpartition(": ")[2].strip("*")] += 1
    rows = [
        [world, kind, *map(str, (found.total(), *(found[one] for one in VERDICTS)))]
        for world in claims.head[3:]
        for kind in (NUMBERED, DIRECTION, CONTROL)
        if (found := counts[world, kind])
    ]
    return Table("Counts", ["world", "claims", "tried", *VERDICTS], rows)


def _findings(root: Path, state: Path) -> list[tuple[Ablation, list[Judged]]]:
    found = []
    for name in ablation_names(root):
        ablation = read_ablation(root, name)
        try:
            found.append((ablation, AblationFindings(ablation, state, plan_runs(root, ablation, None, None)).judged))
        except UserError:
            continue  # none of its runs is finished, or it is incomplete: the table shows the rest
    return found


def _cell(ablation: Ablation, one: Judged) -> str:
    if one.found.mean is None:
        return ABSENT
    return f"{format_difference(one.found, ablation.metrics[one.claimed.metric].unit)}: {one.verdict}"


def render_page(
    ablation: Ablation, tables: Mapping[str, Sequence[VariantRow]], judged: Sequence[Judged], about: Mapping[str, Any]
) -> str:
    """The page as HTML; equal arguments give equal text."""
    source = f"({ablation.paper.reference}; its numbers: {ablation.paper.measures})"
    sections = [
        ("result", "Claims", "What the paper claims, and what was found", _claims(ablation, judged, about)),
        ("metrics", "Measures", "Measures", _measures(ablation, tables)),
        ("variants", "Variants", "Variants", _variants(ablation)),
        ("same", "The same for all", "The same for all variants", _same(ablation, about)),
    ]
    return page(
        ablation.title,
        f"Ablation {ablation.name}",
        sections,
        about=paragraph('{} <span class="quiet">{}</span>', ablation.claim, source),
        window=f"{ablation.name}: {ablation.title}",
    )


def _claims(ablation: Ablation, judged: Sequence[Judged], about: Mapping[str, Any]) -> Markup:
    warnings = {
        f"Some runs are missing: {'; '.join(about['missing'])}.": about["missing"],
        "dirty: uncommitted code was run.": about["is_dirty"],
        "The runs were not all made by the same code.": not about["is_one_code"],
    }
    claims = claim_table(ablation, judged)
    rows = [[*cells, Cell(verdict, verdict_class(verdict))] for *cells, verdict in claims.rows]
    told = (
        "The difference has two 95% intervals, one over problems and one over seeds; a single seed has no second one. "
        "“agrees”: every seed and both intervals lie on the claimed side of 0. “leans for”: all of them but the "
        "interval over seeds, so training again may reverse the result. “disagrees” and “leans against” mean the same "
        "on the other side of 0. A claim without runs is “not tried”, and every other claim is “not separated”."
    )
    return html(
        "{}{}{}",
        [note([sentence]) for sentence, holds in warnings.items() if holds],
        table("Claims", claims.head, rows, kind="scores words"),
        paragraph(told, kind="quiet"),
    )


def _measures(ablation: Ablation, tables: Mapping[str, Sequence[VariantRow]]) -> Markup:
    told = (
        "Mean ± standard deviation over seeds. Differences: [95% interval over problems, scores averaged over seeds] "
        "(95% t-interval over the paired differences of the seeds). In the plots: hollow, the seeds; filled, their "
        "mean; dotted, the baseline's mean; band and line, the two intervals of the difference, drawn from the dotted "
        "line and cut at the frame."
    )
    shown = []
    for name, rows in tables.items():
        content, chart = metric_table(ablation, name, rows), dot_plot(ablation.metrics[name], rows)
        listed = table(content.caption, content.head, content.rows, kind="scores words")
        shown.append(html("<h3>{}</h3>\n{}{}", content.caption, wide_chart(chart), listed))
    return html("{}{}", shown, paragraph(told, kind="quiet"))


def _variants(ablation: Ablation) -> Markup:
    on_top = '<span class="quiet">on top of {}</span>'
    listed = [
        html(
            "<dt>{}</dt>\n<dd>{} {}{}</dd>\n",
            *(name, variant.says, variant.builds_on and html(on_top, variant.builds_on), _changes(variant.changes)),
        )
        for name, variant in ablation.variants.items()
    ]
    return html('<dl class="card">\n{}</dl>\n', listed)


def _changes(changes: Mapping[str, Any]) -> list[Markup]:
    return [html("<br><code>{}: {}</code>", key, str(value)) for key, value in changes.items()]


def _same(ablation: Ablation, about: Mapping[str, Any]) -> Markup:
    facts = {
        "recipe": html("{}{}{}", ablation.recipe, ablation.overrides and ", with", _changes(ablation.overrides)),
        "seeds": ", ".join(map(str, about["seeds"])),
        "code": ", ".join(about["commits"]),
        "time": f"{about['seconds'] / 60:.0f} minutes of runs, added up",
    }
    listed = [html("<dt>{}</dt><dd>{}</dd>\n", *fact) for fact in facts.items()]
    return html('{}<dl class="card">\n{}</dl>\n', paragraph("{}", ablation.notes), listed)


def dot_plot(metric: Metric, rows: Sequence[VariantRow]) -> Chart | None:
    """Each variant: a hollow dot per seed, the mean, and the baseline's mean plus each interval of the difference.

    Variants without a number are left out; None where no variant has one.
    """
    known = [row for row in rows if row.measured.values]
    if not known:
        return None
    # Intervals are of differences. Added to the baseline's mean, they are on the scale of the dots.
    base = next((row.measured.mean for row in rows if row.to_baseline is None), None)
    factor = 100 if metric.unit == "percent" else 1
    drawn = []
    for row in known:
        spans: list[tuple[float, float] | None] = []
        if base is not None and row.to_baseline is not None:
            for own in (row.to_baseline.over_seeds, row.to_baseline.over_problems):
                spans.append((factor * (base + own.low), factor * (base + own.high)) if own else None)
        mean = None if row.measured.mean is None else factor * row.measured.mean
        dots = [factor * value for value in row.measured.values]
        drawn.append(Row(row.variant, mean, spans, dots, number(row.measured.mean, metric.unit)))
    label = f"{metric.label} by variant: " + ", ".join(f"{row.name} {row.text}" for row in drawn)
    # A wide t-interval of few seeds must not flatten everything else: intervals are cut at the frame.
    seen = [value for row in drawn for value in row.dots]
    room = max(max(seen) - min(seen), 0.02 * abs(max(seen)), 0.001 * factor)
    ends = [end for row in drawn for span in row.spans if span for end in span]
    low = max(min([*seen, *ends]), min(seen) - room) - 0.1 * room
    high = min(max([*seen, *ends]), max(seen) + room) + 0.1 * room
    more = {"rule": None if base is None else factor * base, "limits": (low, high), "width": WIDE}
    words = {"spoken": label, "x_label": metric.label + unit_suffix(metric)}
    if metric.unit == "tokens":
        words["tick"] = lambda value: number(value, metric.unit)
    return intervals(f"dots-{metric.label}", metric.label, drawn, **more, **words)


@dataclass(frozen=True)
class Table:
    """A table as text."""

    caption: str
    head: list[str]
    rows: list[list[str]]


def number(value: float | None, unit: str, is_difference: bool = False) -> str:
    """Formats 71.2 for a percentage, 1.25M or 340k for tokens; a difference has its sign."""
    if value is None:
        return ABSENT
    sign = "+" if is_difference and value > 0 else ""
    if unit == "percent":
        return f"{sign}{100 * value:.1f}"
    if unit == "tokens" and abs(value) >= 1_000:
        return f"{sign}{value / 1e6:.2f}M" if abs(value) >= 1e6 else f"{sign}{value / 1e3:.0f}k"
    return f"{sign}{value:.3g}"


def spread(measured: MeasuredVariant, unit: str) -> str:
    """Mean ± standard deviation over seeds; and how many seeds have no number, if any."""
    # A mean over the seeds that reached the goal would flatter the variant: the count says how many did not.
    if measured.mean is None:
        count, missing = len(measured.by_seed), len(measured.by_seed) - len(measured.values)
        return ABSENT if missing == count else f"{ABSENT} (in {missing} of {count} seeds)"
    sd = measured.seed_sd
    return number(measured.mean, unit) + (f" ± {number(sd, unit)}" if sd is not None else "")


def describe_missing(planned: Sequence[tuple[str, int]], done: Sequence[tuple[str, int]]) -> list[str]:
    """Variant and seed of the unfinished runs, grouped by equal sets of seeds."""
    variants = list(dict.fromkeys(variant for variant, _ in planned))
    left = {name: {seed for variant, seed in planned if variant == name} for name in variants}
    for variant, seed in done:
        left[variant].discard(seed)
    # Seeds that no variant has yet are named once, and not with every variant.
    of_all = set.intersection(*left.values()) if len(variants) > 1 else set()
    groups: dict[tuple[int, ...], list[str]] = {}
    for variant, seeds in left.items():
        groups.setdefault(tuple(sorted(seeds - of_all)), []).append(variant)
    lines = [f"{_seeds(sorted(of_all))} of every variant"] if of_all else []
    return lines + [f"{_seeds(seeds)} of {', '.join(names)}" for seeds, names in groups.items() if seeds]


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def interval(found: Interval | None, unit: str) -> str:
    if found is None:
        return ABSENT
    return f"{number(found.low, unit, True)} to {number(found.high, unit, True)}"


def format_difference(found: Difference | None, unit: str) -> str:
    """The mean difference, [interval over problems] and (interval over seeds)."""
    if found is None or found.mean is None:
        return ABSENT
    text = number(found.mean, unit, True)
    if found.over_problems:
        text += f" [{interval(found.over_problems, unit)}]"
    return text + (f" ({interval(found.over_seeds, unit)})" if found.over_seeds else "")


def published(value: float | None, is_difference: bool = False) -> str:
    if value is None:
        return ABSENT
    # In the unit of the paper, which may differ from ours: no conversion.
    return f"{value:+.4g}" if is_difference else f"{value:.4g}"


def metric_table(ablation: Ablation, name: str, rows: Sequence[VariantRow]) -> Table:
    """One metric: every variant with its seed mean, differences and the paper's number."""
    metric = ablation.metrics[name]
    head = ["variant", metric.label + unit_suffix(metric), f"minus {ablation.baseline}"]
    head += ["minus the one before"] if ablation.is_ladder else []
    # Papers often publish one metric of several: a column of dashes says nothing.
    has_published = any(row.published is not None for row in rows)
    lines = []
    for row in rows:
        line = [row.variant, spread(row.measured, metric.unit), format_difference(row.to_baseline, metric.unit)]
        line += [format_difference(row.to_previous, metric.unit)] if ablation.is_ladder else []
        lines.append(line + ([published(row.published)] if has_published else []))
    return Table(metric.label, head + (["paper"] if has_published else []), lines)


def overview_table(ablation: Ablation, tables: dict[str, Sequence[VariantRow]]) -> Table:
    """The metrics after the first one: seed means only."""
    names = list(ablation.metrics)[1:]
    head = ["variant", *(ablation.metrics[name].label + unit_suffix(ablation.metrics[name]) for name in names)]
    lines = [
        [row.variant, *(_mean_cell(tables[name][place], ablation.metrics[name].unit) for name in names)]
        for place, row in enumerate(tables[next(iter(tables))])
    ]
    return Table("Other measures", head, lines)


def _mean_cell(row: VariantRow, unit: str) -> str:
    paper = f"; paper {published(row.published)}" if row.published is not None else ""
    return spread(row.measured, unit) + paper


def unit_suffix(metric: Metric) -> str:
    return {"percent": ", %", "tokens": ", tokens", "number": ""}[metric.unit]


def claim_table(ablation: Ablation, judged: Sequence[Judged]) -> Table:
    """The paper's claims with our results."""
    lines = []
    for one in judged:
        unit = ablation.metrics[one.claimed.metric].unit
        signs = ", ".join(number(value, unit, True) for value in one.found.by_seed.values())
        lines.append(
            [
                describe_claim(ablation, one.claimed),
                published(one.published, True),
                format_difference(one.found, unit),
                signs or ABSENT,
                one.verdict,
            ]
        )
    return Table("Claims", ["claim", "paper", "here", "seed by seed", "verdict"], lines)


def describe_claim(ablation: Ablation, claimed: Claim) -> str:
    metric = ablation.metrics[claimed.metric]
    if claimed.direction == "same":
        within = number(claimed.margin, metric.unit)
        return f"{metric.label}: {claimed.variant} the same as {claimed.against} (within {within})"
    return f"{metric.label}: {claimed.variant} {claimed.direction} than {claimed.against}"
