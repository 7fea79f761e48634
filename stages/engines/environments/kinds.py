"""Makes the environment of section `prompt.environment`, in a worker process.

Each kind is a module with `build(params, problem, seed)`, which is imported only where the recipe names that kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stages.engines.environments.protocol import Environment
from stages.foundations.params import (
    CustomEnvironment,
    EnvironmentParams,
    GymEnvironment,
    ReasoningGymEnvironment,
    ToolsEnvironment,
    VerifiersEnvironment,
    chosen,
)


def make_environment(params: EnvironmentParams, problem: Mapping[str, Any], seed: int) -> Environment:
    """Returns the environment of one episode."""
    match chosen("prompt.environment", params):
        case ToolsEnvironment():
            from stages.engines.environments import tools_environment

            return tools_environment.build(params, problem, seed)
        case CustomEnvironment():
            from stages.engines.environments import custom_environment

            return custom_environment.build(params, problem, seed)
        case GymEnvironment():
            from stages.engines.environments import custom_environment

            return custom_environment.build(params, problem, seed)
        case ReasoningGymEnvironment():
            from stages.engines.environments import reasoning_gym_environment

            return reasoning_gym_environment.build(params, problem, seed)
        case VerifiersEnvironment():
            from stages.engines.environments import verifiers_environment

            return verifiers_environment.build(params, problem, seed)
