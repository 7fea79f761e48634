"""The page of a comparison: one self-contained file without scripts.

The terminal and Markdown use the same words. `as_json` is the whole comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pandas
from markupsafe import Markup

from pipelines.comparing.results import ComparisonFindings, PolicyComparison, SharedBenchmark
from pipelines.comparing.sides import Side
from pipelines.output import aligned
from stages.algorithms.estimators import FEWEST_PROBLEMS, LARGEST_P
from stages.pages.drawing import BAD, GOOD, INK, MUTED, WIDE, Chart, Row, cut, intervals
from stages.pages.page import (
    ABSENT,
    Cell,
    answer,
    count,
    details,
    html,
    markdown_table,
    metric_label,
    note,
    p_value,
    page,
    paragraph,
    points,
    span,
    table,
    verdict_class,
    visible_text,
    wide_chart,
)

# Colour is for findings about the setting. `higher` and `lower` concern two policies, and stay black.
_COLORS = {"better": GOOD, "worse": BAD, "not separated": MUTED}
CHARACTERS = 1_500
"""Length of a text; the page marks a text that was cut."""
RESPONSES = 3
"""Responses of each side to a problem: the greedy one, then the first sampled ones, of the first seed."""
PROBLEMS_ON_THE_PAGE = 400
"""For all comparisons: about 8 MB where every text has the greatest length."""


def render_page(findings: ComparisonFindings, families: Sequence[str], problems: int) -> str:
    """The page as HTML; equal arguments give equal text. All text is escaped: problems, responses are hostile.

    Of each pair and benchmark, on the first of the metrics `families`, at most `problems` won and as many lost.
    """
    names = ", ".join(side.name for side in findings.sides)
    sections = [
        ("result", "Result", "Result", _result(findings)),
        ("problems", "Problems won and lost", "Problems won and lost", _problems(findings, families, problems)),
        ("compared", "What was compared", "What was compared", _compared(findings)),
    ]
    return page(names, "Comparison", sections, window=f"{names} compared")


def _has_seeds(findings: ComparisonFindings) -> bool:
    # With one seed per side the column would hold only dashes.
    return any(len(side.answers) > 1 for side in findings.sides)


def _result(findings: ComparisonFindings) -> Markup:
    restricted = "<strong>Restricted to what all sides share.</strong> {}."
    # `groupby` needs equal benchmarks side by side. The sort is stable, so that metrics keep their order.
    ordered = sorted(findings.comparisons, key=lambda one: one.benchmark)
    benchmarks = {one.name: one for one in findings.benchmarks}
    leading = [one for one in findings.comparisons if one.metric == _leading(findings, one)]
    listed = [html('<li class="{}">{}</li>\n', verdict_class(one.verdict), sentence(one)) for one in leading]
    tables = [
        _benchmark(benchmarks[name], list(group), _has_seeds(findings))
        for name, group in groupby(ordered, key=lambda one: one.benchmark)
    ]
    return html(
        '{}<ul class="findings">\n{}</ul>\n{}{}',
        [note([html(restricted, line)]) for line in findings.restrictions],
        listed,
        tables,
        [paragraph("{}", line, kind="quiet") for line in notes(findings)],
    )


def _leading(findings: ComparisonFindings, one: PolicyComparison) -> str:
    return next(other.metric for other in findings.comparisons if other.benchmark == one.benchmark)


def _benchmark(benchmark: SharedBenchmark, comparisons: Sequence[PolicyComparison], has_seeds: bool) -> Markup:
    told = f"{len(benchmark.problems)} problems"
    told += f", {benchmark.samples} sampled responses each" if benchmark.samples else ""
    told += ", a greedy one each" if benchmark.is_greedy else ""
    head = ["pair", "metric", "first, %", "second, %", "difference", "95% interval", "p over problems, corrected"]
    head += [*(["over seeds"] if has_seeds else []), "won / lost / even", "finding"]
    rows = [
        [
            f"{one.second} − {one.first}",
            metric_label(one.metric),
            score(one.first_score, one.first_seed_sd),
            score(one.second_score, one.second_seed_sd),
            points(one.difference.interval.estimate),
            span(one.difference.interval, points),
            p_value(one.corrected),
            *([format_seeds(one)] if has_seeds else []),
            f"{one.difference.wins} / {one.difference.losses} / {one.difference.ties}",
            Cell(one.verdict, verdict_class(one.verdict)),
        ]
        for one in comparisons
    ]
    return html(
        '<h3>{} <span class="quiet">{}</span></h3>\n{}{}',
        *(benchmark.name, told, wide_chart(plot(benchmark.name, comparisons))),
        table(benchmark.name, head, rows, kind="scores"),
    )


def plot(benchmark: str, comparisons: Sequence[PolicyComparison]) -> Chart:
    """Each difference with its interval, around a line at 0; hollow where it is not separated."""
    rows = [
        Row(
            f"{cut(one.second, 12)} − {cut(one.first, 12)}, {metric_label(one.metric)}",
            100 * one.difference.interval.estimate,
            [(100 * one.difference.interval.low, 100 * one.difference.interval.high)],
            text=points(one.difference.interval.estimate),
            color=_COLORS.get(one.verdict, INK),
            is_hollow=one.verdict == "not separated",
        )
        for one in comparisons
    ]
    words = {"spoken": "; ".join(map(sentence, comparisons)), "x_label": "percentage points"}
    return intervals(f"differences-{benchmark}", benchmark, rows, rule=0, width=WIDE, **words)


def _problems(findings: ComparisonFindings, families: Sequence[str], problems: int) -> Markup:
    """Problems that one side wins and the other loses, the largest difference first, with the responses of both."""
    told = (
        "Click a problem to read it. Shown: the greedy response and the first sampled ones, {} of each side in all{}; "
        "texts are cut at {} characters."
    )
    seed = ", of the first seed" if _has_seeds(findings) else ""
    pairs = list(dict.fromkeys((one.first, one.second) for one in findings.comparisons))
    sides = {side.name: side for side in findings.sides}
    # Divided among all pairs and benchmarks, so that a page of many sides still opens.
    most = min(problems, max(1, PROBLEMS_ON_THE_PAGE // (2 * len(pairs) * len(findings.benchmarks))))
    shown = [
        _decided(findings, benchmark, benchmark.metrics(families)[0], (sides[first], sides[second]), most)
        for first, second in pairs
        for benchmark in findings.benchmarks
        if benchmark.metrics(families)
    ]
    return html("{}{}", paragraph(told, RESPONSES, seed, count(CHARACTERS), kind="quiet"), shown)


def _decided(
    findings: ComparisonFindings, benchmark: SharedBenchmark, metric: str, pair: tuple[Side, Side], most: int
) -> Markup:
    first, second = (side.name for side in pair)
    scores = {side.name: findings.scores[side.name, benchmark.name][metric] for side in pair}
    # Rounded, because means of equal shares may differ in the last bits: such a problem is a tie.
    gains = (scores[second] - scores[first]).round(12)
    answers = {side.name: _responses(side, benchmark.name) for side in pair}
    without = [name for name, own in answers.items() if own is None]
    parts = [
        html("<h3>{} against {} on {}, {}</h3>\n", second, first, benchmark.name, metric_label(metric)),
        without
        and paragraph("No responses are kept of {}: only the scores can be shown.", ", ".join(without), kind="absent"),
    ]
    for sign, words in ((1, "higher"), (-1, "lower")):
        decided = (sign * gains)[sign * gains > 0].sort_values(ascending=False, kind="stable")
        listed = decided.index[:most]
        rest = ""
        if len(decided) > len(listed):
            told = '\n <span class="quiet">(only the {} with the largest difference are shown)</span>'
            rest = html(told, len(listed))
        title = html("{} scores {} on {}{}", second, words, _count(len(decided)), rest)
        parts.append(details(title, [_problem(name, scores, answers) for name in listed]))
    ties = _count(int((gains == 0).sum()))
    return html("{}{}", parts, paragraph("Even on {}.", ties, kind="quiet"))


def _count(problems: int) -> str:
    return f"{problems} problem{'' if problems == 1 else 's'}"


def _responses(side: Side, benchmark: str) -> dict[str, pandas.DataFrame] | None:
    """Returns the first seed's responses by problem, greedy ones first."""
    responses = side.answers[0].responses
    if responses is None:
        return None
    own = responses[responses["benchmark"] == benchmark].sort_values(["mode", "sample_index"], kind="stable")
    return {str(name): group.head(RESPONSES) for name, group in own.groupby("problem_id", sort=False)}


