"""Rejection sampling: a policy's own responses that the verifier calls correct, as demonstrations."""

from __future__ import annotations

from contextlib import closing
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
from stages.engines.verifier.judgement import Judgement
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from stages.foundations.errors import UserError
from stages.foundations.params import load_section, load_value
from stages.foundations.prompts import PromptParams


def sample_demonstrations(
    source: RejectionSampledDemonstrations, problems: Rows, params_path: Path, policy: Path
) -> tuple[Rows, Drops]:
    """Correct, complete, different responses, at most `kept_per_problem` of each problem; the others with reasons."""
    prompt = load_section(params_path, "prompt", PromptParams)
    tokenizer = load_tokenizer(policy)
    prompts = [encode_prompt(tokenizer, prompt, problem["problem"]) for problem in problems]
    settings = SamplingSettings(source.temperature, 1.0, 0, source.max_response_tokens, None)
    names = [problem["problem_id"] for problem in problems]
    seed = load_value(params_path, "seed"), "demonstrate", "rejection_sampled"
    sampler_params = load_section(params_path, "sampler", SamplerParams)
    with closing(build_sampler(sampler_params, policy)) as sampler:
        sampled = sample_prompts(
            sampler, prompts, names, source.samples, settings, *seed, label="rejection sampling"
        )
    responses = [[decode_response(tokenizer, sample.token_ids) for sample in samples] for samples in sampled]
    judgements = _judge(problems, responses, sampled, params_path)
    rows: Rows = []
    drops: Drops = []
    for number, problem in enumerate(problems):
        first = number * source.samples
        verdicts = judgements[first : first + source.samples]
        _sort_out(source, problem, responses[number], sampled[number], verdicts, rows, drops)
    return rows, drops


def _judge(
    problems: Rows, responses: list[list[str]], sampled: list[list[Sample]], params_path: Path
) -> list[Judgement]:
    params = load_section(params_path, "verifier", VerifierParams)
    pairs = [(row["answer"], text) for row, texts in zip(problems, responses, strict=True) for text in texts]
    with Verifier(params) as verifier:
        truncated = [sample.is_truncated for samples in sampled for sample in samples]
        judgements = verifier.judge(pairs, truncated, require_marker=True)
    failures = sum(judgement.verdict.is_failure for judgement in judgements)
    if failures > params.abort_undecided_fraction * len(judgements):
        raise UserError(
            f"demonstrate: the verifier failed on {failures} of {len(judgements)} responses: "
            "raise verifier.timeout_seconds or verifier.memory_mib"
        )
    return judgements


def _sort_out(
    source: RejectionSampledDemonstrations,
    problem: dict,
    responses: list[str],
    samples: list[Sample],
    judgements: list[Judgement],
    rows: Rows,
    drops: Drops,
) -> None:
    kept: set[str] = set()
    for index, (response, sample, judgement) in enumerate(zip(responses, samples, judgements, strict=True)):
        row = demonstration(problem, "rejection_sampled", response, index)
        if sample.is_truncated:
            drops.append((row, "truncated", f"{len(sample.token_ids)} tokens"))
        elif judgement.verdict is not Verdict.CORRECT:
            drops.append(
                (row, str(judgement.verdict), f"extracted {judgement.extracted}, not {problem['answer']}")
            )
        elif response in kept:
            drops.append((row, "repeated", "the same response came before"))
        elif len(kept) == source.kept_per_problem:
            drops.append((row, "beyond_kept_per_problem", ""))
        else:
            kept.add(response)
            rows.append(row)
