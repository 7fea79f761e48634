"""The sections on responses: a few problems with each policy's response, and statistics of search by trial.

Problems and responses are untrusted text: invisible characters are shown, and everything is escaped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise

import pandas
from markupsafe import Markup

from stages.algorithms.answers.verdicts import Verdict
from stages.pages.drawing import bars
from stages.pages.page import Part, answer, charts, count, html, paragraph, visible_text
from stages.report.inputs import Benchmark, ReportRun

_OUTCOMES = {
    (False, True): "{last} right, {first} wrong",
    (False, False): "both wrong",
    (True, False): "{last} wrong, {first} right",
    (True, True): "both right",
}
"""Keys: (first policy is correct, last policy is correct). In the order in which problems of each kind are taken."""


def examples(run: ReportRun) -> Part:
    """Problems of each outcome in turn, in the benchmark's order.

    Each has the greedy response, or the first sampled one if there is no greedy response.
    """
    shown = {policy: _shown(rows) for policy, rows in run.responses.items()}
    # Responses may no longer exist for all graded policies.
    last = run.last if run.last in shown else next(reversed(shown), "")
    first = run.report.baseline_policy if run.report.baseline_policy in shown else next(iter(shown), "")
    chosen = _in_turn(shown[first], shown[last], run.report.example_problems) if shown else []
    if not chosen:
        told = "There are no graded responses to show, or <code>report.example_problems</code> is 0."
        return paragraph(told, kind="absent")
    told = (
        "The first problems of each outcome, in turn: an illustration, not a random sample. Each shows the greedy "
        "response, or the first sampled one where there is no greedy one."
    )
    articles = []
    for key, outcome in chosen:
        words = _OUTCOMES[outcome].format(first=first, last=last)
        if first == last:
            words = "right" if outcome[1] else "wrong"
        responses = [_response(run, policy, rows.loc[key]) for policy, rows in shown.items() if key in rows.index]
        problem = shown[last].loc[key]
        articles.append(
            html(
                '<article class="card example">\n{}<pre class="problem" dir="auto">{}</pre>\n{}'
                '<div class="answers">\n{}</div>\n</article>\n',
                paragraph("{} · {} · {}", key[0], _visible(run, key[1]), words, kind="quiet"),
                _visible(run, problem["problem"]),
                paragraph("Answer <code>{}</code>", _visible(run, problem["answer"]), kind="gold"),
                responses,
            )
        )
    return html("{}{}", paragraph(told, kind="quiet"), articles)


def _visible(run: ReportRun, text: object) -> str:
    return visible_text(text, run.report.example_characters)


def _shown(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Returns one response of each problem, by (benchmark, problem id), in the table's order of problems."""
    ranked = rows.assign(is_sampled=rows["mode"] != "greedy", place=range(len(rows)))
    # The greedy response first, then the first sample.
    ranked = ranked.sort_values(["is_sampled", "sample_index", "place"])
    picked = ranked.drop_duplicates(["benchmark", "problem_id"]).sort_values("place")
    return picked.set_index(["benchmark", "problem_id"])


def _in_turn(
    first: pandas.DataFrame, last: pandas.DataFrame, count: int
) -> list[tuple[tuple[str, str], tuple[bool, bool]]]:
    kinds: dict[tuple[bool, bool], list[tuple[str, str]]] = {outcome: [] for outcome in _OUTCOMES}
    was_correct = (first["verdict"] == Verdict.CORRECT.value).to_dict()
    for key, verdict in last["verdict"].items():
        # A problem that only one of the two policies has answered has no outcome to show.
        if key in was_correct:
            kinds[was_correct[key], verdict == Verdict.CORRECT.value].append(key)
    chosen = []
    while len(chosen) < count and any(kinds.values()):
        chosen += [(keys.pop(0), outcome) for outcome, keys in kinds.items() if keys]
    return chosen[:count]


def _response(run: ReportRun, policy: str, row: pandas.Series) -> Markup:
    """Shows one policy's response, and how many of its samples are right if it has samples."""
    rows, (benchmark, problem_id) = run.responses[policy], row.name
    samples = rows[(rows["benchmark"] == benchmark) & (rows["problem_id"] == problem_id) & (rows["mode"] == "sampled")]
    right = int((samples["verdict"] == Verdict.CORRECT.value).sum())
    has_episode = row.get("observed_characters") is not None
    cut_off = ", cut off by the token limit" if row["is_truncated"] else ""
    of_samples = f" · {right} of {len(samples)} samples right" if len(samples) else ""
    return answer(
        policy,
        row["verdict"].replace("_", " "),
        row["verdict"] == Verdict.CORRECT.value,
        _episode(run, row) if has_episode else html('<pre dir="auto">{}</pre>\n', _visible(run, row["response"])),
        paragraph("{} tokens{}{}", count(int(row["response_tokens"])), cut_off, of_samples, kind="quiet"),
    )


