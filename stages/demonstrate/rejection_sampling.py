"""Rejection sampling: a policy's own responses that the verifier calls correct, as demonstrations."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from stages.algorithms.answers.verdicts import Verdict
from stages.demonstrate.demonstrations import Drops, Rows, demonstration
from stages.demonstrate.params import RejectionSampledDemonstrations
from stages.engines.policies.tokenizers import decode_response, encode_prompt, load_tokenizer
from stages.engines.replicas.build import build_sampler
from stages.engines.samplers.params import SamplerParams
from stages.engines.samplers.protocol import SamplingSettings
from stages.engines.samplers.samples import Sample
from stages.engines.samplers.sampling import sample_prompts
from stages.engines.samplers.shares import drawing_share
from stages.engines.trainers.protocol import Ranks
from stages.engines.verifier.judgement import Judgement
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from stages.foundations.errors import UserError
from stages.foundations.params import load_section, load_value
from stages.foundations.prompts import PromptParams


@dataclass(frozen=True)
class _Judged:
    """A response and what is asked of it."""

    response: str
    tokens: int
    is_truncated: bool
    judgement: Judgement


def sample_demonstrations(
    source: RejectionSampledDemonstrations, problems: Rows, params_path: Path, policy: Path, ranks: Ranks
) -> tuple[Rows, Drops]:
    """Correct, complete, different responses, at most `kept_per_problem` of each problem; the others with reasons.

    Drawn and judged by all ranks together, each its share of the problems; all of them get all.
    """
    sampler_params = load_section(params_path, "sampler", SamplerParams)
    verifier_params = load_section(params_path, "verifier", VerifierParams)
    share = drawing_share(sampler_params, ranks)
    own = share.of(problems)
    sampled, responses = _draw(source, own, params_path, policy, sampler_params)
    with Verifier(verifier_params) as verifier:
        pairs = [(row["answer"], text) for row, texts in zip(own, responses, strict=True) for text in texts]
        truncated = [sample.is_truncated for samples in sampled for sample in samples]
        judgements = iter(verifier.judge(pairs, truncated, require_marker=True))
    judged = [
        [
            _Judged(text, len(sample.token_ids), sample.is_truncated, next(judgements))
            for text, sample in zip(texts, samples, strict=True)
        ]
        for texts, samples in zip(responses, sampled, strict=True)
    ]
    judged = share.everywhere(judged, len(problems))
    _refuse_failures(judged, verifier_params)
    rows: Rows = []
    drops: Drops = []
    for problem, of_problem in zip(problems, judged, strict=True):
        _sort_out(source, problem, of_problem, rows, drops)
    return rows, drops


def _draw(
    source: RejectionSampledDemonstrations,
    problems: Rows,
    params_path: Path,
    policy: Path,
    sampler_params: SamplerParams,
) -> tuple[list[list[Sample]], list[list[str]]]:
    """Samples and their texts, by problem."""
    prompt = load_section(params_path, "prompt", PromptParams)
    tokenizer = load_tokenizer(policy)
    prompts = [encode_prompt(tokenizer, prompt, problem["problem"]) for problem in problems]
    settings = SamplingSettings(source.temperature, 1.0, 0, source.max_response_tokens, None)
    names = [problem["problem_id"] for problem in problems]
    seed = load_value(params_path, "seed"), "demonstrate", "rejection_sampled"
    with closing(build_sampler(sampler_params, policy)) as sampler:
        sampled = sample_prompts(
            sampler, prompts, names, source.samples, settings, *seed, label="rejection sampling"
        )
    return sampled, [
        [decode_response(tokenizer, sample.token_ids) for sample in samples] for samples in sampled
    ]


def _refuse_failures(judged: list[list[_Judged]], params: VerifierParams) -> None:
    verdicts = [one.judgement.verdict for of_problem in judged for one in of_problem]
    failures = sum(verdict.is_failure for verdict in verdicts)
    if failures > params.abort_undecided_fraction * len(verdicts):
        raise UserError(
            f"demonstrate: the verifier failed on {failures} of {len(verdicts)} responses: "
            "raise verifier.timeout_seconds or verifier.memory_mib"
        )


def _sort_out(
    source: RejectionSampledDemonstrations, problem: dict, judged: list[_Judged], rows: Rows, drops: Drops
) -> None:
    kept: set[str] = set()
    for index, one in enumerate(judged):
        row = demonstration(problem, "rejection_sampled", one.response, index)
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
        elif one.response in kept:
            drops.append((row, "repeated", "the same response came before"))
        elif len(kept) == source.kept_per_problem:
            drops.append((row, "beyond_kept_per_problem", ""))
        else:
            kept.add(one.response)
            rows.append(row)
