"""A policy that is asked about windows of pages, through the sampler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stages.engines.policies.tokenizers import decode_response, encode_prompt, load_tokenizer
from stages.engines.replicas.build import build_sampler
from stages.engines.samplers.params import SamplerParams
from stages.engines.samplers.protocol import SamplingSettings, sample_prompts
from stages.extract_web.params import PolicyModel


class PolicyExtractor:
    """Answers requests greedily; `close` ends its sampler."""

    def __init__(self, params: PolicyModel, sampler: SamplerParams, max_response_tokens: int) -> None:
        folder = Path(params.folder)
        self._params = params
        self._tokenizer = load_tokenizer(folder)
        self._settings = SamplingSettings(0.0, 1.0, 0, max_response_tokens, None)
        self._sampler = build_sampler(sampler, folder)

    def ask(self, requests: Sequence[str]) -> list[str | None]:
        """The answer to each request, in order; None for one of more than `max_prompt_tokens`."""
        prompts = [
            encode_prompt(self._tokenizer, self._params.prompt, plain(self._tokenizer, request)) for request in requests
        ]
        fitting = [number for number, prompt in enumerate(prompts) if len(prompt) <= self._params.max_prompt_tokens]
        drawn = sample_prompts(
            self._sampler,
            [prompts[number] for number in fitting],
            [requests[number] for number in fitting],
            1,
            self._settings,
            "extract_web",
            label="asking",
        )
        answers: list[str | None] = [None] * len(requests)
        for number, samples in zip(fitting, drawn, strict=True):
            answers[number] = decode_response(self._tokenizer, samples[0].token_ids)
        return answers

    def close(self) -> None:
        """Ends the sampler."""
        self._sampler.close()


def plain(tokenizer, text: str) -> str:
    """The text without the tokenizer's special tokens: a page that spells them would end its turn and begin another."""
    for token in sorted({*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}, key=len, reverse=True):
        if token.strip():
            text = text.replace(token, " ")
    return text
