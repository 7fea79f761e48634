"""Verifies the stored responses of a policy and scores each benchmark.

The headline is a folder with one file for each benchmark. scores.py has the scores and their intervals.
"""

from __future__ import annotations

import pandas

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from stages.foundations.errors import UserError
from stages.foundations.files import write_metrics
from stages.foundations.job import Job
from stages.foundations.tables import RESPONSE, SAMPLED, VERDICT, read_table, require_rows, write_table
from stages.grade.scores import headlines, score_benchmarks
from stages.grade.stage import GradeParams
from stages.observe.progress import progress
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Verifies the responses, scores each benchmark and writes verdicts and scores, metrics last."""
    paths = job.paths
    params: GradeParams = job.sections["grade"]
    limits: VerifierParams = job.sections["verifier"]
    responses = require_rows(read_table(paths.responses, RESPONSE), paths.responses, "run the respond stage again")
    with track(job.attempt(policy=job.item)) as run:
        with run.phase("verify"), Verifier(limits) as verifier:
            verdicts = judge_responses(responses, verifier)
        refuse_failures(verdicts, limits)
        with run.phase("score"):
            metrics = score_benchmarks(responses, verdicts, params)
        write_table(verdicts, paths.verdicts, VERDICT)
        shown = {paths.headline / f"{name}.json": columns for name, columns in headlines(metrics).items()}
        write_metrics(paths.metrics, metrics, shown)
        run.summary(metrics)


# In portions, so that a line of progress appears now and then.
_ROWS_AT_ONCE = 1_000


def judge_responses(responses: pandas.DataFrame, verifier: Verifier) -> pandas.DataFrame:
    """The verdict table of a response table, in its row order."""
    judgements = []
    starts = range(0, len(responses), _ROWS_AT_ONCE)
    for start in progress(starts, label="grade", unit=f"x {_ROWS_AT_ONCE} responses"):
        rows = responses.iloc[start : start + _ROWS_AT_ONCE]
        pairs = list(zip(rows["answer"], rows["response"], strict=True))
        # A response must mark its answer (a box): a number somewhere in the text is not enough for a score.
        judgements += verifier.judge(pairs, truncated=rows["is_truncated"].tolist(), require_marker=True)
    # `score_benchmarks` joins the two tables by position, so the order stays.
    verdicts = responses[[*SAMPLED]].reset_index(drop=True)
    for column in ("verdict", "extracted", "path", "reason"):
        verdicts[column] = [_storable(getattr(judgement, column)) for judgement in judgements]
    return verdicts


def refuse_failures(verdicts: pandas.DataFrame, limits: VerifierParams) -> None:
    """UserError when the verifier itself failed on too many responses: the scores would measure the verifier.

    Unparsed responses do not count: a model that gives no answer is a fact about the model.
    """
    failures = verdicts["verdict"].isin([verdict.value for verdict in Verdict if verdict.is_failure])
    if failures.mean() > limits.abort_undecided_fraction:
        counts = verdicts.loc[failures, "verdict"].value_counts().to_dict()
        named = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        raise UserError(
            f"the verifier failed on {int(failures.sum())} of {len(verdicts)} responses ({named}), more than "
            f"verifier.abort_undecided_fraction = {limits.abort_undecided_fraction:g}: raise "
            f"verifier.timeout_seconds ({limits.timeout_seconds:g}) or verifier.memory_mib ({limits.memory_mib}), "
            "or the threshold if such answers are to be expected"
        )


def _storable(value: str | None) -> str | None:
    """Text that Parquet can hold: lone surrogates, which model output may contain, become question marks."""
    return None if value is None else str(value).encode("utf-8", "replace").decode("utf-8")
