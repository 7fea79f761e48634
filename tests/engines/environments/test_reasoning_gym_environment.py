"""Problems of reasoning-gym, scored by the task that made them, in a confined worker."""

import pytest

from stages.engines.environments.pool import EnvironmentPool
from stages.engines.environments.protocol import Done
from stages.engines.environments.reasoning_gym_environment import build
from stages.foundations.errors import UserError
from stages.foundations.params import ReasoningGymEnvironment
from tests.fakes.environments import section

# Number 4 of this task, as package reasoning-gym 0.1.25 makes it; curate leaves out the last line break.
TASK = {"kind": "reasoning_gym", "task": "countdown", "rows": 20, "seed": 3, "config": {}}
PROBLEM = {
    "problem_id": "reach/4",
    "problem": """Find a way to make 169 using all of these numbers: 83, 94, 74, 90, 40.
Each number can only be used once.

Final answer format instructions:
1. Provide your solution as a arithmetic expression (no '=' sign).
2. Do not include the target number in the expression.
3. Use '*' for multiplication.
4. Use '/' for division.
5. Do not include any other text or formatting.""",
    "answer": "40*(94 - 90) + 83 - 74",
}


SECTION = ReasoningGymEnvironment.model_validate(
    section("reasoning_gym", tasks={"reach": TASK, "other": {**TASK, "seed": 4}})
)


def test_the_task_scores_the_answer_in_a_confined_worker():
    hostile = r"\boxed{open('/etc/passwd').read()}"
    with EnvironmentPool(SECTION) as pool:
        assert pool.reply(pool.submit(PROBLEM, 1, []))["observation"] == ""
        assert pool.reply(pool.submit(PROBLEM, 1, ["83-74+40*(94-90)"]))["done"]["reward"] == 1.0
        # Its scorer evaluates what the policy wrote: what comes of it stays in the worker.
        assert pool.reply(pool.submit(PROBLEM, 2, [hostile]))["done"]["is_correct"] is False


def test_how_an_answer_is_found_and_scored():
    episode = build(SECTION, PROBLEM, 1)
    assert episode.reset() is None
    # Another expression than the gold answer, in each form in which an answer is marked.
    for turn in ("83 - 74 + (94 - 90)*40", "So <answer>83-74+40*(94-90)</answer>.", r"Hence \boxed{83-74+40*(94-90)}"):
        assert episode.step(turn) == Done(1.0, True), turn
    assert episode.step(r"\boxed{83+94}") == Done(0.05, False)
    assert episode.step(r"\boxed{83-74") == episode.step("") == Done(0.0, False)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"problem_id": "unknown/4"}, r"unknown/4 is of no task in prompt\.environment\.tasks, which are reach, other"),
        ({"problem_id": "other/4"}, r"environment\.tasks\.other does not make problem other/4"),
        ({"problem_id": "reach/20"}, r"environment\.tasks\.reach does not make problem reach/20"),
        ({"problem": "Make 168."}, r"environment\.tasks\.reach does not make problem reach/4"),
    ],
)
def test_a_problem_that_the_task_did_not_make(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        build(SECTION, PROBLEM | changes, 1)
