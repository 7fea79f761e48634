"""Agreement of scores with preferences: by hand, against counting over all orders, and the edges."""

from itertools import pairwise, permutations

import numpy
import pytest

from stages.algorithms.preference_agreement import hit_chance, pair_points, rank_correlation, recall_and_filter


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
