"""The sections of the report: a function each, which takes the run and returns its part, and the table `SECTIONS`.

A new section is a function here and its line in the table. Long ones have a module of their own: `learning`, `cards`,
`asynchronous` and `responses`.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from stages.algorithms.decontamination import source_revision
from stages.algorithms.estimators import FEWEST_PROBLEMS, Interval
from stages.foundations.params import CUSTOM
from stages.foundations.tables import CONTAMINATION, DUPLICATE
from stages.pages.drawing import SERIES, Chart, Line, bars, lines
from stages.pages.page import (
    Part,
    charts,
    count,
    details,
    estimate,
    html,
    metric_label,
    note,
    number,
    paragraph,
    percent,
    points,
    span,
    table,
    verdict_class,
    visible_text,
)
from stages.pages.reading import Sections, dropped, losses, made, paragraphs_of, times
from stages.pages.shown_stages import shown
from stages.report.asynchronous import timelines
from stages.report.cards import data
from stages.report.inputs import Benchmark, Comparison, ReportRun
from stages.report.learning import learning
from stages.report.responses import examples, search


def result(run: ReportRun) -> Part:
    """What the last policy gained on each benchmark, and what a reader must know of it."""
    warnings = [f"{line[0].upper()}{line[1:]}." for line in run.warnings]
    absent = (
        "No policy is graded yet: <code>dvc repro</code> runs respond and grade for each policy of the parameter file."
    )
    headlines = [_headline(run, one) for one in run.benchmarks] or paragraph(absent, kind="absent")
    # The verifiers: a user's function appears with its file and name.
    paths = {path for rows in run.responses.values() for path in rows["path"].dropna()}
    judges = ", ".join(sorted(path for path in paths if path.startswith(f"{CUSTOM}/")))
    judged = "Responses were judged by <code>{}</code> of this project, and not by the verifier's rules."
    ungraded = ", ".join(policy for policy in run.policies if policy not in run.graded)
    told = (
        "avg@k is the accuracy over k sampled responses of each problem; greedy is that of the most likely response. "
        "Intervals are 95%, over problems: all responses of a problem count together. Differences pair the two "
        "policies problem by problem. “Higher” and “lower” are about these two policies; one seed does not show what "
        "training again would give.{}"
    )
    rounds = " An RL round trains the policy that bears its name, starting from the policy before it."
    return html(
        '{}<div class="headlines">\n{}</div>\n{}{}{}{}',
        note(warnings, "Warning", role="alert"),
        headlines,
        judges and paragraph(judged, judges),
        ungraded and run.benchmarks and paragraph("Not graded: {}.", ungraded, kind="absent"),
        note(paragraphs_of(run.report.notes), "Read this with the scores"),
        run.benchmarks and paragraph(told, rounds if run.rounds else "", kind="quiet"),
    )


def _headline(run: ReportRun, benchmark: Benchmark) -> Markup:
    metric, baseline = benchmark.headline_metric, run.report.baseline_policy
    problems = f", {count(benchmark.problems)} problems" if benchmark.problems else ""
    first, *others = benchmark.comparisons or [None]
    if first:
        own = first.difference
        big = html('<span class="big {}">{}</span>', verdict_class(own.verdict), points(own.interval.estimate))
        words = html("<span>points from {} to {}</span>", first.baseline, first.policy)
        found = paragraph("{} {}", big, words, kind="finding") + paragraph("{}", verdict_sentence(first))
    elif run.last == baseline:
        found = paragraph("{} is the last policy and the baseline, so there is no comparison.", baseline)
    else:
        found = paragraph("No paired difference: it needs graded responses of both {} and {}.", baseline, run.last)
    rulers = [
        html(
            '<li><span class="who">{}</span>\n<span class="ruler" aria-hidden="true"><i class="fill" style="width:{}%">'
            '</i><i class="range" style="left:{}%;width:{}%"></i></span>\n'
            '<span class="what"><b>{}</b> <small>{}</small></span></li>\n',
            policy,
            *(f"{100 * share:.2f}" for share in (own.estimate, own.low, max(own.high - own.low, 0))),
            percent(own.estimate),
            span(own, percent),
        )
        for policy, own in benchmark.scores(metric, [run.graded[0], baseline, run.before_rl, run.last]).items()
    ]
    more = [
        paragraph(
            "{}: {} points. {}",
            metric_label(one.metric).capitalize()
            if one.baseline == first.baseline
            else f"From {one.baseline}, {metric_label(one.metric)}",
            points(one.difference.interval.estimate),
            verdict_sentence(one),
            kind="quiet",
        )
        for one in others
    ]
    return html(
        '<article class="card headline">\n<h3>{} <span class="quiet">{}{}</span></h3>\n{}<ul class="rulers">\n{}</ul>\n'
        "{}</article>\n",
        *(benchmark.name, metric_label(metric), problems, found, rulers, more),
    )


def verdict_sentence(comparison: Comparison) -> str:
    """Returns the result in one sentence. It is about these two policies; to compare settings needs several seeds."""
    difference = comparison.difference
    between = span(difference.interval, points)
    paired = f"on the same {difference.problems} problems, 95% interval {between} points"
    names = f"{comparison.policy} and {comparison.baseline}"
    # With very few problems the interval itself is too uncertain.
    if difference.problems < FEWEST_PROBLEMS:
        return f"Too few problems to compare {names}: {paired}."
    if difference.verdict == "not separated":
        return f"No difference between {names} is shown: {paired}."
    scores = "scores higher" if difference.verdict == "better" else "scores lower"
    return f"{comparison.policy} {scores} than {comparison.baseline}: {paired}."


def accuracy(run: ReportRun) -> Part:
    """Each benchmark's charts and table of policies, and what others have published."""
    unmeasured = ", ".join(sorted(set(run.report.published) - {one.name for one in run.benchmarks}))
    told = "Published figures are given for {}, which this run does not measure."
    return html(
        "{}{}",
        [_scores(run, one) for one in run.benchmarks] or paragraph("No policy is graded yet.", kind="absent"),
        unmeasured and paragraph(told, unmeasured, kind="absent"),
    )


