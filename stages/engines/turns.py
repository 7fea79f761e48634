"""What stages do for `prompt.environment`, and for prompts without it: nothing of environments is imported then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.engines.samplers.params import SamplerParams
from stages.engines.samplers.protocol import Sample, Sampler
from stages.foundations.params import (
    ChatFrame,
    ChatPrompt,
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


def with_turns(sampler: Sampler, prompt: PlainPrompt | ChatPrompt | None, policy_folder: Path) -> Sampler:
    """Returns a sampler that asks the environment of `prompt` between turns; without one, `sampler` itself."""
    environment = prompt and prompt.environment
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
    # Not NaN, which stands for a missing value.
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
    """Returns settings that do not work with `prompt.environment`; `limits` are response tokens by parameter name."""
    environment = prompt.environment
    if environment is None:
        return []
    sentences = []
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
