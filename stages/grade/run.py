"""Verifies the stored responses of a policy and scores each benchmark.

The headline is a folder with one file for each benchmark. scores.py has the scores and their intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pandas

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.episodes import episode_of, fields_for_functions
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Judgement, Verifier, extract_complete, overruled, thought_markers
from stages.foundations.errors import UserError
from stages.foundations.files import write_metrics
from stages.foundations.job import Job
from stages.foundations.params import CustomFunctionParams, chosen
from stages.foundations.tables import EPISODE, RESPONSE, SAMPLED, VERDICT, read_table, require_rows, write_table
from stages.grade.scores import headlines, score_benchmarks
from stages.grade.stage import GradeParams
from stages.observe.progress import progress
from stages.observe.tracking import track

if TYPE_CHECKING:
    from stages.engines.custom_functions import CustomFunction


def main(job: Job) -> None:
    """Verifies the responses, scores each benchmark and writes verdicts and scores, metrics last."""
    paths = job.paths
    params: GradeParams = job.sections["grade"]
    limits: VerifierParams = job.sections["verifier"]
    responses = require_rows(read_table(paths.responses, RESPONSE), paths.responses, "run the respond stage again")
    with track(job.attempt(policy=job.item)) as run:
        with run.phase("verify"):
            verdicts = _verify(responses, params, limits)
        refuse_failures(verdicts, limits, params)
        with run.phase("score"):
            metrics = score_benchmarks(responses, verdicts, params)
        write_table(verdicts, paths.verdicts, VERDICT)
        shown = {paths.headline / f"{name}.json": columns for name, columns in headlines(metrics).items()}
        write_metrics(paths.metrics, metrics, shown)
        run.summary(metrics)


def _verify(responses: pandas.DataFrame, params: GradeParams, limits: VerifierParams) -> pandas.DataFrame:
    """The verdict table, by the function of `grade.verifier` or by the rules."""
    match chosen("grade.verifier", params.verifier):
        case CustomFunctionParams() as custom:
            from stages.engines.custom_functions import CustomFunction

            with CustomFunction(custom, limits) as function:
                return judge_responses(responses, lambda rows: judge_by_function(rows, function, limits))
    with Verifier(limits) as verifier:

        def judge(rows: pandas.DataFrame) -> list[Judgement]:
            pairs = list(zip(rows["answer"], judged_texts(rows), strict=True))
            # A response must mark its answer (a box): a number somewhere in the text is not enough for a score.
            return verifier.judge(pairs, truncated=rows["is_truncated"].tolist(), require_marker=True)

        return judge_responses(responses, judge)


def judged_texts(rows: pandas.DataFrame) -> list[str]:
    """Returns the text of each response to judge: of an episode the answer alone, not what a tool printed."""
    if "final_response" not in rows:
        return rows["response"].tolist()
    return rows["final_response"].fillna(rows["response"]).tolist()


def judge_by_function(rows: pandas.DataFrame, function: CustomFunction, limits: VerifierParams) -> list[Judgement]:
    """A judgement for each row of a response table. A fault of the function is `crashed`, its sentence the reason.

    `extracted` is what the rules find in the response: majority votes distinguish wrong answers by it.
    """
    path, judgements = f"{function.params.file}: {function.params.name}", []
    records = rows.drop(columns=[*EPISODE], errors="ignore").to_dict("records")
    if "turns" in rows:
        episodes = map(episode_of, rows.to_dict("records"))
        records = [row | fields_for_functions(episode) for row, episode in zip(records, episodes, strict=True)]
    for row, text, value in zip(rows.itertuples(), judged_texts(rows), function.decide(records), strict=True):
        verdict = Verdict.CRASHED if value.fault else Verdict.CORRECT if value.value else Verdict.WRONG
        extracted = extract_complete(text, row.is_truncated, thought_markers(limits)).text
        judgements.append(Judgement(verdict, extracted, path, value.fault))
    return judgements


# In portions, so that a line of progress appears now and then.
_ROWS_AT_ONCE = 1_000


def judge_responses(
    responses: pandas.DataFrame, judge: Callable[[pandas.DataFrame], list[Judgement]]
) -> pandas.DataFrame:
    """The verdict table of a response table, in its row order. Decisions of an environment are final."""
    judgements = []
    starts = range(0, len(responses), _ROWS_AT_ONCE)
    for start in progress(starts, label="grade", unit=f"x {_ROWS_AT_ONCE} responses"):
        rows = responses.iloc[start : start + _ROWS_AT_ONCE]
        episodes = map(episode_of, rows.to_dict("records"))
        judgements += [overruled(*pair) for pair in zip(judge(rows), episodes, strict=True)]
    # `score_benchmarks` joins the two tables by position, so the order stays.
    verdicts = responses[[*SAMPLED]].reset_index(drop=True)
    for column in ("verdict", "extracted", "path", "reason"):
        verdicts[column] = [_storable(getattr(judgement, column)) for judgement in judgements]
    return verdicts


def refuse_failures(verdicts: pandas.DataFrame, limits: VerifierParams, params: GradeParams) -> None:
    """UserError when the verifier itself failed on too many responses: the scores would measure the verifier.

    Unparsed responses do not count: a model that gives no answer is a fact about the model.
    """
    failures = verdicts["verdict"].isin([verdict.value for verdict in Verdict if verdict.is_failure])
    if failures.mean() > limits.abort_undecided_fraction:
        counts = verdicts.loc[failures, "verdict"].value_counts().to_dict()
        named = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        remedy = (
            f"raise verifier.timeout_seconds ({limits.timeout_seconds:g}) or "
            f"verifier.memory_mib ({limits.memory_mib}), or the threshold if such answers are to be expected"
        )
        if params.verifier:
            first = verdicts.loc[failures, "reason"].iloc[0]
            remedy = f"correct {params.verifier.file} (the first: {first})"
        raise UserError(
            f"the verifier failed on {int(failures.sum())} of {len(verdicts)} responses ({named}), more than "
            f"verifier.abort_undecided_fraction = {limits.abort_undecided_fraction:g}: {remedy}"
        )


def _storable(value: str | None) -> str | None:
    """Text that Parquet can hold: lone surrogates, which model output may contain, become question marks."""
    return None if value is None else str(value).encode("utf-8", "replace").decode("utf-8")
