"""The sections of the page: a function each, which takes the run and returns its part, and the table `SECTIONS`.

A new section is a function here and its line in the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import LiteralString

import pandas
from markupsafe import Markup

from stages.images.t2i_report.choosing import Gallery, Strip, judge_of
from stages.images.t2i_report.findings import (
    CHARACTERS,
    LEARNT,
    SCORERS,
    Feedback,
    PicturesRun,
    RankedRound,
    accuracies,
    accuracy_sentence,
    gains_of,
    generator_table,
    interval,
)
from stages.pages.drawing import BAD, SERIES, Chart, Row, intervals, lines
from stages.pages.page import (
    Cell,
    Part,
    charts,
    count,
    estimate,
    html,
    note,
    number,
    p_value,
    paragraph,
    percent,
    points,
    signed,
    span,
    table,
    verdict_class,
    visible_text,
)
from stages.pages.reading import Metrics, Sections, curve_lines, dropped, losses, made, paragraphs_of, times

ANNOTATOR_ROWS = 60
"""Rows of the table of annotators: dropped ones first."""
MOST_ANNOTATORS = 24
"""Most annotators in the plot of their agreement; with more, only the table is shown."""
CHANCE = 50
CURVES = {
    "reward": "Reward, which is climbed",
    "held_out": "Held-out score, which is not",
    "truth": "Truth",
    "saturation": "Saturation",
    "diversity": "Diversity of pictures of one prompt",
    "distance_to_start": "Distance to the start",
}
"""Quantities of a round's validation pictures, reward first."""


@cache
def _gallery(run: PicturesRun) -> Gallery:
    return Gallery(run)


def result(run: PicturesRun) -> Part:
    """What the reward models and the rounds of feedback have reached."""
    models = [_model_headline(name, metrics) for name, metrics in run.evaluated.items()]
    rounds = [_round_headline(one) for one in run.feedback if one.name not in run.controls.values()]
    names = ("truth", "alignment", "fidelity")
    generators = [
        [name, *(f"{own[f'test/{what}']:.3f}" for what in names)] for name, own in run.with_metric("test/truth").items()
    ]
    caption = "Pictures of held-out prompts, as the truth sees them"
    absent = "No reward model is evaluated and no generator has had feedback yet."
    return html(
        '<div class="headlines">\n{}{}</div>\n{}{}{}',
        *(models, rounds),
        paragraph(absent, kind="absent") if not models and not run.feedback else "",
        note(paragraphs_of(run.report.notes), "Read this with the page"),
        generators and table("Generators", ["Generator", *names], generators, caption),
    )


def _headline(what: str, name: str, finding: str, *below: object) -> Markup:
    head = html('<h3>{} <span class="quiet">{}</span></h3>\n', what, name)
    article = '<article class="card headline">\n{}<p class="finding">{}</p>\n{}</article>\n'
    return html(article, head, finding, below)


def _model_headline(name: str, metrics: Metrics) -> Markup:
    told = '<b class="{}">{} points</b> against the {}, by prompt: {}, {}.'
    gains = [
        paragraph(told, verdict_class(verdict), points(gain.estimate), other, span(gain, points), verdict)
        for other, gain, _, verdict in gains_of(metrics)
        if other not in ("chance", "truth")
    ]
    big = html('<span class="big">{}</span>', percent(accuracies(metrics)[SCORERS[LEARNT]].estimate))
    return _headline("Reward model", name, big, paragraph("{}", accuracy_sentence(metrics)), gains)


def _round_headline(one: Feedback) -> Markup:
    look, own = verdict_class(one.verdict), one.difference
    over = "over the control without a reward" if one.is_over_control else "over its start"
    big = html('<span class="big {}">{}</span> <span>{}, {}</span>', look, signed(own.estimate), one.judge, over)
    told = '<b class="{}">{}</b>: 95% interval {}, pictures paired from the same noise.'
    verdict = paragraph(told, look, one.verdict.capitalize(), span(own, signed))
    return _headline("Generator", one.name, big, verdict, _sentences(one))


def _sentences(one: Feedback) -> list[Markup]:
    return [paragraph("{}", line, kind="warning" if line.startswith("Hacked") else "") for line in one.sentences]


def annotators(run: PicturesRun) -> Part:
    """How far the annotators of each ranking round agree, and who was left out."""
    alphas = run.with_metric("agreement/alpha_rank")
    shown = [html("<h3>{}</h3>\n{}", one.name, _annotators(one, alphas.get(one.name))) for one in run.ranked]
    return html("{}", shown or paragraph("No ranking round has preferences yet.", kind="absent"))