def _problem(
    name: str, scores: dict[str, pandas.Series], answers: dict[str, dict[str, pandas.DataFrame] | None]
) -> Markup:
    told = ", ".join(f"{side} {score(own[name])}%" for side, own in scores.items())
    title = html('<code class="id">{}</code> <span class="quiet">{}</span>', visible_text(name, 200), told)
    tables = {side: own.get(name) if own else None for side, own in answers.items()}
    # Both sides answered the same problem, so that either table has its text.
    asked = next((rows.iloc[0] for rows in tables.values() if rows is not None), None)
    text = ""
    if asked is not None:
        problem = html('<pre class="problem" dir="auto">{}</pre>\n', visible_text(asked["problem"], CHARACTERS))
        text = problem + paragraph("Answer <code>{}</code>", visible_text(asked["answer"], 200))
    said = [html("<div>\n{}</div>\n", _said(side, rows)) for side, rows in tables.items()]
    return details(title, text, html('<div class="answers">\n{}</div>\n', said))


def _said(side: str, rows: pandas.DataFrame | None) -> object:
    if rows is None:
        return paragraph("{}: not kept", side, kind="quiet")
    return [
        answer(
            f"{side}, {one.mode}",
            one.verdict.replace("_", " "),
            one.verdict == "correct",
            html('<pre dir="auto">{}</pre>\n', visible_text(one.response, CHARACTERS)),
        )
        for one in rows.itertuples()
    ]