def _scores(run: ReportRun, benchmark: Benchmark) -> Markup:
    name, headline, baseline = benchmark.name, benchmark.headline_metric, run.report.baseline_policy
    less = f"{metric_label(headline)} minus {baseline}, points"
    head = ["Policy", *map(metric_label, benchmark.metrics), less, "tokens", "cut off", "un\u00addecided"]
    rows = [
        [
            policy,
            *(estimate(benchmark.score(policy, metric), percent) for metric in benchmark.metrics),
            _difference(benchmark.compare(headline, baseline, policy)),
            number(benchmark.value(policy, "response_tokens_mean"), ".1f"),
            percent(benchmark.value(policy, "truncated_fraction")),
            percent(benchmark.value(policy, "undecided_fraction")),
        ]
        for policy in run.graded
    ]
    caption = f"Scores on {name}, with 95% intervals"
    return html(
        "<h3>{}</h3>\n{}{}{}{}",
        name,
        charts(_score_charts(run, benchmark)),
        table(f"Scores on {name}", head, rows, caption, kind="scores", marked=[run.last]),
        _published(run, benchmark),
        _other_measures(run, benchmark),
    )


def _difference(found: Comparison | None) -> Part:
    return found and estimate(found.difference.interval, points, verdict_class(found.difference.verdict))


