"""Quantities: one value however it is written, with what it counts."""

import pytest

from stages.algorithms.problem_text import problem_words, quantities, without_ordinal_endings
from tests.fakes.steps import steps


def values(text):
    return [one.value for one in quantities(problem_words(without_ordinal_endings(text)))]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("half an hour", "30 minutes"),
        ("25 cents", "$0.25"),
        ("75% of it", "three quarters of it"),
        ("half a dozen", "6"),
        ("three and a half boxes", "3.5 boxes"),
        ("3/5 of the hats", "three fifths of the hats"),
        ("two thirds", "2/3"),
        ("the 3rd floor", "the third floor"),
        ("twice as much", "2 times as much"),
        ("a 6-inch fish", "half a foot of fish"),
        ("two hundred", "200"),
        ("2 dozen", "24"),
        ("a fifth of it", "20% of it"),
        ("a decade", "10 years"),
    ],
)
def test_ways_of_writing_one_quantity(one, other):
    assert values(one) == values(other) != []


def test_one_is_left_out_and_zero_divides_nothing():
    assert values("a dog and 1 cat and one bird") == []
    assert values("1/0 of 5") == [0.0, 5.0]


def test_what_a_quantity_counts_ends_at_the_next_number():
    (miles, pounds) = quantities(problem_words("20 miles and 4 pounds"))
    assert miles.following == ("miles", "and") and pounds.following == ("pounds",)


def test_a_text_of_twice_the_length_takes_twice_the_work():
    short, long = (problem_words("half a dozen of 3/4 " * count) for count in (1_000, 2_000))
    assert len(quantities(long)) == 4_000
    assert steps(lambda: quantities(long)) < 2.1 * steps(lambda: quantities(short))
    assert quantities(problem_words("9" * 5_000)) != []