def _episode(run: ReportRun, row: pandas.Series) -> Markup:
    """Shows a response of several turns; what the environment wrote is set off."""
    cuts = [0, *row["observed_characters"], len(row["response"])]
    # Policy and environment alternate: every second stretch between two cuts was observed.
    segments = [(row["response"][a:b], place % 2 == 1) for place, (a, b) in enumerate(pairwise(cuts)) if a < b]
    texts = [
        html('<span class="observed">{}</span>' if is_observed else "{}", _visible(run, text))
        for text, is_observed in segments
    ]
    told = [f"turns {row['turns']:.0f}, calls {row['calls']:.0f}, failed calls {row['failed_calls']:.0f}"]
    # pandas has NaN for a missing text.
    ending, fault = (text if isinstance(text, str) else "" for text in (row["ending"], row["environment_fault"]))
    told += [f", ending {ending.replace('_', ' ')}"] if ending else []
    told += [html(' · <span class="observed">written by the environment</span>')] if len(segments) > 1 else []
    told += [f" · the environment failed: {_visible(run, fault)}"] if fault else []
    return html('<pre dir="auto">{}</pre>\n{}', texts, paragraph("{}", told, kind="quiet"))


_SHARES = {
    "no trial at all": "without_trials_fraction",
    "trials that repeat": "repeated_trial_fraction",
    "trials that are wrong": "wrong_trial_fraction",
}
_SOLVED = {"by every sample": "always_solved_fraction", "by none": "never_solved_fraction"}
_WORDS = "keyword_rate_"
# A chart has five colours.
_MOST_WORDS = 5


def search(run: ReportRun) -> Part:
    """The benchmarks whose responses consist of trials; None if there is none."""
    keys = {key for policy in run.graded for key in run.grades(policy)}
    searched = [_search(run, one, keys) for one in run.benchmarks if f"{one.name}/trials_mean" in keys]
    told = (
        "A trial is a line such as <code>4,7:8+35=43 yes</code>. A claim is a trial that ends in “yes”; it is false "
        "where that pair does not solve the problem. Shares of trials and of claims are taken over all of them, other "
        "shares over responses."
    )
    return html("{}{}", paragraph(told, kind="quiet"), searched) if searched else None


def _search(run: ReportRun, benchmark: Benchmark, keys: Collection[str]) -> Markup:
    start = f"{benchmark.name}/{_WORDS}"
    words = sorted(key.removeprefix(start) for key in keys if key.startswith(start))[:_MOST_WORDS]
    columns_of_words = {f"“{word.replace('_', ' ')}”": _WORDS + word for word in words}
    panels: list[tuple[str, str, str, Mapping[str, str]]] = [
        ("trials", "Trials of a response", "trials", {"mean": "trials_mean"}),
        ("claims", "“Yes” to a wrong pair", "%", {"of all claims": "false_claim_fraction"}),
        ("shares", "How responses search", "%", _SHARES),
        ("words", "Responses with words of retrying", "%", columns_of_words),
        ("solved", "Problems that are solved", "%", _SOLVED),
    ]
    drawn = [
        bars(f"search-{name}-{benchmark.number}", title, unit, series)
        for name, title, unit, columns in panels
        if (series := {label: own for label, column in columns.items() if (own := benchmark.values(column))})
    ]
    baseline = run.report.baseline_policy
    sentences = [
        paragraph("{}", _sentence(benchmark, baseline, policy))
        for policy in run.rounds
        if policy in run.graded and baseline in run.graded and policy != baseline
    ]
    return html("<h3>{}</h3>\n{}{}", benchmark.name, sentences, charts(drawn))


def _sentence(benchmark: Benchmark, baseline: str, policy: str) -> str:
    """Describes changes from one policy to another: trials, length, truncated responses, false claims."""

    def both(column: str, factor: int, digits: int, unit: str) -> str:
        values = (benchmark.value(name, column) for name in (baseline, policy))
        # A number may be missing, because grades are not validated.
        first, second = ("?" if value is None else f"{value * factor:.{digits}f}{unit}" for value in values)
        return f"{first} to {second}"

    return (
        f"From {baseline} to {policy}: {both('trials_mean', 1, 1, '')} trials a response, "
        f"{both('response_tokens_mean', 1, 0, '')} tokens, {both('truncated_fraction', 100, 1, '%')} cut off; "
        f"{both('without_trials_fraction', 100, 1, '%')} answer without a trial, and "
        f"{both('false_claim_fraction', 100, 1, '%')} of the claims are false."
    )
