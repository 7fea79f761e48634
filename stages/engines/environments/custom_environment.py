"""Environments of the user: a Python class with `reset` and `step`.

Runs in a worker. A mistake of the file is a UserError, which stops the caller. An exception or a wrong value is a fault
of its episode.
"""

from __future__ import annotations

import inspect
import math
import random
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from stages.engines.environments.protocol import Done, Environment, Observation
from stages.engines.workers.custom_function_worker import article, load
from stages.foundations.errors import UserError
from stages.foundations.params import CustomEnvironment, custom_file

LONGEST_TEXT = 100_000
"""Characters of a text; a longer one is cut in the middle, before it is sent to the stage."""
_HELP = 'return a text, or at the end a mapping such as {"reward": 1.0}'


def build(params: CustomEnvironment, problem: Mapping[str, Any], seed: int) -> Environment:
    """Returns an episode of the class that `params` names.

    UserError where the file cannot be loaded, has no such class, or the class cannot be made with these arguments or
    lacks a method. Any other exception is one of the class.
    """
    make = load(params.file, params.name, _source(params.file))
    arguments = params.arguments or {}
    try:
        inspect.signature(make).bind(dict(problem), seed, **arguments)
    except TypeError as error:
        shown = ", ".join(["problem", "seed", *(f"{name}=..." for name in arguments)])
        raise UserError(
            f"{params.name} in {params.file} cannot be made as {params.name}({shown}): {error}. Correct `arguments`, "
            "or the parameters of __init__"
        ) from None
    randomness = EpisodeRandomness(seed)
    with randomness:
        made = make(dict(problem), seed, **arguments)
    for method in ("reset", "step"):
        if not callable(getattr(made, method, None)):
            raise UserError(
                f"{params.name} in {params.file} has no method `{method}`: see docs/how-to/tools-and-environments.md"
            )
    return _Custom(made, randomness)


@lru_cache(maxsize=4)
def _source(file: str) -> str:
    try:
        return custom_file(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read ({error}): name a Python file") from None


class EpisodeRandomness:
    """Context in which Python's and numpy's global random numbers belong to one episode.

    So a class that draws from them plays the same game, independent of other episodes in its process.
    """

    def __init__(self, seed: int) -> None:
        self._seed, self._python, self._numpy = seed, random.Random(seed).getstate(), None

    def __enter__(self) -> None:
        random.setstate(self._python)
        # Only where the file has imported it.
        if numpy := sys.modules.get("numpy"):
            if self._numpy is None:
                numpy.random.seed(self._seed % 2**32)
            else:
                numpy.random.set_state(self._numpy)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._python = random.getstate()
        if numpy := sys.modules.get("numpy"):
            self._numpy = numpy.random.get_state()
        if isinstance(error, SystemExit):
            # It would end the worker and with it the episodes of others.
            raise RuntimeError(f"it called sys.exit({error.code!r})") from None


class _Custom:
    """An environment that checks what the user's class returns."""

    def __init__(self, made: Any, randomness: EpisodeRandomness) -> None:
        self._made, self._randomness = made, randomness

    def reset(self) -> str | None:
        with self._randomness:
            text = self._made.reset()
        return None if text is None else checked_text(text, "reset")

    def step(self, turn: str) -> str | Observation | Done:
        with self._randomness:
            answer = self._made.step(turn)
        match answer:
            case Observation():
                _check_counts(answer)
                return replace(answer, text=checked_text(answer.text, "step"))
            case Done():
                return checked_end(answer)
            case Mapping():
                known = [field.name for field in fields(Done)]
                if unknown := [str(name) for name in answer if name not in known]:
                    raise ValueError(f"step returned {', '.join(unknown)}, and an end has only {', '.join(known)}")
                return checked_end(Done(**answer))
            case _:
                return checked_text(answer, "step")


def checked_text(text: Any, method: str) -> str:
    """Returns a text that can be stored and sent: halves of characters become "?", the middle of a long text "...".

    TypeError for anything else.
    """
    if not isinstance(text, str):
        raise TypeError(f"{method} returned {article(text)}: {_HELP}")
    if len(text) > LONGEST_TEXT:
        text = f"{text[: LONGEST_TEXT // 2]}\n...\n{text[-LONGEST_TEXT // 2 :]}"
    return text.encode("utf-8", "replace").decode("utf-8")


def checked_end(done: Done) -> Done:
    """Returns the end with plain values. TypeError or ValueError for a value that is none of its kind."""
    reward = done.reward
    if reward is not None:
        if isinstance(reward, str | bytes) or not hasattr(reward, "__float__"):
            raise TypeError(f"the reward is {article(reward)}: return a finite number")
        reward = float(reward)
        if not math.isfinite(reward):
            raise ValueError(f"the reward is {reward}: return a finite number")
    # Comparisons of numpy give numpy's type.
    if done.is_correct is not None and type(done.is_correct).__name__ not in ("bool", "bool_"):
        raise TypeError(f"is_correct is {article(done.is_correct)}: return True, False or None")
    is_correct = None if done.is_correct is None else bool(done.is_correct)
    _check_counts(done)
    response = None if done.response is None else checked_text(done.response, "step")
    return replace(done, reward=reward, is_correct=is_correct, response=response)


def _check_counts(answer: Observation | Done) -> None:
    if not all(isinstance(count, int) and count >= 0 for count in (answer.calls, answer.failed_calls)):
        raise ValueError("calls and failed_calls are counts: return whole numbers from 0")