def _score_charts(run: ReportRun, benchmark: Benchmark) -> list[Chart]:
    titles = {"greedy": "Greedy", "avg": "Mean of samples", "pass": "Any of the samples", "maj": "Majority of samples"}
    drawn = []
    for metric in benchmark.metrics:
        family = metric.partition("_at_")[0]
        title = titles[family] if family == "greedy" else f"{titles[family]}, {metric_label(metric)}"
        known = benchmark.scores(metric)
        drawn += [bars(f"score-{benchmark.number}-{family}", title, "%", {"": known})] if known else []
    passes = {policy: benchmark.passes(policy) for policy in run.graded}
    # Two points are not a curve.
    if any(len(scores) > 2 for scores in passes.values()):
        drawn.append(_pass_chart(f"pass-{benchmark.number}", passes))
    measured = {
        ("length", "Response length", "tokens"): {"mean": "response_tokens_mean"},
        ("shares", "Cut off, or without a verdict", "%"): {
            "cut off": "truncated_fraction",
            "undecided": "undecided_fraction",
        },
    }
    for (name, title, unit), columns in measured.items():
        series = {label: own for label, column in columns.items() if (own := benchmark.values(column))}
        drawn += [bars(f"{name}-{benchmark.number}", title, unit, series)] if series else []
    return drawn


def _pass_chart(name: str, passes: dict[str, dict[int, Interval]]) -> Chart:
    """Returns pass@k over k; with more policies than colours, only the last ones."""
    # The last ones, because readers look for the effect of the newest round.
    drawn = {policy: scores for policy, scores in list(passes.items())[-len(SERIES) :] if scores}
    summary = "; ".join(
        f"{policy} " + ", ".join(f"{100 * one.estimate:.1f}% at {k}" for k, one in scores.items())
        for policy, scores in drawn.items()
    )
    series = [Line(policy, [*scores], [*scores.values()]) for policy, scores in drawn.items()]
    ticks = sorted({k for scores in drawn.values() for k in scores})
    # 105: markers at 100% need room above them.
    more = {"x_label": "k", "summary": summary, "top": 105, "doublings": ticks}
    return lines(name, "Any of k samples, pass@k", "%", series, **more)


def _published(run: ReportRun, benchmark: Benchmark) -> Part:
    figures = run.report.published.get(benchmark.name, [])
    # The last policy's scores on the published metrics and on the headline's.
    wanted = sorted({benchmark.headline_metric, *(figure.metric for figure in figures)})
    own = [(metric, benchmark.score(run.last, metric)) for metric in wanted]
    rows = [(run.last, metric_label(metric), estimate(score, percent), "this run") for metric, score in own if score]
    rows += [
        (one.name, metric_label(one.metric), html("<b>{}%</b>", f"{one.value:.1f}"), one.source) for one in figures
    ]
    caption = f"Published figures for {benchmark.name}. Models, prompts and token limits differ from ours."
    head = ["Model", "Metric", "Score", "Source"]
    return table("Published figures", head, rows, caption, kind="", marked=[run.last]) if figures else None


def _other_measures(run: ReportRun, benchmark: Benchmark) -> Part:
    """Shares of responses without a verdict and the emergence measures, if some policy has them."""
    keys = {key for policy in run.graded for key in run.grades(policy) if key.startswith(f"{benchmark.name}/")}
    names = sorted(key.rpartition("/")[2] for key in keys)
    # Shown in this order, before the rates of keywords, which the parameters name.
    first = (
        "unparsed_fraction",
        "exhausted_fraction",
        "verifier_failed_fraction",
        "branching_frequency",
        "coding_rate",
    )
    wanted = [name for name in first if name in names] + [name for name in names if name.startswith("keyword_rate_")]
    rows = [
        [name.replace("_", " "), *(number(benchmark.value(policy, name), ".4g") for policy in run.graded)]
        for name in wanted
    ]
    shown_rows = table("Other measures", ["Per response", *run.graded], rows, kind="")
    return details(f"Other measures on {benchmark.name}", shown_rows) if rows else None


def losses_of_stages(run: ReportRun) -> Part:
    """Losses of the stages that train once, on existing data; rounds have learning curves."""
    once = {
        stage.address: run.curves[stage.address]
        for stage in run.stages
        if stage.address in run.curves and not stage.item
    }
    return losses(once, "nats/token", "step")


