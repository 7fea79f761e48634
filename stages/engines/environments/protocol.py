"""The interface of environments: text in, text out. An environment answers the policy's turns within one response.

An environment is a function of its problem, its seed and the turns so far: the same turns give the same observations.
So an episode that was interrupted is played again from its start, in any process. Random numbers must come from the
seed, and nothing may depend on the clock, on the process or on other episodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Observation:
    """An answer to a turn; the policy takes another turn."""

    text: str
    calls: int = 0
    failed_calls: int = 0
    """Those that could not be parsed or ended in an error."""


@dataclass(frozen=True)
class Done:
    reward: float | None = None
    """None: the reward of the round applies (`rl.reward`)."""
    is_correct: bool | None = None
    """None: the verifier decides."""
    response: str | None = None
    """The text that the verifier judges; None: the text of the last turn."""
    calls: int = 0
    failed_calls: int = 0


class Environment(Protocol):
    """One episode. A user writes a class with these two methods, or a plain function as a tool.

    It is made as `Class(problem, seed, **arguments)`. `problem` is a mapping with `problem_id`, `problem`, `answer` and
    further columns of the row; `seed` is an integer of 63 bits that differs between the episodes of a problem.
    """

    def reset(self) -> str | None:
        """Returns text that the policy reads after the problem, or None. It must depend on the problem alone."""

    def step(self, turn: str) -> str | Observation | Done:
        """Returns the answer to a turn: a text is an observation."""
