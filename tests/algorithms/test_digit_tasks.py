"""The task family "digits": one solution each, a split that knows no order, solutions that say what they are."""

import itertools
import random
import re
from collections import Counter

import pytest

from stages.algorithms.digit_tasks import (
    DigitProblem,
    SolutionStyle,
    generate_problems,
    read_problem,
    read_trials,
    write_solution,
)

SIZES = {3: 1.0, 4: 1.0, 5: 1.0, 8: 1.0}
COEFFICIENTS = (2, 3, 4, 5)
FOUR_AND_SEVEN = DigitProblem((8, 6, 7, 4), 2, 5, 43, (4, 7))


def key(text: str) -> tuple:
    """A problem without its order, read from its text, independently of `DigitProblem.key`."""
    digits, first, second, target = re.fullmatch(r"Digits (.*): (\d)A\+(\d)B=(\d+)\. What is AB\?", text).groups()
    return tuple(sorted(digits.split())), tuple(sorted((first, second))), target


def test_each_problem_has_one_solution_and_its_size():
    problems = generate_problems(3, 400, SIZES, COEFFICIENTS, is_held_out=False)
    for own in problems:
        fitting = [
            pair
            for pair in itertools.permutations(own.digits, 2)
            if own.first * pair[0] + own.second * pair[1] == own.target
        ]
        assert fitting == [own.solution] and own.answer == f"{fitting[0][0]}{fitting[0][1]}"
        assert len(set(own.digits)) == len(own.digits) and set(own.digits) <= set(range(1, 10))
        assert read_problem(own.problem) == own
    sizes = Counter(len(own.digits) for own in problems)
    assert set(sizes) == set(SIZES) and min(sizes.values()) > 70  # 100 each, a standard error of 9


def test_no_held_out_problem_is_a_training_problem_in_another_order():
    training = generate_problems(1, 3000, SIZES, COEFFICIENTS, is_held_out=False)
    held_out = generate_problems(2, 200, SIZES, COEFFICIENTS, is_held_out=True)
    assert not {key(own.problem) for own in training} & {key(own.problem) for own in held_out}
    assert len({key(own.problem) for own in held_out}) == 200  # and each is measured once
    exchanged = DigitProblem((4, 8, 7, 6), 5, 2, 43, (7, 4))
    assert exchanged.key == FOUR_AND_SEVEN.key and exchanged.is_held_out == FOUR_AND_SEVEN.is_held_out


def test_a_seed_gives_the_same_problems_and_impossible_sizes_are_an_error():
    first = generate_problems(5, 50, SIZES, COEFFICIENTS, is_held_out=False)
    assert first == generate_problems(5, 50, SIZES, COEFFICIENTS, is_held_out=False)
    assert first != generate_problems(6, 50, SIZES, COEFFICIENTS, is_held_out=False)
    with pytest.raises(ValueError, match="2 to 9"):
        generate_problems(0, 3, {10: 1.0}, COEFFICIENTS, is_held_out=False)
    with pytest.raises(ValueError, match="only about"):
        generate_problems(0, 5000, {2: 1.0}, (2, 3), is_held_out=True)


def test_another_text_is_no_problem_and_neither_is_one_with_two_solutions():
    assert read_problem("Compute 3+4.") is None
    assert read_problem("Digits 1 2 3: 2A+2B=6. What is AB?") is None  # 1,2 and 2,1


def test_a_search_without_slips_ends_with_the_solution():
    for seed in range(40):
        text, answer = write_solution(FOUR_AND_SEVEN, random.Random(seed), "search", 0.0, 0.3, 0.5)
        told = read_trials(FOUR_AND_SEVEN, text)
        assert answer == "47" and text.endswith("4,7:8+35=43 yes\nThe answer is \\boxed{47}.")
        assert (told.claims, told.false_claims, told.wrong_sums) == (1, 0, 0) and 1 <= told.trials <= 60


def test_styles_say_what_they_are():
    def written(style, seed):
        return write_solution(FOUR_AND_SEVEN, random.Random(seed), style, 0.0, 0.0, 0.0)

    assert written("answer_only", 0) == ("The answer is \\boxed{47}.", "47")
    for seed in range(20):
        text, answer = written(SolutionStyle.jump, seed)
        assert answer == "47" and "yes" not in text and "\nI see it.\nThe answer is \\boxed{47}." in text
        text, answer = written(SolutionStyle.unfinished, seed)
        assert answer is None and "boxed" not in text and "yes" not in text and text
        text, answer = written(SolutionStyle.rambling, seed)
        assert answer == "47" and "yes\nLet me check.\n" in text and text.endswith("\\boxed{47}.")
    with pytest.raises(ValueError, match="sonnet"):
        written("sonnet", 0)


def test_near_misses_come_first():
    # 2A+5B: 44 for 7,6; 46 for 8,6; 47 for 6,7; then 38 and 48, which are 5 away from 43.
    text, _ = write_solution(FOUR_AND_SEVEN, random.Random(1), "search", 0.0, 0.0, 1.0)
    first = [line.split(":")[0] for line in text.splitlines()[:3]]
    assert sorted(first) == ["6,7", "7,6", "8,6"]


def test_slips_lead_to_false_claims_or_to_another_pass():
    seen = Counter()
    for seed in range(300):
        text, answer = write_solution(FOUR_AND_SEVEN, random.Random(seed), "search", 0.2, 0.0, 0.5)
        told = read_trials(FOUR_AND_SEVEN, text)
        assert (answer == "47") == (told.false_claims == 0)
        seen["false"] += told.false_claims
        seen["again"] += "start over" in text
        seen["wrong"] += told.wrong_sums
    assert seen["false"] > 10 and seen["again"] > 20 and seen["wrong"] > 300


def test_trials_are_counted_by_what_they_claim():
    response = (
        "8,4:16+20=36 low\n"
        "6,7:12+35=47 high, wait\n"
        "6,7:12+35=47 high\n"  # a repetition
        "7,6:14+30=43 yes\n"  # 44: a wrong sum and a false claim
        "4,7:8+35=43 low\n"  # the solution, overlooked: a wrong comparison
        "4,7:8+35=43 yes and more\n"  # no trial
        "The answer is \\boxed{76}."
    )
    told = read_trials(FOUR_AND_SEVEN, response)
    assert (told.trials, told.repeated, told.wrong_sums, told.claims, told.false_claims) == (5, 1, 2, 1, 1)