def contamination(run: ReportRun) -> Part:
    """Training problems that are in a benchmark, and problems that occur twice."""
    looked = [metrics for metrics in run.metrics.values() if "contamination/pairs" in metrics]
    repeats = _repeats(run)
    if not looked:
        return html("{}{}", paragraph("No stage has looked for contamination yet.", kind="absent"), repeats)
    pairs = count(sum(int(metrics["contamination/pairs"]) for metrics in looked))
    lost = [
        f"; {stage} dropped {count(int(value))} rows for it"
        for stage, metrics in run.metrics.items()
        for key, value in metrics.items()
        if key.startswith("dropped/") and "contaminated" in key
    ]
    told = (
        "{} pairs of a training problem and a benchmark problem were found alike{}. Such rows are dropped before "
        "anything is trained."
    )
    benchmarks = [
        (name.removesuffix("/rows_hit"), count(int(metrics.get(name.removesuffix("_hit"), 0))), count(int(hit)))
        for metrics in looked
        for name, hit in metrics.items()
        if name.endswith("/rows_hit")
    ]
    head = ["Benchmark", "problems", "found in training sources"]
    names = dict.fromkeys(filter(None, (shown(stage.name).contamination for stage in run.stages)))
    return html(
        "{}{}{}{}{}",
        paragraph(told, pairs, lost),
        benchmarks and table("Contamination by benchmark", head, benchmarks, kind=""),
        _hits(run),
        paragraph("Every pair is in {}.", _listed([f"data/{name}.parquet" for name in names]), kind="quiet"),
        repeats,
    )


def _listed(names: Sequence[str]) -> Markup:
    return Markup(" and ").join(html("<code>{}</code>", name) for name in names)


def _hits(run: ReportRun) -> Part:
    """Pairs by benchmark and rule, and the first pairs with both texts."""
    by_rule = [
        (benchmark, stage.address, rule, rows)
        for stage in run.stages
        if (name := shown(stage.name).contamination) and (found := run.table(name, CONTAMINATION)) is not None
        for (benchmark, rule), rows in found.groupby(["benchmark", "rule"], sort=True)
    ]
    if not by_rule:
        return None
    # The models of `sources` belong to another stage, and no stage imports another.
    origins = {name: entry.get("from") if isinstance(entry, dict) else None for name, entry in run.sources.items()}
    revisions = {name: source_revision(own if isinstance(own, dict) else {}) for name, own in origins.items()}
    hits = sorted(
        (name, stage, rule, revisions.get(name, "unknown"), len(rows), rows["benchmark_problem_id"].nunique())
        for name, stage, rule, rows in by_rule
    )
    lines_of_hits = [
        (name, html("<code>{}</code>", revision), stage, rule.replace("_", " "), count(pairs), count(problems))
        for name, stage, rule, revision, pairs, problems in hits
    ]
    head = ["Benchmark", "revision", "rows of", "rule", "pairs", "its problems in them"]
    label = "Hits by benchmark, revision and rule"
    caption = f"{label}. At most 50 pairs of one benchmark problem are kept."
    # The first pair of each stage, benchmark and rule, then the second pairs: rules with few hits are shown too.
    in_turn = sorted((place, turn) for turn, (*_, rows) in enumerate(by_rule) for place in range(len(rows)))
    wanted = in_turn[: run.report.contamination_pairs]
    pairs = [_pair(run, by_rule[turn][-1].iloc[place].to_dict()) for place, turn in wanted]
    told = paragraph("The first of each stage, benchmark and rule in turn.", kind="quiet")
    return table(label, head, lines_of_hits, caption) + (details("Pairs with both texts", told, pairs) if pairs else "")


