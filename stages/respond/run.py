"""Samples responses in pieces, so that a killed run resumes after the last finished piece.

`choose_prompt`, at the end, gives the baseline policy the best of some prompts.
"""

from __future__ import annotations

import itertools
import math
import shutil
from contextlib import closing
from pathlib import Path

import pandas

from stages.engines.pieces import are_whole, seal
from stages.engines.policies.tokenizers import decode_response, encode_prompt, load_tokenizer
from stages.engines.replicas.build import build_sampler
from stages.engines.samplers.build import DrawingShare, context_tokens, drawing_share
from stages.engines.samplers.episodes import episode_columns
from stages.engines.samplers.params import SamplerParams
from stages.engines.samplers.protocol import Sample, Sampler, SamplingSettings, StopReason, sample_prompts
from stages.engines.trainers.one_rank import launched_ranks
from stages.engines.trainers.protocol import Ranks
from stages.engines.turns import problem_columns, problem_texts
from stages.foundations.files import write_metrics
from stages.foundations.job import Attempt, Job
from stages.foundations.params import ChatPrompt, PlainPrompt, PromptParams
from stages.foundations.tables import BENCHMARK, PROBLEM, RESPONSE, read_table, require_rows, write_table
from stages.observe.progress import progress, say, say_warnings
from stages.observe.tracking import Run, track
from stages.respond.stage import BaselinePrompts, CandidatePrompt, RespondParams

NO_RESPONSE = Sample([], [], StopReason.MAX_TOKENS, 0)
"""Response to a prompt that leaves no room for one."""


def main(job: Job) -> None:
    """Reads the benchmarks, samples the responses and writes them, metrics last."""
    paths = job.paths
    params: RespondParams = job.sections["respond"]
    sampler_params: SamplerParams = job.sections["sampler"]
    prompt: PromptParams = job.sections["prompt"]
    seed = job.seed
    frame = require_rows(read_table(paths.benchmarks, BENCHMARK), paths.benchmarks, "name a benchmark in `sources`")
    if params.max_problems is not None:
        # The first rows, not random ones: a run with a lower limit answers some of the same problems.
        frame = frame.groupby("benchmark", sort=False).head(params.max_problems)
    tokenizer = load_tokenizer(paths.policy)
    attempt = job.attempt(policy=job.item)
    with launched_ranks() as ranks, track(attempt) as run:
        share, choice = drawing_share(sampler_params, ranks), params.baseline_prompts
        chosen: dict[str, float] = {}
        if choice and choice.policy == job.item:
            best, chosen = choose_prompt(choice, params, job, attempt, ranks)
            prompt = best.prompt
            params = params.model_copy(update={"max_response_tokens": best.max_response_tokens})
        context = context_tokens(sampler_params, paths.policy)
        with closing(build_sampler(sampler_params, paths.policy, prompt=prompt)) as sampler:
            responses = respond(frame, params, prompt, seed, sampler, share, tokenizer, attempt.scratch, run, context)
        # On ranks other than 0: rank 0's table has their responses.
        if responses is None:
            return
        metrics = response_metrics(responses) | chosen
        run.summary(metrics)
        write_table(responses, paths.responses, RESPONSE)
        write_metrics(paths.metrics, metrics)
        say_warnings("respond", job.item, metrics)
        # Only now: until the outputs are written, a killed run resumes from these pieces.
        for piece in attempt.scratch.glob("responses-*"):
            piece.unlink()
        shutil.rmtree(attempt.pieces, ignore_errors=True)


def respond(
    problems: pandas.DataFrame,
    params: RespondParams,
    prompt: PlainPrompt | ChatPrompt,
    seed: int,
    sampler: Sampler,
    share: DrawingShare,
    tokenizer,
    scratch: Path,
    run: Run,
    context: float = math.inf,
) -> pandas.DataFrame | None:
    """Returns the `response` table: for each piece of problems, greedy responses first, then the sampled ones.

    A problem whose prompt and response would take more than `context` tokens gets empty responses.
    All ranks sample together; None except on rank 0.
    """
    starts = range(0, len(problems), params.problems_at_once)
    places = [scratch / f"responses-{number:06d}.parquet" for number in range(len(starts))]
    for number, start in enumerate(progress(starts, label="respond", unit="pieces")):
        # Rank 0 decides for all: ranks that disagree would wait for each other forever.
        if share.ranks.broadcast(share.ranks.rank == 0 and are_whole(places[number])):
            continue
        piece = problems.iloc[start : start + params.problems_at_once].to_dict("records")
        with run.phase("sample"):
            rows = _respond_to(piece, params, prompt, seed, sampler, share, tokenizer, context)
        if share.ranks.rank == 0:
            write_table(rows, places[number], RESPONSE)
            seal(places[number])
        run.log({"progress/problems": start + len(piece)}, step=number)
    if share.ranks.rank != 0:
        return None
    return pandas.concat([read_table(place, RESPONSE) for place in places], ignore_index=True)


