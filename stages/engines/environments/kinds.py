"""Makes the environment of section `prompt.environment`, in a worker process.

Each kind is a module with `build(params, problem, seed)`, which is imported only where the recipe names that kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stages.engines.environments.protocol import Environment
from stages.foundations.errors import UserError
from stages.foundations.machine import from_root
from stages.foundations.packages import require_package
from stages.foundations.params import (
    CustomEnvironment,
    EnvironmentParams,
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
        case ReasoningGymEnvironment():
            from stages.engines.environments import reasoning_gym_environment

            return reasoning_gym_environment.build(params, problem, seed)
        case VerifiersEnvironment():
            from stages.engines.environments import verifiers_environment

            return verifiers_environment.build(params, problem, seed)


def worker_options(params: EnvironmentParams) -> dict[str, Any]:
    """Returns arguments of the `WorkerPool` in which this kind works. UserError where it cannot work."""
    match chosen("prompt.environment", params):
        case ToolsEnvironment():
            from stages.engines.environments import tools_environment

            return tools_environment.worker_options(params)
        case ReasoningGymEnvironment():
            from stages.engines.environments import reasoning_gym_environment

            require_package("reasoning_gym", "prompt.environment.kind: reasoning_gym")
            return {"prepare": reasoning_gym_environment.prepare}
        case VerifiersEnvironment():
            from stages.engines.environments import verifiers_environment

            python = from_root(params.python)
            if not python.is_file():
                raise UserError(
                    f"prompt.environment.python {params.python!r} does not exist: "
                    "see docs/how-to/tools-and-environments.md"
                )
            return {"prepare": verifiers_environment.prepare, "python": str(python)}
        case _:
            return {}
