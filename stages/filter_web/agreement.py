"""Answer agreement: an exercise is trusted when the policy, sampled a few times, reaches its answer at least once.

Source: "Demystifying Long Chain-of-Thought Reasoning in LLMs" (arXiv 2502.03373), the filter of its web data.
Deviation: the number of responses is a parameter, and the verdicts come from the rule-based verifier.
"""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.policies.tokenizers import decode_response, encode_prompt, load_tokenizer
from stages.engines.replicas.build import build_sampler
from stages.engines.samplers.params import SamplerParams
from stages.engines.samplers.protocol import SamplingSettings
from stages.engines.samplers.sampling import sample_prompts
from stages.engines.samplers.shares import drawing_share
from stages.engines.trainers.protocol import Ranks
from stages.engines.verifier.judgement import Judgement
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from stages.filter_web.filtering import Rows
from stages.filter_web.params import PolicyAgreement
from stages.foundations.errors import UserError
from stages.foundations.funnel import Funnel
from stages.foundations.params import load_section, load_value
from stages.foundations.prompts import PromptParams
from stages.foundations.seeds import derive_seed


def keep_agreeing(
    rows: Rows, funnel: Funnel, params: PolicyAgreement, params_path: Path, policy: Path, ranks: Ranks
) -> tuple[Rows, dict[str, int]]:
    """Rows to whose answer at least one response of the policy is equivalent, in their order.

    Also what that cost and yielded: exercises asked for, tokens sampled, exercises kept. All ranks bring the same rows
    and get the same; each draws and judges its share.
    """
    if not rows:
        return rows, {}
    seed = load_value(params_path, "seed")
    rows, left_out = _draw(rows, params.max_candidates, seed)
    for row in left_out:
        funnel.drop(row, "not_sampled", "beyond max_candidates", row["candidate_id"])
    judgements, sampled_tokens = _judge(rows, params, params_path, policy, seed, ranks)
    kept = []
    for row, verdicts in zip(rows, judgements, strict=True):
        if any(judgement.verdict is Verdict.CORRECT for judgement in verdicts):
            kept.append(row)
        else:
            answers = ", ".join(str(judgement.extracted)[:40] for judgement in verdicts)
            funnel.drop(row, "no_agreement", f"responses gave: {answers}", row["candidate_id"])
    return kept, {
        "agreement/asked": len(rows),
        "agreement/sampled_tokens": sampled_tokens,
        "agreement/kept": len(kept),
    }


def _draw(rows: Rows, limit: int | None, seed: int) -> tuple[Rows, Rows]:
    if limit is None or len(rows) <= limit:
        return rows, []
    chosen = set(random.Random(derive_seed(seed, "filter_web")).sample(range(len(rows)), limit))
    return [row for i, row in enumerate(rows) if i in chosen], [
        row for i, row in enumerate(rows) if i not in chosen
    ]


def _judge(
    rows: Rows, params: PolicyAgreement, params_path: Path, policy: Path, seed: int, ranks: Ranks
) -> tuple[list[list[Judgement]], int]:
    """One list of judgements per row, and the tokens sampled; UserError when the verifier failed on too many."""
    prompt = load_section(params_path, "prompt", PromptParams)
    verifier_params = load_section(params_path, "verifier", VerifierParams)
    sampler_params = load_section(params_path, "sampler", SamplerParams)
    share = drawing_share(sampler_params, ranks)
    own, tokenizer = share.of(rows), load_tokenizer(policy)
    prompts = [encode_prompt(tokenizer, prompt, row["problem"]) for row in own]
    names = [row["candidate_id"] for row in own]
    settings = SamplingSettings(params.temperature, 1.0, 0, params.max_response_tokens, None)
    with closing(build_sampler(sampler_params, policy)) as sampler:
        sampled = sample_prompts(
            sampler, prompts, names, params.samples, settings, seed, "filter_web", label="agreement"
        )
    pairs, truncated = [], []
    for row, samples in zip(own, sampled, strict=True):
        pairs += [(row["answer"], decode_response(tokenizer, sample.token_ids)) for sample in samples]
        truncated += [sample.is_truncated for sample in samples]
    with Verifier(verifier_params) as verifier:
        judgements = verifier.judge(pairs, truncated, require_marker=True)
    judged = [judgements[i : i + params.samples] for i in range(0, len(judgements), params.samples)]
    judged = share.everywhere(judged, len(rows))
    failures = sum(judgement.verdict.is_failure for of_row in judged for judgement in of_row)
    if failures > verifier_params.abort_undecided_fraction * len(rows) * params.samples:
        raise UserError(
            f"filter_web: the verifier failed on {failures} of {len(rows) * params.samples} responses: "
            "raise verifier.timeout_seconds or verifier.memory_mib"
        )
    tokens = [sum(len(sample.token_ids) for sample in samples) for samples in sampled]
    return judged, sum(share.everywhere(tokens, len(rows)))