def _respond_to(
    piece: list[dict],
    params: RespondParams,
    prompt: PlainPrompt | ChatPrompt,
    seed: int,
    sampler: Sampler,
    share: DrawingShare,
    tokenizer,
    context: float,
) -> list[dict]:
    mine = share.of(piece)
    prompts = [encode_prompt(tokenizer, prompt, text) for text in problem_texts(prompt, mine)]
    fits = [len(one) + params.max_response_tokens <= context for one in prompts]
    # Random numbers depend on these names, so an additional benchmark does not change responses to the others.
    names = [f"{row['benchmark']}/{row['problem_id']}" for row in mine]
    limit = params.max_response_tokens
    sampled = SamplingSettings(params.temperature, params.top_p, params.top_k, limit, None)
    # Temperature 0 means greedy to every sampler; top_p 1 and top_k 0 switch both filters off.
    greedy = SamplingSettings(0.0, 1.0, 0, limit, None)
    modes = [("greedy", 1, greedy)] if params.is_greedy_included else []
    rows = []
    for mode, count, settings in [*modes, ("sampled", params.samples, sampled)]:
        *given, columns = _only(fits, prompts, names, [problem_columns(prompt, row) for row in mine])
        drawn = iter(sample_prompts(sampler, *given, count, settings, seed, "respond", problems=columns))
        of_problems = [
            # A prompt that does not fit gets an empty response, which `grade` counts as wrong.
            [
                _row(problem, mode, index, sample, tokenizer)
                for index, sample in enumerate(next(drawn) if is_fitting else [NO_RESPONSE] * count)
            ]
            for problem, is_fitting in zip(mine, fits, strict=True)
        ]
        rows += itertools.chain.from_iterable(share.assemble(of_problems, len(piece)))
    return rows


def _only(fits: list[bool], *columns: list) -> list[list]:
    return [[value for value, is_fitting in zip(column, fits, strict=True) if is_fitting] for column in columns]


def _row(problem: dict, mode: str, index: int, sample: Sample, tokenizer) -> dict:
    return {
        "problem_id": problem["problem_id"],
        "benchmark": problem["benchmark"],
        "problem": problem["problem"],
        "answer": problem["answer"],
        "mode": mode,
        "sample_index": index,
        "response": decode_response(tokenizer, sample.token_ids),
        "response_tokens": sample.policy_tokens,
        "is_truncated": sample.is_truncated,
        **episode_columns(sample),
        **_observed_text(sample, tokenizer),
    }


def _observed_text(sample: Sample, tokenizer) -> dict[str, list[int]]:
    """Returns where the response's text was observed, for pages, which have no tokens; empty without an episode."""
    if sample.episode is None:
        return {}
    places = [place for span in sample.episode.observed for place in span]
    return {"observed_characters": [len(decode_response(tokenizer, sample.token_ids[:place])) for place in places]}


def response_metrics(responses: pandas.DataFrame) -> dict[str, float]:
    """Returns counts of the table, and the mean length and truncated share of the sampled responses."""
    sampled = responses[responses["mode"] == "sampled"]
    # Every sampled response has at least one token, the end token.
    unanswered = responses[responses["response_tokens"] == 0]["problem_id"].nunique()
    return {
        **({"prompts/too_long": unanswered} if unanswered else {}),
        "rows/kept": len(responses),
        "tokens/sampled": int(responses["response_tokens"].sum()),
        "length/response_tokens_mean": float(sampled["response_tokens"].mean()),
        "length/truncated_fraction": float(sampled["is_truncated"].mean()),
        **_episode_metrics(responses),
    }


def _episode_metrics(responses: pandas.DataFrame) -> dict[str, float]:
    """Returns turns, calls and observed tokens of the sampled episodes; empty without an environment."""
    if "turns" not in responses:
        return {}
    # Prompts that leave no room for a response have no episode.
    episodes = responses[(responses["mode"] == "sampled") & responses["turns"].notna()]
    calls, spans = episodes["calls"].sum(), responses["observed"].dropna()
    return {
        "turns/mean": float(episodes["turns"].mean()),
        "calls/mean": float(episodes["calls"].mean()),
        "calls/failed_fraction": float(episodes["failed_calls"].sum() / max(1, calls)),
        "tokens/observed": int(sum(sum(span[1::2]) - sum(span[::2]) for span in spans)),
        "environment/fault_fraction": float((episodes["environment_fault"] != "").mean()),
    }


def choose_prompt(
    choice: BaselinePrompts, params: RespondParams, job: Job, attempt: Attempt, ranks: Ranks
) -> tuple[CandidatePrompt, dict[str, float]]:
    """Returns the best candidate, and every candidate's accuracy as metrics; on every rank.

    Answers are graded as in stage `grade`. Benchmark problems are not used.
    """
    # Imported here, because most runs choose no prompt and do not need the verifier.
    from stages.algorithms.answers.verdicts import Verdict
    from stages.engines.verifier.judged_responses import Drawing, judged_responses

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
            prompt=candidate.prompt,
            require_marker=False,
        )
        verdicts = [one.judgement.verdict for of_problem in judged for one in of_problem]
        scores.append(sum(verdict is Verdict.CORRECT for verdict in verdicts) / len(verdicts))
    # The first of equal ones, as documented in `BaselinePrompts.candidates`.
    best = scores.index(max(scores))
    if ranks.rank == 0:
        shown = ", ".join(f"{number}: {score:.1%}" for number, score in enumerate(scores))
        say(f"{job.item} answers prompt {best}, the best on {len(problems)} validation problems ({shown})")
    metrics = {f"prompt/{number}/validation_accuracy": score for number, score in enumerate(scores)}
    return choice.candidates[best], {"prompt/chosen": best, **metrics}
