"""An environment whose course the problem's `script` decides, in place of those of section `prompt.environment`."""

from __future__ import annotations

import os
import time
import zlib

from stages.engines.environments import worker
from stages.engines.environments.protocol import Done, Observation
from stages.foundations.params import CustomEnvironment


def section(kind, processes=1, memory_mib=1024, timeout_seconds=5.0, **own):
    """Returns the values of a section `prompt.environment`: those of all kinds, and the kind's own."""
    workers = {"processes": processes, "memory_mib": memory_mib, "timeout_seconds": timeout_seconds}
    frame = {"kind": "text", "before": ":", "after": ";"}
    return {"kind": kind, "frame": frame, "max_turns": 6, "max_observation_tokens": 64, "workers": workers} | own


def params(processes=2, timeout_seconds=0.5, **own):
    """Returns a section `prompt.environment`; its kind does not matter here."""
    own = {"file": "custom/none.py", "name": "None_", "max_turns": 4, "max_observation_tokens": 8} | own
    return CustomEnvironment.model_validate(
        section("custom", processes=processes, timeout_seconds=timeout_seconds, **own)
    )


def answer(**request):
    """Runs in the workers instead of `answer_turns`."""
    worker.make_environment = lambda _, problem, seed: Scripted(problem, seed)
    return worker.answer_turns(**request)


class Scripted:
    """The environment of one episode."""

    def __init__(self, problem, seed):
        self.problem, self.seed, self.turns = problem, seed, 0

    def reset(self):
        return self.problem.get("opening")

    def step(self, turn):
        self.turns += 1
        return globals()[self.problem["script"]](self, turn)


def chance(episode, turn):
    """A number that turn, seed and the number of turns decide."""
    return zlib.crc32(f"{episode.seed} {episode.turns} {turn}".encode())


def talk(episode, turn):
    """Answers most turns with a number, and ends the episode after the others."""
    number = chance(episode, turn)
    if number % 4 == 0:
        return Done(reward=number % 3 - 1.0, response=f"<{turn}>")
    return Observation(str(number % 1000), calls=1, failed_calls=number % 2)


def stop(episode, turn):
    return Done()


def talk_slowly(episode, turn):
    time.sleep(os.urandom(1)[0] / 10_000)
    return talk(episode, turn)


def sleep(episode, turn):
    time.sleep(0.3)
    return talk(episode, turn)


def drift(episode, turn):
    """Is no function of the turns: a process that plays the episode again gives other answers."""
    return f"{os.getpid()}"[-6:]


def repeat(episode, turn):
    return episode.problem["text"]


def fail(episode, turn):
    raise RuntimeError("no\nway")


def leave(episode, turn):
    raise SystemExit


def die(episode, turn):
    os.abort()


def hang(episode, turn):
    while True:
        pass


def fill(episode, turn):
    return "x" * (4 << 30)


def return_number(episode, turn):
    return 42


def reward_nothing(episode, turn):
    return Done(reward=float("nan"))
