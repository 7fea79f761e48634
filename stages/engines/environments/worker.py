"""The worker's side of episodes: holds environments between the turns, and answers one turn per request.

A worker may lack an episode: its process was killed, or the episode has moved here. It then says so, and the parent
repeats the turns, one per request. So the time limit of a request is that of one step.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from stages.engines.environments.kinds import make_environment
from stages.engines.environments.protocol import Done, Environment, Observation
from stages.foundations.errors import UserError
from stages.foundations.params import EnvironmentParams

LIVE_EPISODES = 4096
"""Episodes that a worker holds; the one that was used least recently is dropped first."""
LONGEST_TEXT, LONGEST_FAULT = 1_000_000, 200
"""Characters at each end of an observation that are sent, and characters of an error."""
_PARAMS: TypeAdapter[EnvironmentParams] = TypeAdapter(EnvironmentParams)


@dataclass
class _Episode:
    environment: Environment
    turns: list[str]
    answer: dict[str, Any]
    calls: int = 0
    failed_calls: int = 0


_live: OrderedDict[tuple[int, str], _Episode] = OrderedDict()


def answer_turns(environment: dict[str, Any], problem: dict[str, Any], seed: int, turns: list[str]) -> dict[str, Any]:
    """Returns the environment's answer to the last of `turns`; without turns, the text of `reset` as an observation.

    {"observation": text} or {"done": fields of `Done`}, with `calls` and `failed_calls` of all turns and `seconds` of
    this one; or {"fault": sentence}. {"missing": True} if the worker lacks the episode up to the turn before.
    """
    key = seed, str(problem.get("problem_id"))
    # Taken out: after an error the episode is played again from its start.
    episode = _live.pop(key, None)
    started = time.perf_counter()
    try:
        if episode is None or episode.turns not in (turns, turns[:-1]):
            if len(turns) > 1:
                return {"missing": True}
            made = make_environment(_PARAMS.validate_python(environment), problem, seed)
            episode = _Episode(made, [], {})
            episode.answer = _answer(episode, made.reset() or "")
        if episode.turns != turns:
            episode.answer = _answer(episode, episode.environment.step(turns[-1]))
            episode.turns = turns
    except (MemoryError, UserError):
        raise
    # A mistake of the environment, not of the policy. A mistake of the policy is an observation.
    except (Exception, SystemExit) as error:
        return {"fault": f"{type(error).__name__}: {error}"[:LONGEST_FAULT].replace("\n", " ")}
    _live[key] = episode
    if len(_live) > LIVE_EPISODES:
        _live.popitem(last=False)
    return {**episode.answer, "seconds": time.perf_counter() - started}


def _answer(episode: _Episode, value: Any) -> dict[str, Any]:
    """Returns what `reset` or `step` returned as JSON. TypeError or ValueError for anything that the protocol lacks."""
    if isinstance(value, str):
        value = Observation(value)
    if not isinstance(value, Observation | Done):
        raise TypeError(f"it returned {type(value).__name__}, and not a text, an Observation or Done")
    episode.calls += value.calls
    episode.failed_calls += value.failed_calls
    counts = {"calls": episode.calls, "failed_calls": episode.failed_calls}
    if isinstance(value, Observation):
        text = value.text
        if not isinstance(text, str):
            raise TypeError(f"the text of its Observation is {type(text).__name__}")
        is_long = len(text) > 2 * LONGEST_TEXT
        return {"observation": text[:LONGEST_TEXT] + text[-LONGEST_TEXT:] if is_long else text, **counts}
    if value.reward is not None and not math.isfinite(value.reward):
        raise ValueError(f"its reward is {value.reward}")
    reward = None if value.reward is None else float(value.reward)
    return {"done": {**asdict(value), "reward": reward}, **counts}