def _compared(findings: ComparisonFindings) -> Markup:
    rows = [
        (side.name, own.policy, own.seed, own.where, html("<code>{}</code>", own.digest or ABSENT))
        for side in findings.sides
        for own in side.answers
    ]
    return table("What was compared", ["side", "policy", "seed", "from", "verdicts, md5"], rows, kind="words")


HEAD = (
    "benchmark",
    "metric",
    "first",
    "second",
    "first %",
    "second %",
    "difference",
    "95% interval",
    "p",
    "won",
    "lost",
    "even",
    "seeds",
    "finding",
)


def score(share: float, seed_sd: float | None = None) -> str:
    """Writes `87.7`, with ± the seeds' standard deviation where there are several."""
    return f"{100 * share:.1f}" + ("" if seed_sd is None else f" ± {100 * seed_sd:.1f}")


def format_seeds(one: PolicyComparison) -> str:
    """The interval over seeds, or the seeds' differences if two are too few for one; a dash for one seed per side."""
    if one.over_seeds:
        return span(one.over_seeds, points)
    return ", ".join(points(value) for value in one.by_seed.values()) if len(one.by_seed) > 1 else ABSENT


def sentence(one: PolicyComparison) -> str:
    """Returns the finding in one sentence."""
    measured = f"{metric_label(one.metric)} on {one.benchmark}"
    interval = f"[{span(one.difference.interval, points)}], corrected p\u00a0{p_value(one.corrected)}"
    difference = f"{points(one.difference.interval.estimate)} points {interval}"
    if one.verdict in ("higher", "lower"):
        return (
            f"{one.second} scores {one.verdict} than {one.first} in {measured}, on these problems and for "
            f"these two policies: {difference}."
        )
    if one.verdict != "not separated":
        return f"{one.second} is {one.verdict} than {one.first} in {measured}: {difference}."
    # Stated before "not separated", because more problems would help and another policy would not.
    if one.difference.problems < FEWEST_PROBLEMS:
        both = f"{one.second} and {one.first}"
        return f"Too few problems ({one.difference.problems}) to separate {both} in {measured}: {difference}."
    return f"{one.second} and {one.first} are not separated in {measured}: {difference}."


def cells(one: PolicyComparison) -> list[str]:
    """A row under `HEAD`."""
    return [
        one.benchmark,
        metric_label(one.metric),
        one.first,
        one.second,
        score(one.first_score, one.first_seed_sd),
        score(one.second_score, one.second_seed_sd),
        points(one.difference.interval.estimate),
        span(one.difference.interval, points),
        p_value(one.corrected),
        str(one.difference.wins),
        str(one.difference.losses),
        str(one.difference.ties),
        format_seeds(one),
        one.verdict,
    ]


