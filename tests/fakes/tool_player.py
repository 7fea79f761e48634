"""Plays whole episodes in a worker, as a round does."""

import dataclasses

from pydantic import TypeAdapter

from stages.engines.environments.tools_environment import build
from stages.foundations.params import ToolsEnvironment


def play(environment, problem, seed, turns):
    """Returns the answers to the turns as mappings."""
    episode = build(TypeAdapter(ToolsEnvironment).validate_python(environment), problem, seed)
    return [dataclasses.asdict(episode.step(turn)) for turn in turns]
