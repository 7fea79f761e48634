"""The task family "calculator": a split that knows no order of factors, conversations that a calculator would have."""

import random
import re

import pytest

from stages.algorithms.calculator_tasks import CalculatorProblem, generate_problems, write_demonstration

PROBLEM = CalculatorProblem(473, 28, 36)


def turns(problem, seed=0, called=0.0, miscalled=0.0, busy=0.0):
    rows = write_demonstration(problem, random.Random(seed), called, miscalled, busy)
    return [row["content"] for row in rows], "".join(row["role"][0] for row in rows)


def test_no_held_out_problem_is_a_training_problem_with_its_factors_exchanged():
    def keys(seed, is_held_out):
        texts = [one.problem for one in generate_problems(seed, 3000, is_held_out)]
        numbers = [tuple(map(int, re.fullmatch(r"(\d{3})\+(\d\d)\*(\d\d)", text).groups())) for text in texts]
        assert len(set(numbers)) == 3000
        return {(term, *sorted(factors)) for term, *factors in numbers}

    assert not keys(1, False) & keys(2, True)
    assert CalculatorProblem(473, 36, 28).is_held_out == PROBLEM.is_held_out
    assert generate_problems(1, 20, True) == generate_problems(1, 20, True) != generate_problems(2, 20, True)


def test_an_author_guesses_calls_or_meets_a_busy_calculator():
    assert turns(PROBLEM) == (["473+28*36", "!1481"], "ua")
    called = ["473+28*36", "?28*36", "1008", "?473+1008", "1481", "!1481"]
    assert turns(PROBLEM, called=1.0) == (called, "uatata")
    contents, roles = turns(PROBLEM, called=1.0, busy=0.999999)
    assert contents == [called[0], *["?28*36", "b"] * 3, *called[1:3], *["?473+1008", "b"] * 3, *called[3:]]
    assert roles == "u" + "at" * 8 + "a"


@pytest.mark.parametrize("seed", range(20))
def test_a_refused_call_is_none_that_the_calculator_could_compute(seed):
    contents, roles = turns(PROBLEM, seed, miscalled=1.0)
    assert not re.fullmatch(r"\?\d+[+*]\d+", contents[1]) and not contents[1].startswith("!")
    assert contents[2] == "e" and contents[-1] == "!1481"
    assert (contents[3:-1], roles) in (([], "uata"), (["?28*36", "1008"], "uatata"))


def test_shares_are_those_asked_for():
    rng = random.Random(0)
    rows = [write_demonstration(one, rng, 0.15, 0.1, 0.2) for one in generate_problems(3, 4000, False)]
    observed = [[turn["content"] for turn in row if turn["role"] == "tool"] for row in rows]
    refused = [one[:1] == ["e"] for one in observed]
    called = [bool(one) and not is_refused for one, is_refused in zip(observed, refused, strict=True)]
    # Standard errors: 0.006, 0.005, and 0.01 for the share of busy calls.
    assert abs(sum(called) / 4000 - 0.15) < 0.02 and abs(sum(refused) / 4000 - 0.1) < 0.02
    answers = [text for one in observed for text in one if text != "e"]
    assert abs(answers.count("b") / len(answers) - 0.2) < 0.04
