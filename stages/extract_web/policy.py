"""A policy that reads windows of pages, through the sampler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from stages.engines.policies.tokenizers import decode_response, encode_prompt, load_tokenizer
from stages.engines.replicas.build import build_sampler
from stages.engines.samplers.params import SamplerParams
from stages.engines.samplers.protocol import SamplingSettings, sample_prompts
from stages.extract_web.stage import PolicyModel


@contextmanager
def asking_policy(
    params: PolicyModel, sampler: SamplerParams, max_response_tokens: int
) -> Iterator[Callable[[Sequence[str]], list[str | None]]]:
    """Yields a function: the greedy answer to each request, in order; None for one of over `max_prompt_tokens`."""
    tokenizer = load_tokenizer(Path(params.folder))
    # Greedy, so that a page gives the same spans in every run.
    settings = SamplingSettings(0.0, 1.0, 0, max_response_tokens, None)
    with closing(build_sampler(sampler, Path(params.folder))) as drawn_from:

        def ask(requests: Sequence[str]) -> list[str | None]:
            prompts = [encode_prompt(tokenizer, params.prompt, plain(tokenizer, request)) for request in requests]
            fitting = [number for number, prompt in enumerate(prompts) if len(prompt) <= params.max_prompt_tokens]
            drawn = sample_prompts(
                drawn_from,
                [prompts[number] for number in fitting],
                [requests[number] for number in fitting],
                1,
                settings,
                "extract_web",
                label="asking",
            )
            answers: list[str | None] = [None] * len(requests)
            for number, samples in zip(fitting, drawn, strict=True):
                answers[number] = decode_response(tokenizer, samples[0].token_ids)
            return answers

        yield ask


def plain(tokenizer, text: str) -> str:
    """Removes the tokenizer's special tokens from the text: a page that spells them would end its turn."""
    # The longest first: a shorter token may be part of a longer one.
    for token in sorted({*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}, key=len, reverse=True):
        # Some tokenizers have runs of blanks as added tokens, and the text needs its blanks.
        if token.strip():
            text = text.replace(token, " ")
    return text