def _annotators(ranked: RankedRound, alphas: Metrics | None) -> Markup:
    # False sorts before True: dropped annotators come first, and the table cuts off kept ones.
    known = ranked.annotators.sort_values(["is_kept", "annotator_id"], kind="stable")
    if known.empty:
        return paragraph("No annotators: the votes are anonymous.", kind="absent")
    reasons = known["reason"].str.replace("_", " ")
    left_out = [
        html("<b>{}</b> ({})", _visible(name), reason)
        for name, reason in zip(known["annotator_id"], reasons, strict=True)
        if reason
    ]
    alpha = ""
    if alphas:
        of_all = alphas.get("agreement_of_all/alpha_rank")
        of_all = "" if of_all is None else f", {of_all:.2f} of all"
        alpha = paragraph(
            "Krippendorff’s alpha of ranks: {} of what is kept{}.", f"{alphas['agreement/alpha_rank']:.2f}", of_all
        )
    rows = [
        (
            _visible(one.annotator_id),
            count(one.rankings),
            *(percent(share) for share in (one.agreement, one.consistency, one.gold_accuracy)),
            number(one.median_seconds, ".0f"),
            "" if one.is_kept else html('<span class="hacked">{}</span>', reason),
        )
        for one, reason in zip(known.head(ANNOTATOR_ROWS).itertuples(), reasons, strict=False)
    ]
    measures = ["with others", "with own ratings", "with known answers", "median s"]
    head = ["Annotator", "rankings", *measures, "left out for"]
    caption = (
        "Agreement with others on shared tasks, of ranks with own ratings, and with known answers. A measure of too "
        "few pairs is –."
    )
    more = "{} more, all kept, are in the table <code>annotators</code> of the round."
    return html(
        "{}{}{}{}{}",
        paragraph("Left out: {}." if left_out else "No annotator was left out.", Markup(", ").join(left_out)),
        alpha,
        charts(filter(None, [agreement_chart(ranked.name, ranked.annotators)])),
        table(f"Annotators of {ranked.name}", head, rows, caption),
        paragraph(more, count(len(known) - ANNOTATOR_ROWS), kind="quiet") if len(known) > ANNOTATOR_ROWS else "",
    )


def agreement_chart(round_name: str, known: pandas.DataFrame) -> Chart | None:
    """Plots agreement with others of each annotator, dropped ones in another colour; None where it is not measured."""
    known = known.dropna(subset=["agreement"]).sort_values("agreement", ascending=False, kind="stable")
    if not 0 < len(known) <= MOST_ANNOTATORS:
        return None
    rows = [
        Row(
            # Annotators chose the names: invisible and bidirectional characters are written out.
            visible_text(str(one.annotator_id), 28),
            100 * one.agreement,
            text="" if one.is_kept else "left out",
            color=SERIES[0] if one.is_kept else BAD,
        )
        for one in known.itertuples()
    ]
    out = ", ".join(row.name for row in rows if row.text)
    spoken = f"Agreement with other annotators, {round_name}; left out: {out or 'none'}."
    words = {"spoken": spoken, "x_label": "% of pairs"}
    return intervals(f"agreement-{round_name}", "Agreement with others", rows, rule=CHANCE, **words)


def scorers(run: PicturesRun) -> Part:
    """Each reward model between chance and the truth, and the generators whose pictures were ranked."""
    models = [_model(name, metrics) for name, metrics in run.evaluated.items()]
    galleries = [_generators(one) for one in run.ranked]
    return html("{}{}", models or paragraph("No reward model is evaluated yet.", kind="absent"), galleries)


def _model(name: str, metrics: Metrics) -> Markup:
    rows = [
        (other, estimate(gain, points), p_value(chance), Cell(verdict, verdict_class(verdict)))
        for other, gain, chance, verdict in gains_of(metrics)
    ]
    caption = "Accuracy of the reward model less that of another scorer, by prompt, paired"
    gains = table(f"Differences of {name}", ["Against", "points", "p", ""], rows, caption) if rows else ""
    return html(
        "<h3>{}</h3>\n{}{}{}", name, charts([_accuracy_chart(name, metrics)]), scorer_tables(name, metrics), gains
    )


