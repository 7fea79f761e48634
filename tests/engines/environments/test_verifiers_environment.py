"""An environment of package verifiers, in the workers of a separate virtual environment, and what is rejected."""

import os
import sys
from pathlib import Path

import pytest

from stages.engines.environments.pool import EnvironmentPool
from stages.foundations.errors import UserError
from stages.foundations.params import VerifiersEnvironment
from tests.fakes import environments

PYTHON = os.environ.get("VERIFIERS_PYTHON", "")
needs_verifiers = pytest.mark.skipif(
    not PYTHON,
    reason="VERIFIERS_PYTHON names no Python with verifiers==0.3.1 (see docs/how-to/tools-and-environments.md)",
)
PROBLEM = {"problem_id": "sums/0", "problem": " 473 + 28*36", "answer": "1481"}


def section(**own):
    own = {"python": PYTHON or sys.executable, "id": "sums-with-tools", "max_observation_tokens": 100} | own
    values = environments.section("verifiers", memory_mib=4096, timeout_seconds=20, **own)
    return VerifiersEnvironment.model_validate(values)


def call(text):
    return f'<tool_call>{{"name": "calculate", "arguments": {text}}}</tool_call>'


@pytest.fixture
def installed(monkeypatch):
    """The environment as a package that the worker can import."""
    folder = Path(__file__).parents[2] / "fakes" / "verifiers_package"
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def ask(pool, *turns, problem=PROBLEM, seed=1):
    """The answers to nothing and to each turn, without their times."""
    replies = [pool.reply(pool.submit(problem, seed, turns[:count])) for count in range(len(turns) + 1)]
    return [{name: value for name, value in reply.items() if name != "seconds"} for reply in replies]


@needs_verifiers
def test_turns_answer_an_environment_that_asks(installed):
    with EnvironmentPool(section()) as pool:
        opening, product, broken, wrong, end = ask(
            pool, call('{"a": 28, "b": 36}'), f"<tool_call>{'[' * 9999}</tool_call>", call("[]"), "1481"
        )
        assert opening["observation"].startswith("Be brief.\n\nCall a tool with <tool_call>")
        assert '"name": "calculate", "description": "The product of two numbers."' in opening["observation"]
        assert PROBLEM["problem"] not in opening["observation"]
        assert (product["observation"], product["calls"], product["failed_calls"]) == ("1008", 1, 0)
        assert (broken["calls"], broken["failed_calls"]) == (2, 1) and "recursion" in broken["observation"]
        assert "must be a mapping" in wrong["observation"]
        assert end["done"]["reward"] == 1.0 and end["done"]["is_correct"] is None
        # The row of its data set has the bonus, which our problem lacks. Episodes do not disturb each other.
        assert ask(pool, "1480")[-1]["done"]["reward"] == 0.25
        other = {**PROBLEM, "problem_id": "sums/1", "problem": "1+1", "answer": "2"}
        assert ask(pool, "2", problem=other)[-1]["done"]["reward"] == 1.0
        assert ask(pool, "1480", problem=other)[-1]["done"]["reward"] == 0.0


@needs_verifiers
def test_random_numbers_are_those_of_the_seed(installed):
    with EnvironmentPool(section(arguments={"is_random": True})) as pool:
        first, second = (ask(pool, call('{"a": 1, "b": 1}'), seed=seed)[1]["observation"] for seed in (1, 2))
        assert first != second
    with EnvironmentPool(section(arguments={"is_random": True})) as pool:
        ask(pool, call('{"a": 1, "b": 1}'), seed=2)
        assert ask(pool, call('{"a": 1, "b": 1}'), seed=1)[1]["observation"] == first


@needs_verifiers
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"id": "absent-thing"}, r"environment\.id 'absent-thing' cannot be loaded by verifiers: Could not import"),
        ({"arguments": {"size": 3}}, r"cannot be loaded by verifiers: .*unexpected keyword argument 'size'"),
    ],
)
def test_an_environment_that_cannot_be_loaded(installed, changes, sentence):
    with EnvironmentPool(section(**changes)) as pool, pytest.raises(UserError, match=sentence):
        ask(pool)


def test_a_python_without_the_package():
    none = r"environment\.python has verifiers none: install verifiers==0\.3\.1"
    with EnvironmentPool(section(python=sys.executable)) as pool, pytest.raises(UserError, match=none):
        ask(pool)
    with pytest.raises(UserError, match=r"environment\.python 'no/such/python' does not exist"):
        EnvironmentPool(section(python="no/such/python"))
