"""Chooses the baseline's prompt: the one of some stated prompts with which it solves most validation problems."""

from __future__ import annotations

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.protocol import SamplingSettings
from stages.engines.trainers.protocol import Ranks
from stages.engines.verifier.judged_responses import Drawing, judged_responses
from stages.foundations.job import Attempt, Job
from stages.foundations.tables import PROBLEM, read_table, require_rows
from stages.observe.progress import say
from stages.respond.params import BaselinePrompts, CandidatePrompt, RespondParams


def choose_prompt(
    choice: BaselinePrompts, params: RespondParams, job: Job, attempt: Attempt, ranks: Ranks
) -> tuple[CandidatePrompt, dict[str, float]]:
    """The best candidate, and every candidate's accuracy as metrics; on every rank.

    Answers count as the stage `grade` counts them. Benchmark problems are not looked at.
    """
    table = require_rows(
        read_table(job.paths.validation, PROBLEM), job.paths.validation, "raise curate.validation_rows"
    )
    problems = table.head(choice.max_problems).to_dict("records")
    names = [problem["problem_id"] for problem in problems]
    scores = []
    for number, candidate in enumerate(choice.candidates):
        settings = SamplingSettings(params.temperature, params.top_p, params.top_k, candidate.max_response_tokens, None)
        drawing = Drawing(params.samples, settings, (job.seed, "respond", "prompt", number), f"prompt {number}")
        judged = judged_responses(
            problems,
            names,
            drawing,
            job.paths.params,
            job.paths.policy,
            attempt,
            ranks,
            own_prompt=candidate.prompt,
            require_marker=False,
        )
        verdicts = [one.judgement.verdict for of_problem in judged for one in of_problem]
        scores.append(sum(verdict is Verdict.CORRECT for verdict in verdicts) / len(verdicts))
    best = scores.index(max(scores))
    if ranks.rank == 0:
        shown = ", ".join(f"{number}: {score:.1%}" for number, score in enumerate(scores))
        say(f"{job.item} answers prompt {best}, the best on {len(problems)} validation problems ({shown})")
    metrics = {f"prompt/{number}/validation_accuracy": score for number, score in enumerate(scores)}
    return choice.candidates[best], {"prompt/chosen": best, **metrics}