def _pair(run: ReportRun, pair: dict[str, object]) -> Markup:
    def text(name: str) -> str:
        return visible_text(pair[name], run.report.example_characters)

    side = '<div class="answer"><h4>{} <span class="quiet">{}</span></h4><pre dir="auto">{}</pre></div>\n'
    sides = [
        html(side, *map(text, names))
        for names in (("source", "problem_id", "problem"), ("benchmark", "benchmark_problem_id", "benchmark_problem"))
    ]
    overlap = 0 if pair["overlap"] != pair["overlap"] else pair["overlap"]
    told = paragraph("{}, {}", str(pair["rule"]).replace("_", " "), f"{overlap:.2f}", kind="quiet")
    return html('<article class="card example">\n{}<div class="answers">\n{}</div>\n</article>\n', told, sides)


def _repeats(run: ReportRun) -> Part:
    """Problems that occur twice, by scope and rule."""
    duplicates = run.table("problems/duplicates", DUPLICATE)
    counts = {} if duplicates is None else duplicates.groupby(["scope", "rule"], sort=True).size().to_dict()
    if not counts:
        return None
    rows = [(scope.replace("_", " "), rule.replace("_", " "), count(pairs)) for (scope, rule), pairs in counts.items()]
    caption = "Repeated training problems were dropped; benchmarks keep theirs, so that their scores stay comparable."
    below = "The pairs are in <code>data/problems/duplicates.parquet</code>."
    shown_rows = table("Duplicates", ["Where", "rule", "pairs"], rows, caption)
    return html("<h3>Duplicate problems</h3>\n{}{}", shown_rows, paragraph(below, kind="quiet"))


def time(run: ReportRun) -> Part:
    """What took the time, and the work that was done in it."""
    names = ("rows/in", "rows/kept", "progress/steps", "tokens/sampled", "tokens/trained")
    rows = [
        [stage, *(count(int(metrics[name])) if name in metrics else None for name in names)]
        for stage, metrics in run.metrics.items()
        if any(name in metrics for name in names)
    ]
    head = ["Stage", "rows in", "rows kept", "steps", "tokens sampled", "tokens trained"]
    work = table("Work by stage", head, rows, "These numbers are the same in every equal run.")
    absent = paragraph("No stage has counted its work yet.", kind="absent")
    return html("{}<h3>Work by stage</h3>\n{}", times(run), work if rows else absent)


def how_made(run: ReportRun) -> Part:
    """The graph, the commands that show more, parameters and metrics."""
    edges = [f" {name} starts from {start}." for name, start in run.rounds.items()]
    listed = Markup(
        "<dt><code>make ui</code></dt><dd>opens MLflow (live curves, runs side by side) and Prefect (stages of a flow, "
        "logs) on this machine</dd>\n"
        "<dt><code>dvc metrics show</code>, <code>dvc metrics diff</code></dt><dd>kept rows, losses and scores with "
        "their intervals, and what has changed since a commit</dd>\n"
        "<dt><code>dvc plots show</code></dt><dd>the curves, also of two commits side by side (<code>dvc plots "
        "diff</code>)</dd>\n"
        "<dt><code>dvc repro</code></dt><dd>runs the stages whose parameters, inputs or code have changed, and no "
        "others</dd>\n"
    )
    more = paragraph("<code>dvc dag --md</code> draws every edge.{}", edges, kind="quiet")
    return made(run, more + html('<dl class="commands">\n{}</dl>\n', listed), run.rounds)


SECTIONS: Sections = (
    ("result", "Result", "Result", result),
    ("accuracy", "Accuracy", "Accuracy by policy", accuracy),
    ("search", "Search", "Search by trial", search),
    ("learning", "Learning", "Learning over the RL rounds", learning),
    ("losses", "Losses", "Losses", losses_of_stages),
    ("timelines", "Timelines", "Asynchronous rounds", timelines),
    ("data", "Data", "The data", data),
    ("dropped", "Dropped rows", "Why rows were dropped", dropped),
    ("contamination", "Contamination", "Contamination", contamination),
    ("examples", "Examples", "Example responses", examples),
    ("time", "Time", "Where the time went", time),
    ("made", "How it was made", "How it was made", how_made),
)
