"""Adds `prompt.environment` and `prompt.forced_end` to stages. A recipe without them imports nothing for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.engines.samplers.params import SamplerParams
from stages.engines.samplers.protocol import Sample, Sampler
from stages.foundations.params import (
    ChatFrame,
    ChatPrompt,
    ForcedEnd,
    PlainPrompt,
    PromptParams,
    TextFrame,
    ToolsEnvironment,
    chosen,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Two cases have one body: a fingerprint matches a case by one class, and every environment has a
# frame of one of the two.


def without_turns(prompt: PlainPrompt | ChatPrompt) -> PlainPrompt | ChatPrompt:
    """Returns the prompt without its environment and forced end, for a sampler of responses of one turn."""
    return prompt.model_copy(update={"environment": None, "forced_end": None})


def with_turns(sampler: Sampler, prompt: PlainPrompt | ChatPrompt | None, policy_folder: Path) -> Sampler:
    """Returns a sampler that asks the environment of `prompt` or forces thoughts to end; without both `sampler`."""
    environment, forced_end = prompt and prompt.environment, prompt and prompt.forced_end
    match chosen("prompt.forced_end", forced_end):
        case ForcedEnd():
            from stages.engines.samplers.forced_ends import ForcedEndSampler

            return ForcedEndSampler(sampler, forced_end, policy_folder)
    match chosen("prompt.environment.frame", environment and environment.frame):
        case TextFrame():
            from stages.engines.environments.turn_sampler import TurnSampler

            return TurnSampler.around(sampler, prompt, policy_folder)
        case ChatFrame():
            from stages.engines.environments.turn_sampler import TurnSampler

            return TurnSampler.around(sampler, prompt, policy_folder)
    return sampler


def problem_texts(prompt: PlainPrompt | ChatPrompt, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the text of each problem, followed by the text with which its environment begins, if there is one."""
    texts, environment = [row["problem"] for row in rows], prompt.environment
    match chosen("prompt.environment.frame", environment and environment.frame):
        case TextFrame():
            from stages.engines.environments.pool import with_openings

            return with_openings(environment, texts, [problem_columns(prompt, row) for row in rows])
        case ChatFrame():
            from stages.engines.environments.pool import with_openings

            return with_openings(environment, texts, [problem_columns(prompt, row) for row in rows])
    return texts


def problem_columns(prompt: PlainPrompt | ChatPrompt, row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what an environment may know of a problem: its columns with a value; empty without an environment."""
    if prompt.environment is None:
        return {}
    # Not NaN, which marks a missing value.
    return {name: value for name, value in row.items() if isinstance(value, str | int | float) and value == value}


def turn_messages(
    prompt: PlainPrompt | ChatPrompt, tokenizer: PreTrainedTokenizerBase, policy_folder: Path
) -> Callable[[str, Sample], list[dict[str, str]] | None]:
    """Returns a function of a problem's text and a sample: their messages, or None without an environment."""
    environment = prompt.environment
    match chosen("prompt.environment.frame", environment and environment.frame):
        case TextFrame():
            from stages.engines.environments.conversations import turn_reader

            return turn_reader(tokenizer, prompt, policy_folder)
        case ChatFrame():
            from stages.engines.environments.conversations import turn_reader

            return turn_reader(tokenizer, prompt, policy_folder)
    return lambda problem, sample: None


def turn_contradictions(prompt: PromptParams, sampler: SamplerParams, limits: Mapping[str, int]) -> list[str]:
    """Returns settings that do not work with `prompt`; `limits` are response tokens by parameter name."""
    environment, sentences = prompt.environment, list(_forced_end_contradictions(prompt, sampler, limits))
    if environment is None:
        return sentences
    if environment.max_turns == 1 and isinstance(environment, ToolsEnvironment) and environment.tools:
        sentences.append(
            "prompt.environment.max_turns 1 ends an episode before the policy reads what a tool has answered: set 2 "
            "or more"
        )
    if isinstance(environment.frame, ChatFrame) and not isinstance(prompt, ChatPrompt):
        sentences.append("prompt.environment.frame.kind chat needs prompt.kind chat: set that, or frame.kind text")
    sentences += [
        f"prompt.environment.max_observation_tokens {environment.max_observation_tokens} leaves no room for a turn in "
        f"{name} {tokens}: lower it, or raise that"
        for name, tokens in limits.items()
        if environment.max_observation_tokens >= tokens
    ]
    if sampler.stop:
        sentences.append(
            "sampler.stop would end a turn inside of an observation that holds the string: leave it out, and let the "
            "policy learn to end its turns"
        )
    return sentences


def _forced_end_contradictions(
    prompt: PromptParams, sampler: SamplerParams, limits: Mapping[str, int]
) -> Iterator[str]:
    if prompt.forced_end is None:
        return
    text, most = prompt.forced_end.text, prompt.forced_end.thinking_tokens[1]
    if prompt.environment is not None:
        yield (
            "prompt.forced_end ends the only turn of a response, and prompt.environment answers several: leave one of "
            "the two out"
        )
    if any(stop in text for stop in sampler.stop or ()):
        yield "prompt.forced_end.text holds a string of sampler.stop, which would end the response: leave it out there"
    # A token has at least one byte, and the tokenizer is not known here.
    yield from (
        f"prompt.forced_end.thinking_tokens {most} and its text leave no room for an answer in {name} {tokens}: lower "
        "them, or raise that"
        for name, tokens in limits.items()
        if most + len(text.encode()) >= tokens
    )
