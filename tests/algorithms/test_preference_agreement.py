"""Agreement of scores with preferences, and of annotators with each other: by hand, by counting, and the edges."""

import math
from itertools import pairwise, permutations

import numpy
import pytest

from stages.images.algorithms.preference_agreement import (
    agreement_with_others,
    circular_triads,
    hit_chance,
    ordinal_alpha,
    pair_agreement,
    pair_points,
    rank_consistency,
    rank_correlation,
    recall_and_filter,
)


def test_points_of_pairs_with_both_rules_for_ties():
    assert pair_points([2.0, 1.0, 1.0], [1.0, 2.0, 1.0]).tolist() == [1.0, 0.0, 0.5]
    assert pair_points([2.0, 1.0, 1.0], [1.0, 2.0, 1.0], tie_points=0.0).tolist() == [1.0, 0.0, 0.0]


def by_counting(scores, wanted, k):
    """Over all orders of the images that the scores allow."""
    orders = [
        order
        for order in permutations(range(len(scores)))
        if all(scores[one] >= scores[other] for one, other in pairwise(order))
    ]
    return sum(any(wanted[image] for image in order[:k]) for order in orders) / len(orders)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7])
def test_the_chance_of_a_hit_is_that_over_all_orders(k):
    generator = numpy.random.default_rng(k)
    for _ in range(20):
        scores = generator.integers(0, 3, size=5).tolist()
        wanted = generator.random(5) < 0.4
        wanted[generator.integers(5)] = True
        assert hit_chance(scores, wanted, k) == pytest.approx(by_counting(scores, wanted, k))


def test_recall_and_filter_by_hand():
    # best is the second image, the two last are worst; the scores put the best second and a worst one last
    assert recall_and_filter([3.0, 2.5, 1.0, 0.0], [2, 1, 3, 3], 1) == (0.0, 1.0)
    assert recall_and_filter([3.0, 2.5, 1.0, 0.0], [2, 1, 3, 3], 2) == (1.0, 1.0)
    assert recall_and_filter([0.0] * 4, [2, 1, 3, 3], 1) == pytest.approx((1 / 4, 2 / 4))  # chance


def test_nothing_wanted_is_refused():
    with pytest.raises(ValueError, match="an image that is wanted"):
        hit_chance([1.0, 2.0], [False, False], 1)


def test_the_correlation_is_spearmans_and_its_interval_holds_it():
    from scipy.stats import spearmanr

    generator = numpy.random.default_rng(0)
    quality = numpy.array([0.0, 0.2, 0.4, 0.6, 0.8])
    scores = quality + 0.3 * generator.standard_normal((60, 5))
    wins = quality[[0, 2, 1, 3, 4]] + 0.3 * generator.standard_normal((60, 5))
    found = rank_correlation(scores, wins, draws=300)
    assert found.estimate == pytest.approx(spearmanr(scores.mean(0), wins.mean(0)).statistic)
    assert found.low <= found.estimate <= found.high < 1.0 + 1e-9
    assert found.low < found.high


def test_missing_pictures_and_too_few_generators():
    scores = numpy.array([[1.0, 2.0, numpy.nan], [1.0, numpy.nan, 3.0], [numpy.nan, 2.0, 3.0]])
    assert rank_correlation(scores, scores, draws=200).estimate == pytest.approx(1.0)
    assert rank_correlation(scores[:, :2], scores[:, :2]) is None
    assert rank_correlation(scores * 0, scores) is None  # all equal: no order to compare


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
    units = units_of(OBSERVERS)
    assert ordinal_alpha(units) == pytest.approx(0.815, abs=0.0005)
    # The order alone counts.
    stretched = [[-(10.0**value) for value in unit] for unit in units]
    assert ordinal_alpha(stretched) == pytest.approx(ordinal_alpha(units))
    assert ordinal_alpha([[1, 2], [2, 1]]) == pytest.approx(-0.5), "worse than chance"


@pytest.mark.parametrize("units", [[], [[1.0]], [[2.0, 2.0], [2.0, 2.0]]])
def test_alpha_is_undefined_where_nothing_differs_or_nothing_is_shared(units):
    assert ordinal_alpha(units) is None


def test_circles_of_votes_are_counted():
    circle = {("a", "b"): 2, ("b", "a"): 1, ("b", "c"): 1, ("c", "a"): 1}
    assert circular_triads(circle) == 1
    assert circular_triads(circle | {("a", "c"): 1}) == 0  # a and c are even
    assert circular_triads({("a", "b"): 1, ("b", "c"): 1, ("a", "c"): 1}) == 0
