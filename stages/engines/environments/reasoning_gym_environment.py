"""One turn whose answer a task of reasoning-gym (arXiv 2505.24760) scores, from 0 to 1.

Many tasks have several right answers, or a share of the points for a near one, which no comparison with a gold answer
would see. Runs in a worker: some scorers evaluate the answer as a formula.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from stages.algorithms.answers.extraction import extract_answer
from stages.engines.environments.protocol import Done, Environment
from stages.foundations.errors import UserError
from stages.foundations.params import ReasoningGymEnvironment, ReasoningGymSource


def build(params: ReasoningGymEnvironment, problem: Mapping[str, Any], seed: int) -> Environment:
    """Returns an episode of the task that made the problem. UserError where `tasks` lacks it or differs from it."""
    name, _, index = str(problem["problem_id"]).rpartition("/")
    task = params.tasks.get(name)
    if task is None or not index.isdigit():
        raise UserError(
            f"problem {problem['problem_id']} is of no task in prompt.environment.tasks, which are "
            f"{', '.join(params.tasks) or 'none'}: give `{name}` with the values of `sources.{name}.from`"
        )
    data = _data(json.dumps(task.model_dump()))
    entry = data[int(index)] if int(index) < task.rows else {"question": ""}
    # The entry is made again, as tables keep only question and answer. Spaces are left out: curate tidies them.
    if "".join(entry["question"].split()) != "".join(problem["problem"].split()):
        raise UserError(
            f"prompt.environment.tasks.{name} does not make problem {problem['problem_id']}: give it the values of "
            f"`sources.{name}.from`, and let curate keep the text of problems"
        )
    return _OneAnswer(data, entry)


class _OneAnswer:
    """The first turn is the answer, as the verifier finds it: in `<answer>` tags or a box, or the text itself."""

    def __init__(self, data: Any, entry: Mapping[str, Any]) -> None:
        self._data, self._entry = data, entry

    def reset(self) -> None:
        return None

    def step(self, turn: str) -> Done:
        answer = extract_answer(turn).text
        if not answer:
            return Done(reward=0.0, is_correct=False)
        score = float(self._data.score_answer(answer, self._entry))
        return Done(reward=score, is_correct=score >= 1.0)


def prepare() -> None:
    """Imports the package, which takes seconds of computing, before the first request."""
    import reasoning_gym  # noqa: F401


@lru_cache(maxsize=16)
def _data(task: str) -> Any:
    import reasoning_gym

    params = ReasoningGymSource.model_validate_json(task)
    return reasoning_gym.create_dataset(params.task, size=params.rows, seed=params.seed, **params.config)
