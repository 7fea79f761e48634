"""Who judges rows outside the graph: the rule-based verifier, or a policy as judge."""

from __future__ import annotations

from pathlib import Path

from stages.engines.policies.tokenizers import load_tokenizer
from stages.engines.replicas.build import build_sampler
from stages.engines.samplers.params import SamplerParams
from stages.engines.verifier.model_judge import ModelJudge
from stages.foundations.errors import UserError
from stages.foundations.params import ChatPrompt, PromptParams, load_section, load_value


def open_judge(params: Path, policy: Path, max_tokens: int) -> ModelJudge:
    """The policy of a folder as judge, with the sampler, prompt format and seed of a params file.

    The suffix of a chat prompt, which asks for a boxed answer, is left out. `max_tokens`: the longest judgement.
    UserError when the folder is none.
    """
    if not policy.is_dir():
        raise UserError(f"--judge {policy}: no such folder; give that of a policy, such as data/policies/base")
    prompt = load_section(params, "prompt", PromptParams)
    if isinstance(prompt, ChatPrompt):
        prompt = prompt.model_copy(update={"suffix": ""})
    tokenizer = load_tokenizer(policy)
    sampler = build_sampler(load_section(params, "sampler", SamplerParams), policy)
    return ModelJudge(sampler, tokenizer, prompt, load_value(params, "seed"), max_tokens)