def _accuracy_chart(round_name: str, metrics: Metrics) -> Chart:
    """Plots each scorer's preference accuracy with its 95% interval."""
    known = accuracies(metrics)
    rows = [
        Row(
            name,
            100 * share.estimate,
            [(100 * share.low, 100 * share.high)],
            text=f"{100 * share.estimate:.1f}",
            color=SERIES[0] if name == SCORERS[LEARNT] else SERIES[4],
        )
        for name, share in known.items()
    ]
    shares = ", ".join(f"{name} {100 * share.estimate:.1f}%" for name, share in known.items())
    spoken = f"Pairs of held-out prompts ordered as people do, {round_name}: {shares}."
    words = {"spoken": spoken, "summary": "95% intervals over prompts", "x_label": "% of pairs"}
    return intervals(f"accuracy-{round_name}", "Pairs ordered as people do", rows, rule=CHANCE, **words)


def scorer_tables(name: str, metrics: Metrics) -> list[Markup]:
    """How scorers order pictures, and which they pick: two tables, because one for both is wider than a page."""
    kinds = sorted({key.partition("/")[0] for key in metrics if key.startswith(("recall_at_", "filter_at_"))})
    # By the number in the name: as texts recall_at_10 comes before recall_at_2.
    kinds.sort(key=lambda kind: (kind.startswith("filter"), int(kind.rpartition("_")[2])))
    titles_of = {
        "Order of pictures on held-out prompts": {
            "preference/accuracy": "pairs, ties half",
            "preference/accuracy_as_released": "ties wrong",
            "preference/accuracy_by_prompt": "by prompt",
            "preference/on_policy_accuracy": "on this round's images",
            "model_ranking/spearman": "generators, Spearman",
        },
        "A best picture among the k highest, a worst among the k lowest; several may be best, so chance is higher than "
        "k of n": {kind: kind.replace("_at_", "@") for kind in kinds},
    }
    tables = []
    for caption, titles in titles_of.items():
        columns = {key: one for key, one in titles.items() if any(name.startswith(f"{key}/") for name in metrics)}
        rows = [
            [title, *(_score(metrics, f"{key}/{scorer}") for key in columns)]
            for scorer, title in SCORERS.items()
            if any(f"{key}/{scorer}" in metrics for key in columns)
        ]
        label, told = f"Scorers of {name}, {caption}", f"{caption}. 95% intervals over prompts."
        head = ["Scorer", *columns.values()]
        tables += [table(label, head, rows, told, kind="scores", marked=[SCORERS[LEARNT]])] if rows else []
    return tables


def _score(metrics: Metrics, key: str) -> Part:
    if key not in metrics:
        return None
    own = interval(metrics, key)
    return estimate(own, "{:.3f}".format) if own else html("<b>{}</b>", f"{metrics[key]:.3f}")


def _generators(ranked: RankedRound) -> Part:
    known = generator_table(ranked)
    if known.empty:
        return None
    rows = [
        [_visible(name), count(int(own.iloc[0])), percent(own.iloc[1]), *(number(one, ".3f") for one in own.iloc[2:])]
        for name, own in known.iterrows()
    ]
    label = f"Generators in {ranked.name}"
    caption = f"{label}, by the share of pairs that their pictures of held-out prompts won; mean scores beside it"
    return table(label, ["Generator", "pictures", "pairs won", *known.columns[2:]], rows, caption)


def pictures(run: PicturesRun) -> Part:
    """Best and worst pictures by people and by the reward model."""
    told = (
        "The choice follows a rule. The kinds of held-out prompts take turns. Of each kind, the prompt with the "
        "largest share of words not shown before is taken; of equal ones, that with the smaller id, a hash. People’s "
        "measure is the share of its pairs that a picture won. Rewards are in spreads of the validation pictures."
    )
    absent = "it needs a reward model’s scores of held-out prompts, and <code>t2i_report.shown_prompts</code> above 0."
    return _strips(run, _gallery(run).best_and_worst, told, absent)


def disagreements(run: PicturesRun) -> Part:
    """Pairs that the reward model orders against people."""
    told = "Held-out pairs that the reward model orders against most annotators, widest margin first, one of a prompt."
    absent = "no pair is ordered against people, none is scored, or <code>t2i_report.shown_disagreements</code> is 0."
    return _strips(run, _gallery(run).disagreements, told, absent)


def _strips(
    run: PicturesRun, by_round: Mapping[str, list[Strip]], told: LiteralString, absent: LiteralString
) -> Markup:
    shown = [html("<h3>{}</h3>\n{}", name, _gallery(run).show(strips)) for name, strips in by_round.items() if strips]
    return paragraph(told, kind="quiet") + html("{}", shown) if shown else _nothing(absent)


