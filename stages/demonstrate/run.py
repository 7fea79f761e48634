"""The stage around the gathering: tables in, tables out."""

from __future__ import annotations

import shutil
from argparse import Namespace
from collections import Counter

import pandas

from stages.demonstrate.demonstrations import Drops, Rows, gather, sample_demonstrations, split
from stages.demonstrate.params import DemonstrateParams, RejectionSampledDemonstrations
from stages.engines.policies.tokenizers import load_tokenizer
from stages.engines.trainers.one_rank import launched_ranks
from stages.foundations.errors import UserError
from stages.foundations.job import Job
from stages.foundations.metrics import write_metrics
from stages.foundations.tables import DEMONSTRATION, DROPPED, PROBLEM, Funnel, read_table, write_table
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Reads problems and solutions, gathers, splits and writes, metrics last."""
    paths = job.paths
    params: DemonstrateParams = job.sections["demonstrate"]
    seed = job.seed
    problems, solutions = read_table(paths.problems, PROBLEM), _web_solutions(paths, params)
    tokenizer = load_tokenizer(paths.policy)

    def sample(source: RejectionSampledDemonstrations, chosen: Rows) -> tuple[Rows, Drops]:
        with run.phase("rejection_sampling"):
            return sample_demonstrations(source, chosen, paths.params, paths.policy, attempt, ranks)

    def count_tokens(texts: list[str]) -> list[int]:
        return [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]] if texts else []

    attempt = job.attempt()
    with launched_ranks() as ranks, track(attempt) as run:
        rows, drops = gather(params, problems, solutions, seed, sample, count_tokens)
        train, validation = split(rows, params.validation_rows, seed)
        if not train:
            reasons = dict(Counter(reason for _, reason, _ in drops))
            raise UserError(
                f"demonstrate: no row is left to train on (dropped: {reasons}; validation: {len(validation)}): "
                "add a source to demonstrate.sources, relax filter_web.rules, or lower validation_rows"
            )
        if ranks.rank != 0:
            return
        metrics, funnel = _metrics(rows, drops, len(train), len(validation))
        write_table(train, paths.train, DEMONSTRATION)
        write_table(validation, paths.validation, DEMONSTRATION)
        write_table(funnel.dropped_frame(), paths.dropped, DROPPED)
        write_metrics(paths.metrics, metrics, {paths.headline: {"kept": "rows/kept"}})
        run.summary(metrics)
        shutil.rmtree(attempt.pieces, ignore_errors=True)


def _web_solutions(paths: Namespace, params: DemonstrateParams) -> pandas.DataFrame:
    """Trusted solutions from the web, as far as a source asks for them."""
    if not any(source.kind == "web" for source in params.sources):
        return pandas.DataFrame(columns=PROBLEM.names)
    return read_table(paths.web / "solutions.parquet", PROBLEM)


def _metrics(rows: Rows, drops: Drops, train: int, validation: int) -> tuple[dict[str, float], Funnel]:
    funnel = Funnel("demonstrate", len(rows) + len(drops))
    for row, reason, detail in drops:
        funnel.drop(row, reason, detail)
    kinds = Counter(row["kind"] for row in rows)
    return {
        **funnel.metrics(len(rows)),
        **{f"kind/{kind}": count for kind, count in kinds.items()},
        "rows/train": train,
        "rows/validation": validation,
    }, funnel
