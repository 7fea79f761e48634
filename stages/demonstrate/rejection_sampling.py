"""Rejection sampling: a policy's own responses that the verifier calls correct, as demonstrations."""

from __future__ import annotations

from pathlib import Path

from stages.algorithms.answers.verdicts import Verdict
from stages.demonstrate.demonstrations import Drops, Rows, demonstration
from stages.demonstrate.params import RejectionSampledDemonstrations
from stages.engines.samplers.protocol import SamplingSettings
from stages.engines.trainers.protocol import Ranks
from stages.engines.verifier.judged_responses import Drawing, JudgedResponse, judged_responses
from stages.foundations.attempt import Attempt
from stages.foundations.params import load_value


def sample_demonstrations(
    source: RejectionSampledDemonstrations,
    problems: Rows,
    params_path: Path,
    policy: Path,
    attempt: Attempt,
    ranks: Ranks,
) -> tuple[Rows, Drops]:
    """Correct, complete, different responses, at most `kept_per_problem` of each problem; the others with reasons.

    Drawn and judged by all ranks together, each its share of the problems; all of them get all.
    """
    settings = SamplingSettings(source.temperature, 1.0, 0, source.max_response_tokens, None)
    seed = load_value(params_path, "seed"), "demonstrate", "rejection_sampled"
    drawing = Drawing(source.samples, settings, seed, "rejection sampling")
    names = [problem["problem_id"] for problem in problems]
    judged = judged_responses(problems, names, drawing, params_path, policy, attempt, ranks)
    rows: Rows = []
    drops: Drops = []
    for problem, of_problem in zip(problems, judged, strict=True):
        _sort_out(source, problem, of_problem, rows, drops)
    return rows, drops


def _sort_out(
    source: RejectionSampledDemonstrations,
    problem: dict,
    judged: list[JudgedResponse],
    rows: Rows,
    drops: Drops,
) -> None:
    kept: set[str] = set()
    for index, one in enumerate(judged):
        row = demonstration(problem, "rejection_sampled", one.text, index)
        if one.is_truncated:
            drops.append((row, "truncated", f"{one.tokens} tokens"))
        elif one.judgement.verdict is not Verdict.CORRECT:
            drops.append(
                (
                    row,
                    str(one.judgement.verdict),
                    f"extracted {one.judgement.extracted}, not {problem['answer']}",
                )
            )
        elif one.text in kept:
            drops.append((row, "repeated", "the same response came before"))
        elif len(kept) == source.kept_per_problem:
            drops.append((row, "beyond_kept_per_problem", ""))
        else:
            kept.add(one.text)
            rows.append(row)