def _nothing(reason: LiteralString) -> Markup:
    return paragraph("Nothing to show: " + reason, kind="absent")


def feedback(run: PicturesRun) -> Part:
    """What each round of feedback did to its generator."""
    told = (
        "Pictures of validation prompts, the same noise at every point. The round optimises the reward, so believe it "
        "only together with the other scores."
    )
    drawn = charts(_feedback_charts(run.with_column("validation/reward")))
    rounds = [_feedback_round(one, one.name in run.controls.values()) for one in run.feedback]
    absent = paragraph("No generator has had feedback yet.", kind="absent")
    return html("{}{}{}", drawn and paragraph(told, kind="quiet"), drawn, rounds or absent)


def _feedback_charts(curves: Mapping[str, pandas.DataFrame]) -> list[Chart]:
    """Plots a chart of each quantity with a line for each round, on one axis of updates."""
    drawn = []
    for quantity, title in CURVES.items():
        column = f"validation/{quantity}"
        series = [line for name, curve in curves.items() for line in curve_lines(curve, {column: name})]
        if series:
            # Not from zero: a reward has no natural zero, and a small rise of a large value must be visible.
            drawn.append(lines(f"feedback-{quantity}", title, "", series, x_label="update", is_from_zero=False))
    return drawn


def _feedback_round(one: Feedback, is_control: bool) -> Markup:
    chip = html(' <span class="quiet">control, no reward</span>') if is_control else ""
    hacked = html(' <span class="hacked">hacked</span>') if one.verdict == "hacked" else ""
    rows = [
        (
            own.name,
            f"{own.before:.3f}",
            f"{own.after:.3f}",
            estimate(own.gain, signed),
            estimate(own.over_control, signed),
        )
        for own in one.measured
    ]
    caption = "Test pictures before and after, paired from the same noise, 95% intervals over prompts"
    head = ["Quantity", "before", "after", "gain", "over the control"]
    measured = table(f"Pictures before and after {one.name}", head, rows, caption, marked=[one.judge])
    return html("<h3>{}{}{}</h3>\n{}{}", one.name, chip, hacked, _sentences(one), measured)


def changes(run: PicturesRun) -> Part:
    """Pictures before and after feedback."""
    told = (
        "The choice follows a rule: the largest gains, the middle and the largest losses of all test pictures. They "
        "are measured by the truth where it is known, otherwise by the held-out score."
    )
    titles = {"gain": "Largest gains", "middle": "The middle", "loss": "Largest losses"}
    shown = []
    for name, parts in _gallery(run).changes.items():
        judge = {"truth": "truth", "held_out": "held-out score"}[judge_of(run.pictures[name])]
        strips = [html("<h4>{}</h4>\n{}", titles[why], _gallery(run).show(some)) for why, some in parts.items()]
        shown += [html('<h3>{} <span class="quiet">by the {}</span></h3>\n{}', name, judge, strips)] if strips else []
    absent = "no round of feedback kept pictures, or <code>t2i_report.shown_changes</code> is 0."
    return paragraph(told, kind="quiet") + html("{}", shown) if shown else _nothing(absent)


def losses_of_stages(run: PicturesRun) -> Part:
    """Losses of every stage that trains."""
    return losses(run.curves, "", "update")


def how_made(run: PicturesRun) -> Part:
    """The graph, parameters and metrics."""
    told = (
        "<code>dvc dag</code> shows every edge; <code>retrace explain NAME</code> the way of a generator or a reward "
        "model back to raw data."
    )
    return made(run, paragraph(told, kind="quiet"))


def _visible(text: object) -> str:
    """Writes out characters that a browser obeys, such as a change of direction."""
    return visible_text(str(text), CHARACTERS)


SECTIONS: Sections = (
    ("result", "Result", "Result", result),
    ("annotators", "Annotators", "Agreement by annotator", annotators),
    ("scorers", "Reward model", "The reward model between chance and truth", scorers),
    ("pictures", "Best and worst", "Best and worst, by people and by the reward model", pictures),
    ("disagreements", "Disagreements", "Where they disagree most", disagreements),
    ("feedback", "Feedback", "Feedback to the generator", feedback),
    ("changes", "Before and after", "Before and after, from the same noise", changes),
    ("dropped", "Dropped rows", "Why rows were dropped", dropped),
    ("losses", "Losses", "Losses", losses_of_stages),
    ("time", "Time", "Where the time went", times),
    ("made", "How it was made", "How it was made", how_made),
)
