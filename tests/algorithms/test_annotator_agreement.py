"""Agreement by hand, alpha against Krippendorff's own example, and what must not matter."""

import math

import pytest

from stages.algorithms.preference_agreement import (
    agreement_with_others,
    circular_triads,
    ordinal_alpha,
    pair_agreement,
    rank_consistency,
)

NAN = math.nan
# Krippendorff (2011), section C: four observers, twelve units, ordinal alpha 0.815.
OBSERVERS = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, NAN, NAN, NAN],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NAN, 3],
    [NAN, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NAN],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NAN],
]


def units_of(observers):
    return [[value for value in unit if not math.isnan(value)] for unit in zip(*observers, strict=True)]


def test_pairs_ordered_alike_count_one_opposite_none_and_ties_half():
    # a<b alike (1), a<c tied by the second (1/2), b<c opposite (0)
    assert pair_agreement({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 2, "c": 1}) == (1.5, 3)
    assert pair_agreement({"a": 1, "b": 1}, {"a": 2, "b": 2}).share == 0.5
    assert pair_agreement({"a": 1}, {"a": 1}).share is None


def test_an_annotator_is_compared_with_all_others_and_never_with_itself():
    tasks = [
        {"one": {"a": 1, "b": 2}, "two": {"a": 1, "b": 2}, "three": {"a": 2, "b": 1}},
        {"one": {"c": 1, "d": 2}},  # done by nobody else
    ]
    found = agreement_with_others(tasks)
    # The other two of "one" cancel out, and so do those of "two"; "three" stands against both.
    assert {name: share.share for name, share in found.items()} == {"one": 0.5, "two": 0.5, "three": 0.0}
    assert agreement_with_others(tasks[1:])["one"].pairs == 0


def test_ranks_agree_with_ratings_where_better_is_higher():
    assert rank_consistency({"a": 1, "b": 2, "c": 3}, {"a": 7, "b": 3, "c": 5}) == (2, 3)
    assert rank_consistency({"a": 1, "b": 2}, {"a": 4, "b": 4}).share is None  # a tie contradicts nothing
    assert rank_consistency({"a": 1, "b": 2}, {"a": 4}).pairs == 0


def test_alpha_is_that_of_krippendorffs_own_example():
    assert ordinal_alpha(units_of(OBSERVERS)) == pytest.approx(0.815, abs=0.0005)


def test_alpha_of_two_values_is_that_of_krippendorffs_binary_example():
    """Section A of the same paper, alpha 0.095: with two values, ordinal and nominal distances are the same."""
    observers = [0, 1, 0, 0, 0, 0, 0, 0, 1, 0], [1, 1, 1, 0, 0, 1, 0, 0, 0, 0]
    assert ordinal_alpha(list(zip(*observers, strict=True))) == pytest.approx(1 - 19 * 4 / (14 * 6))


def test_alpha_by_hand_and_the_order_alone_counts():
    """Each value is there twice, so the middles are 1, 3 and 5. Distances are squares of their differences."""
    units = [[1, 1], [2, 3], [3, 2]]  # coincidences: 2 for (2, 3) and (3, 2) each
    expected = 2 * (2 * 2 * 2**2 + 2 * 2 * 4**2 + 2 * 2 * 2**2) / 5
    assert ordinal_alpha(units) == pytest.approx(1 - 2 * 2 * 2**2 / expected)
    assert ordinal_alpha([[1, 2], [2, 1]]) == pytest.approx(-0.5), "worse than chance"
    assert ordinal_alpha([[1, 1, 1], [7, 7]]) == 1.0
    stretched = [[10.0**value for value in unit] for unit in units_of(OBSERVERS)]
    turned = [[-value for value in unit] for unit in units_of(OBSERVERS)]
    assert ordinal_alpha(stretched) == pytest.approx(ordinal_alpha(units_of(OBSERVERS)))
    assert ordinal_alpha(turned) == pytest.approx(ordinal_alpha(units_of(OBSERVERS)))


def test_alpha_does_not_depend_on_who_gave_a_value_nor_on_units_with_one():
    units = units_of(OBSERVERS)
    assert ordinal_alpha([sorted(unit) for unit in units] + [[9.0]]) == pytest.approx(ordinal_alpha(units))


@pytest.mark.parametrize("units", [[], [[1.0]], [[2.0, 2.0], [2.0, 2.0]]])
def test_alpha_is_undefined_where_nothing_differs_or_nothing_is_shared(units):
    assert ordinal_alpha(units) is None


def test_circles_of_votes_are_counted():
    circle = {("a", "b"): 2, ("b", "a"): 1, ("b", "c"): 1, ("c", "a"): 1}
    assert circular_triads(circle) == 1
    assert circular_triads(circle | {("a", "c"): 1}) == 0  # a and c are even
    assert circular_triads({("a", "b"): 1, ("b", "c"): 1, ("a", "c"): 1}) == 0
