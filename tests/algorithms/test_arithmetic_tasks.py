"""The laptop task family: right answers, values in range, no duplicates, mistakes that propagate."""

import random
import re
from collections import Counter

import pytest

from stages.algorithms.arithmetic_tasks import (
    ArithmeticProblem,
    SolutionStyle,
    generate_problems,
    worked_solution,
    worked_steps,
)

SEVEN = ArithmeticProblem("Compute 3+4-2.", "5", ("3+4=7", "7-2=5"), "chain")
LARGER = ArithmeticProblem("Which is larger, 3+4 or 9-1?", "8", ("3+4=7", "9-1=8"), "comparison")


def solve(problem: str) -> int:
    """Reads the English, independently of how it was made."""
    if problem.startswith("Which"):
        return max(eval(text) for text in re.findall(r"\d+[+-]\d+", problem))
    if problem.startswith("Compute"):
        return eval(problem.removeprefix("Compute ").removesuffix("."))
    total = int(re.search(r"has (\d+)", problem)[1])
    total += sum(int(n) for n in re.findall(r"(?:buys|finds) (\d+) more", problem))
    return total - sum(int(n) for n in re.findall(r"(?:loses|gives away) (\d+)", problem))


def test_answers_are_right_and_values_stay_in_range():
    for problem in generate_problems(seed=3, rows=600):
        assert int(problem.answer) == solve(problem.problem)
        for step in problem.steps:
            left, result = step.split("=")
            assert eval(left) == int(result) and 0 <= int(result) <= 20
        operands = [int(n) for step in problem.steps for n in re.findall(r"[+-](\d+)", step)]
        assert all(1 <= operand <= 9 for operand in operands)


def test_kinds_have_their_weights_and_no_problem_comes_twice():
    problems = generate_problems(seed=0, rows=4000)
    assert len({problem.problem for problem in problems}) == 4000
    kinds = Counter(problem.kind for problem in problems)
    # The standard error of a share is under 1 point; duplicates that are drawn again take some from the chains.
    assert abs(kinds["chain"] / 4000 - 0.49) < 0.03
    assert abs(kinds["word"] / 4000 - 0.26) < 0.03
    assert set(kinds) == {"chain", "word", "comparison"}


def test_a_seed_gives_the_same_problems_and_another_seed_others():
    first = generate_problems(seed=5, rows=50)
    assert first == generate_problems(seed=5, rows=50)
    assert first != generate_problems(seed=6, rows=50)
    assert first == generate_problems(seed=5, rows=80)[:50]


def test_more_problems_than_there_are_is_an_error():
    # One operation, operand 1, values 0..2: 1+1, 1-1.
    with pytest.raises(ValueError, match=r"only about 2 different problems exist, but 3 were"):
        generate_problems(0, 3, {"chain": 1.0}, operand_max=1, value_max=2, steps=(1,))
    with pytest.raises(ValueError, match="riddle"):
        generate_problems(0, 3, {"riddle": 1.0})


def test_steps_without_errors_are_the_problems_own():
    assert worked_steps(SEVEN, random.Random(0), 0.0) == (SEVEN.steps, "5")
    assert worked_steps(LARGER, random.Random(0), 0.0) == (LARGER.steps, "8")


def test_a_wrong_step_is_what_later_steps_build_on():
    wrong = 0
    for seed in range(200):
        (first, second), answer = worked_steps(SEVEN, random.Random(seed), 0.5)
        reached = first.split("=")[1]
        assert second.startswith(f"{reached}-2=") and answer == second.split("=")[1]
        wrong += first != "3+4=7"
    assert 60 < wrong < 130  # half of 200, less the slips that hit 7 by chance


def test_a_comparison_concludes_the_larger_of_what_it_wrote():
    for seed in range(50):
        lines, answer = worked_steps(LARGER, random.Random(seed), 0.7)
        assert int(answer) == max(int(line.split("=")[1]) for line in lines)
        assert lines[1].startswith("9-1=")


def test_styles_of_solutions():
    rng = random.Random(0)
    assert worked_solution(SEVEN, rng, "answer_only", 1.0) == ("The answer is \\boxed{5}.", "5")
    assert worked_solution(SEVEN, rng, "step_by_step", 0.0) == ("3+4=7\n7-2=5\nThe answer is \\boxed{5}.", "5")
    assert worked_solution(SEVEN, rng, "unfinished", 0.0) == ("3+4=7", None)
    text, answer = worked_solution(SEVEN, rng, SolutionStyle.rambling, 0.0)
    repeats = text.count("Let me check.\n3+4=7\n7-2=5\n")
    assert repeats in (1, 2, 4) and text.endswith("The answer is \\boxed{5}.") and answer == "5"
    with pytest.raises(ValueError, match="sonnet"):
        worked_solution(SEVEN, rng, "sonnet", 0.0)