def notes(findings: ComparisonFindings) -> list[str]:
    """Facts needed to read the table."""
    count, seeds = len(findings.comparisons), max(len(side.answers) for side in findings.sides)
    lines = [f"RESTRICTED to what all sides share: {line}" for line in findings.restrictions]
    lines += [line for one in findings.benchmarks if (line := _describe_leaked(one, findings.is_clean))]
    lines += [
        "Differences: second minus first, in percentage points, on the same problems; 95% interval over problems.",
        f"p: over problems too, corrected for {count} comparison{'s' if count > 1 else ''} (Holm). "
        f"A finding needs p < {LARGEST_P:g}, {FEWEST_PROBLEMS} problems, no seed against it.",
        "'better' and 'worse' are about the setting: the interval over seeds excludes 0. "
        "'higher' and 'lower' are about these policies.",
    ]
    if seeds == 1:
        lines.append("One seed each: these results do not show what training again would give.")
    else:
        lines.append("±: standard deviation over seeds. seeds: 95% interval over seeds, or each seed's difference.")
    return lines


def _describe_leaked(benchmark: SharedBenchmark, is_clean: bool) -> str:
    """Says how many problems a side was trained on; empty where none."""
    if not benchmark.leaked:
        return ""
    if is_clean:
        return f"CLEAN: {benchmark.leaked} problems of {benchmark.name} that a side was trained on are left out."
    count = f"{benchmark.leaked} of {len(benchmark.problems)} problems"
    return f"TRAINED ON: {count} of {benchmark.name} are in a side's training tables; --clean leaves them out."


def text_table(findings: ComparisonFindings) -> str:
    """Aligned columns for a terminal, with the notes below."""
    rows = [list(HEAD), *(cells(one) for one in findings.comparisons)]
    # A terminal has little width: a column without any value is left out.
    kept = [place for place in range(len(HEAD)) if HEAD[place] != "seeds" or any(r[place] != ABSENT for r in rows[1:])]
    columns = [[row[place] for row in rows] for place in kept]
    rule = ["-" * max(map(len, column)) for column in columns]
    head, *lines = zip(*columns, strict=True)
    return "\n".join([*aligned([head, rule, *lines], left_columns=len(kept)), "", *notes(findings)])


def markdown(findings: ComparisonFindings) -> str:
    """The same table for MLflow."""
    rows = markdown_table(HEAD, [cells(one) for one in findings.comparisons])
    return "\n".join([*rows, "", *(f"- {note}" for note in notes(findings))]) + "\n"


def as_json(findings: ComparisonFindings) -> dict[str, Any]:
    """Everything but the scores of problems, in fractions."""
    sides = [
        {
            "name": side.name,
            "answers": [
                {"where": own.where, "policy": own.policy, "seed": own.seed, "verdicts_md5": own.digest}
                for own in side.answers
            ],
        }
        for side in findings.sides
    ]
    shared = [
        {
            # The problems are left out: their number shows the basis of the comparison.
            "name": one.name,
            "problems": len(one.problems),
            "samples": one.samples,
            "greedy": one.is_greedy,
            "in_training_tables": one.leaked,
        }
        for one in findings.benchmarks
    ]
    return {
        "sides": sides,
        "benchmarks": shared,
        "restrictions": list(findings.restrictions),
        "clean": findings.is_clean,
        "comparisons": [_as_json(one) for one in findings.comparisons],
    }


def _as_json(one: PolicyComparison) -> dict[str, Any]:
    return {
        "benchmark": one.benchmark,
        "metric": one.metric,
        "first": one.first,
        "second": one.second,
        "problems": one.difference.problems,
        "first_score": one.first_score,
        "second_score": one.second_score,
        "difference": one.difference.interval.estimate,
        "low": one.difference.interval.low,
        "high": one.difference.interval.high,
        "p": one.difference.p_value,
        "p_corrected": one.corrected,
        "wins": one.difference.wins,
        "losses": one.difference.losses,
        "ties": one.difference.ties,
        "first_seed_sd": one.first_seed_sd,
        "second_seed_sd": one.second_seed_sd,
        "by_seed": {str(seed): value for seed, value in one.by_seed.items()},
        # The low and the high end. The estimate is `difference` already.
        "over_seeds": list(one.over_seeds[1:]) if one.over_seeds else None,
        "finding": one.verdict,
        "claim": one.claim,
    }
