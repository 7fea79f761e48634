"""Gathers demonstrations: web solutions, given solutions and conversations, and correct responses of the policy.

Splits off validation, then takes training rows by weight.

A solution becomes the text that a policy learns to write; it ends in `The answer is \\boxed{..}.`. Rejection sampling
keeps responses that the verifier judges as correct.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas

from stages.algorithms.answers.extraction import THOUGHT_MARKERS, Markers, extract_answer
from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.problem_text import normalise_problem
from stages.demonstrate.stage import (
    DemonstrateParams,
    GivenDemonstrations,
    RejectionSampledDemonstrations,
    WebDemonstrations,
)
from stages.engines.policies.tokenizers import encode_response, load_tokenizer
from stages.engines.samplers.protocol import SamplingSettings
from stages.engines.trainers.one_rank import launched_ranks
from stages.engines.verifier.judged_responses import Drawing, JudgedResponse, judged_responses
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Judgement, Verifier, thought_markers
from stages.foundations.errors import UserError
from stages.foundations.files import write_metrics
from stages.foundations.job import Attempt, Job
from stages.foundations.params import load_section, load_value
from stages.foundations.seeds import derive_seed
from stages.foundations.tables import DEMONSTRATION, DROPPED, PROBLEM, Funnel, read_table, write_table
from stages.observe.tracking import track

if TYPE_CHECKING:
    from stages.engines.trainers.protocol import Ranks


def main(job: Job) -> None:
    """Reads problems and solutions, gathers, splits and writes, metrics last."""
    paths = job.paths
    params: DemonstrateParams = job.sections["demonstrate"]
    seed = job.seed
    problems, solutions = read_table(paths.problems, PROBLEM), _web_solutions(paths, params)
    conversations = read_table(paths.conversations, PROBLEM)
    tokenizer = load_tokenizer(paths.policy)
    verifier = load_section(paths.params, "verifier", VerifierParams)
    markers = thought_markers(verifier)

    def sample(source: RejectionSampledDemonstrations, chosen: Rows) -> tuple[Rows, Drops]:
        with run.phase("rejection_sampling"):
            return sample_demonstrations(source, chosen, paths.params, paths.policy, attempt, ranks)

    def judge(pairs: list[tuple[str, str]]) -> list[Judgement]:
        # The ranks would all come to the same judgements, so one is enough.
        judged = None
        if ranks.rank == 0:
            with run.phase("verification"), Verifier(verifier) as opened:
                judged = opened.judge(pairs, require_marker=True)
        return ranks.broadcast(judged)

    def count_tokens(texts: list[str]) -> list[int]:
        # `max_response_tokens` does not count the token that ends a response.
        return [len(encode_response(tokenizer, text)) - 1 for text in texts]

    attempt = job.attempt()
    with launched_ranks() as ranks, track(attempt) as run:
        rows, drops = gather(params, problems, solutions, conversations, seed, sample, judge, count_tokens, markers)
        train, validation = split(rows, params.validation_rows, seed)
        train, not_drawn = take_by_weight(train, seed)
        drops += not_drawn
        # On every rank: if only one raised, the others would wait for it.
        if not train:
            reasons = dict(Counter(reason for _, reason, _ in drops))
            raise UserError(
                f"demonstrate: no row is left to train on (dropped: {reasons}; validation: {len(validation)}): "
                "add a source to demonstrate.sources, relax filter_web.rules, or lower validation_rows"
            )
        # All ranks have sampled; the tables are the same on each.
        if ranks.rank != 0:
            return
        # Copies of a row count as one: they are not input rows.
        rows = list({id(row): row for row in [*train, *validation]}.values())
        for row in rows:
            row.pop("weight", None)
        metrics, funnel = _metrics(rows, drops, len(train), len(validation))
        write_table(train, paths.train, DEMONSTRATION)
        write_table(validation, paths.validation, DEMONSTRATION)
        write_table(funnel.dropped_frame(), paths.dropped, DROPPED)
        write_metrics(paths.metrics, metrics, {paths.headline: {"kept": "rows/kept"}})
        run.summary(metrics)
        shutil.rmtree(attempt.pieces, ignore_errors=True)


def _web_solutions(paths: Namespace, params: DemonstrateParams) -> pandas.DataFrame:
    """Returns trusted solutions from the web, empty if no source uses them."""
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


Rows = list[dict[str, Any]]
Drops = list[tuple[dict[str, Any], str, str]]
"""Rows with the reason and detail of their drop."""
Sample = Callable[[RejectionSampledDemonstrations, Rows], tuple[Rows, Drops]]
"""Samples responses to problems; returns demonstrations and the dropped responses."""
Judge = Callable[[list[tuple[str, str]]], list[Judgement]]
"""Judges pairs of answer and solution."""
CountTokens = Callable[[list[str]], list[int]]


def gather(
    params: DemonstrateParams,
    problems: pandas.DataFrame,
    solutions: pandas.DataFrame,
    conversations: pandas.DataFrame,
    seed: int,
    sample: Sample,
    judge: Judge,
    count_tokens: CountTokens,
    markers: Markers,
) -> tuple[Rows, Drops]:
    """Returns demonstrations of all sources in the order of the parameters, and the dropped rows."""
    rows: Rows = []
    drops: Drops = []
    for source in params.sources:
        match source:
            case WebDemonstrations():
                gathered, left_out = _solved(solutions.to_dict("records"), "web", source.max_rows, seed, markers)
            case GivenDemonstrations():
                solved = problems[problems["solution"].notna()].to_dict("records")
                came = [*solved, *conversations.to_dict("records")]
                chosen = [row for row in came if source.sources is None or row["source"] in source.sources]
                chosen, wrong = _verified(chosen, judge) if source.verified else (chosen, [])
                gathered, left_out = _solved(chosen, "given", source.max_rows, seed, markers)
                left_out = wrong + left_out
            case RejectionSampledDemonstrations():
                # Problems that are not drawn do not count as dropped: they were not demonstrations yet.
                drawn, _ = _draw(problems.to_dict("records"), source.max_problems, seed, "rejection_sampled")
                gathered, left_out = sample(source, drawn)
        rows += [{**row, "weight": source.weight} for row in gathered] if source.weight else gathered
        drops += left_out
    return _drop_unusable(rows, drops, params.max_response_tokens, count_tokens)


def _verified(problems: Rows, judge: Judge) -> tuple[Rows, Drops]:
    """Returns the problems whose solution is correct, and conversations; drops others with their verdict."""
    solved = [problem for problem in problems if "messages" not in problem]
    judged = iter(judge([(problem["answer"], problem["solution"]) for problem in solved]))
    kept: Rows = []
    drops: Drops = []
    for problem in problems:
        judgement = None if "messages" in problem else next(judged)
        if judgement is None or judgement.verdict is Verdict.CORRECT:
            kept.append(problem)
        else:
            detail = f"extracted {judgement.extracted}, not {problem['answer']}"
            drops.append((problem, f"solution_{judgement.verdict}", detail))
    return kept, drops


def _solved(problems: Rows, kind: str, limit: int | None, seed: int, markers: Markers) -> tuple[Rows, Drops]:
    """Returns problems with a solution, and conversations, as demonstrations; drops those beyond the limit."""
    chosen, left_out = _draw(problems, limit, seed, kind)
    rows = [
        {**demonstration(problem, "chat", _assistant_turns(problem)[-1]), "messages": problem["messages"]}
        if "messages" in problem
        else demonstration(problem, kind, as_response(problem["solution"], problem["answer"], markers))
        for problem in chosen
    ]
    # The rows left out have a solution, so the funnel must count them.
    return rows, [(problem, "beyond_max_rows", kind) for problem in left_out]


def _assistant_turns(row: dict[str, Any]) -> list[str]:
    return [turn["content"] for turn in json.loads(row["messages"]) if turn["role"] == "assistant"]


def demonstration(problem: dict[str, Any], kind: str, response: str, index: int = 0) -> dict[str, Any]:
    """Returns a row of the demonstration table; `index` distinguishes several responses to one problem."""
    return {
        "demonstration_id": f"{kind}:{problem['problem_id']}:{index}",
        "problem_id": problem["problem_id"],
        "source": problem["source"],
        "kind": kind,
        "problem": problem["problem"],
        "response": response,
        "licence": problem["licence"],
    }


def _draw(rows: Rows, limit: int | None, seed: int, name: str) -> tuple[Rows, Rows]:
    if limit is None or len(rows) <= limit:
        return rows, []
    chosen = set(random.Random(derive_seed(seed, "demonstrate", name)).sample(range(len(rows)), limit))
    # In their original order: the limit selects rows but does not reorder them.
    return [row for i, row in enumerate(rows) if i in chosen], [row for i, row in enumerate(rows) if i not in chosen]


def _drop_unusable(rows: Rows, drops: Drops, max_tokens: int, count_tokens: CountTokens) -> tuple[Rows, Drops]:
    kept: Rows = []
    seen: set[tuple[str, str]] = set()
    responses = [_assistant_turns(row) if "messages" in row else [row["response"]] for row in rows]
    counts = iter(count_tokens([text for of_row in responses for text in of_row]))
    for row, of_row in zip(rows, responses, strict=True):
        tokens = max(next(counts) for _ in of_row)
        pair = (row["problem"], row.get("messages", row["response"]))
        if tokens > max_tokens:
            drops.append((row, "response_too_long", f"{tokens} tokens, at most {max_tokens}"))
        elif pair in seen:
            drops.append((row, "repeated", "the same problem and response came before"))
        else:
            seen.add(pair)
            kept.append(row)
    return kept, drops


def split(rows: Rows, validation_rows: int, seed: int) -> tuple[Rows, Rows]:
    """Returns train and validation rows in their order; all demonstrations of one problem are on the same side.

    Whole problems are moved in a random order of the seed until validation has at least `validation_rows`.
    """
    groups: dict[str, int] = {}
    for row in rows:
        # Grouped by normalised text: one problem may come from two sources with two ids.
        text = normalise_problem(row["problem"])
        groups[text] = groups.get(text, 0) + 1
    # Sorted before the shuffle: the result depends on the problems, not on the order of the sources.
    names = sorted(groups)
    random.Random(derive_seed(seed, "demonstrate", "validation")).shuffle(names)
    held_out: set[str] = set()
    count = 0
    for name in names:
        if count >= validation_rows:
            break
        held_out.add(name)
        count += groups[name]
    sides = [normalise_problem(row["problem"]) in held_out for row in rows]
    train = [row for row, is_held_out in zip(rows, sides, strict=True) if not is_held_out]
    validation = [row for row, is_held_out in zip(rows, sides, strict=True) if is_held_out]
    return train, validation


def take_by_weight(rows: Rows, seed: int) -> tuple[Rows, Drops]:
    """Takes each row `weight` times; a random number per row decides on the fraction. Also returns rows never taken."""
    taken: Rows = []
    drops: Drops = []
    for row in rows:
        # A separate random stream for each row, so an additional row does not change the others.
        draw = random.Random(derive_seed(seed, "demonstrate", "weight", row["demonstration_id"])).random()
        times = int(row.get("weight", 1) + draw)
        taken += [row] * times
        if not times:
            drops.append((row, "not_drawn", f"weight {row['weight']}"))
    return taken, drops


# Marks of GSM8K's solutions (Cobbe et al., arXiv 2110.14168): calculator calls, and the line with the answer.
_CALCULATOR = re.compile(r"<<[^<>\n]*>>")
_FINAL_LINE = re.compile(r"\n?[ \t]*####[^\n]*\s*\Z")
_ONLY_ANSWER = re.compile(r"(?:the\s+)?(?:final\s+)?(?:answer|solution)?\s*(?:is|:)?\s*", re.IGNORECASE)
BOX = "\\boxed{"


def as_response(solution: str, answer: str, markers: Markers = THOUGHT_MARKERS) -> str:
    r"""Returns the solution with its final answer in a box, added once at the end if there was no box.

    GSM8K's calculator annotations (`<<48/2=24>>`) and `#### 24` line are removed. A solution that is only the answer
    becomes only the answer's sentence. A solution with a boxed answer outside of thoughts gets no second box.
    """
    text = _FINAL_LINE.sub("", _CALCULATOR.sub("", solution)).strip()
    if extract_answer(text, thought_markers=markers).rule in ("box", "boxes"):
        return text
    # The last words are always the same, so the policy learns to end with a box.
    closing = f"The answer is {BOX}{_bare(answer)}}}."
    if _same(_ONLY_ANSWER.sub("", text, count=1), answer) or _same(text, answer):
        return closing
    return f"{text}\n{closing}" if text else closing


def _bare(answer: str) -> str:
    return answer.strip().removeprefix("$").removesuffix("$").strip() if answer.count("$") == 2 else answer.strip()


def _same(text: str, answer: str) -> bool:
    return re.sub(r"[\s$.]", "", text) == re.sub(r"[\s$.]", "", answer)


def sample_demonstrations(
    source: RejectionSampledDemonstrations,
    problems: Rows,
    params_path: Path,
    policy: Path,
    attempt: Attempt,
    ranks: Ranks,
) -> tuple[Rows, Drops]:
    """Returns correct, complete, different responses, at most `kept_per_problem` per problem; the others with reasons.

    Each rank samples and judges its share of the problems; all ranks get all results.
    """
    # Without top-p and top-k: the verifier is a sufficient filter, and rare correct solutions are wanted.
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
    source: RejectionSampledDemonstrations, problem: dict, judged: list[JudgedResponse], rows: Rows, drops: Drops
) -> None:
    kept: set[str] = set()
    for index, one in enumerate(judged):
        # `index` counts every response, including dropped ones, so an id always names the same response.
        row = demonstration(problem, "rejection_sampled", one.text, index)
        if one.messages:
            # SFT learns from the turns alone, not from what the environment has answered.
            turns = json.dumps(one.messages, ensure_ascii=False)
            row |= {"response": one.messages[-1]["content"], "messages": turns}
        if one.is_truncated:
            drops.append((row, "truncated", f"{one.tokens} tokens"))
        elif one.judgement.verdict is not Verdict.CORRECT:
            drops.append(
                (row, str(one.judgement.verdict), f"extracted {one.judgement.extracted}, not {problem['answer']}")
            )
        # Checked after correctness: a repeated wrong response is dropped as wrong.
        elif one.text in kept:
            drops.append((row, "repeated", "the same response came before"))
        elif len(kept) == source.kept_per_problem:
            drops.append((row, "beyond_kept_per_problem", ""))
        else:
            kept.add(one.text)
            rows.append(row)
