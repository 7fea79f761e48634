from math import comb

import numpy
import pytest

from stages.algorithms.estimators import compare_paired, holm, seed_interval, welch_interval


@pytest.fixture
def stats():
    """An import of 1.5 s, which only these tests have to wait for."""
    import scipy.stats

    return scipy.stats


def of_counts(wins, losses, ties):
    """Both policies' scores where each problem is right or wrong."""
    return [0] * wins + [1] * losses + [1] * ties, [1] * wins + [0] * losses + [1] * ties


def test_right_or_wrong_by_hand(stats):
    # 12 problems, 3 won, 1 lost, and 1.25 added on both sides: 14.5 problems, mean 2 / 14.5 = 0.137931, mean square
    # 6.5 / 14.5 = 0.448276, variance of the mean (0.448276 - 0.019025) / 13.5 = 0.0317963, its root 0.178315
    found = compare_paired(*of_counts(3, 1, 8))
    assert (found.problems, found.wins, found.losses, found.ties) == (12, 3, 1, 8)
    reach = stats.t(13.5).ppf(0.975) * 0.178315
    wanted = (2 / 12, 0.137931 - reach, 0.137931 + reach)
    assert found.interval == pytest.approx(wanted, abs=1e-5)
    assert found.p_value == pytest.approx(2 * stats.t(13.5).sf(0.137931 / 0.178315), abs=1e-5)


def test_shares_by_hand(stats):
    # Differences 0.5, -0.25, 0, 0: squares 0.3125; with eight whole ones the added are 8.3125 / 10 = 0.83125 each, 2.5
    # of them 2.078125; over 6.5 problems mean 0.25 / 6.5 = 0.0384615, mean square 2.390625 / 6.5 = 0.367788
    found = compare_paired([0.25, 0.5, 0.75, 1.0], [0.75, 0.25, 0.75, 1.0])
    error = ((0.367788 - 0.0384615**2) / 5.5) ** 0.5
    reach = stats.t(5.5).ppf(0.975) * error
    wanted = (0.0625, 0.0384615 - reach, 0.0384615 + reach)
    assert found.interval == pytest.approx(wanted, abs=1e-5)


def test_many_problems_have_the_ordinary_t_interval(stats):
    generator = numpy.random.default_rng(0)
    first = generator.binomial(8, 0.5, 20_000) / 8
    second = generator.binomial(8, 0.52, 20_000) / 8
    wanted = stats.ttest_rel(second, first)
    found = compare_paired(first, second)
    assert found.interval[1:] == pytest.approx(tuple(wanted.confidence_interval()), abs=2e-5)
    assert found.p_value == pytest.approx(wanted.pvalue, rel=0.02)


@pytest.mark.parametrize(("wins", "losses"), [(4, 0), (5, 0), (6, 0), (8, 0), (7, 1), (9, 1), (12, 5), (20, 9)])
def test_the_p_value_is_near_the_exact_test_of_mcnemar(wins, losses):
    total = wins + losses
    exact = 2 * sum(comb(total, number) for number in range(wins, total + 1)) / 2**total
    found = compare_paired(*of_counts(wins, losses, 60 - total)).p_value
    assert 0.6 * exact < found < 1.7 * exact


@pytest.mark.parametrize("seed", range(40))
def test_interval_and_p_value_never_contradict_each_other_and_sides_can_be_swapped(seed):
    generator = numpy.random.default_rng(seed)
    problems, k = int(generator.integers(2, 60)), int(generator.choice([1, 4, 16]))
    rates = generator.beta(0.5, 0.5, problems)
    first = generator.binomial(k, rates) / k
    second = generator.binomial(k, numpy.clip(rates + generator.normal(0.1, 0.2), 0, 1)) / k
    found, back = compare_paired(first, second), compare_paired(second, first)
    assert -1 <= found.interval.low <= found.interval.estimate <= found.interval.high <= 1
    assert (found.p_value < 0.05) == (found.interval.low > 0 or found.interval.high < 0)
    assert back.interval == pytest.approx((-found.interval[0], -found.interval[2], -found.interval[1]))
    assert (back.p_value, back.wins, back.ties) == (found.p_value, found.losses, found.ties)
    order = generator.permutation(problems)
    shuffled = compare_paired(first[order], second[order])
    assert shuffled.interval == pytest.approx(found.interval) and shuffled == compare_paired(
        first[order], second[order]
    )


def test_equal_scores_leave_room_for_problems_not_seen():
    found = compare_paired([0.5] * 30, [0.5] * 30)
    assert found.interval.low == -found.interval.high and 0.0975 < found.interval.high < 0.12
    assert found.p_value == 1.0 and found.verdict == "not separated"
    rounded = compare_paired([0.1 + 0.2] * 30, [0.3] * 30)
    assert (rounded.ties, rounded.verdict) == (30, "not separated")


def test_a_few_small_differences_prove_nothing():
    """One response of eight more on each of 8 of 100 problems: unseen problems may differ wholly."""
    found = compare_paired([0.0] * 100, [0.125] * 8 + [0.0] * 92)
    assert found.interval.low < 0 and found.verdict == "not separated"
    assert compare_paired([0.0] * 100, [0.125] * 60 + [0.0] * 40).verdict == "better"


def test_few_problems_are_never_called_better():
    assert compare_paired([0] * 9, [1] * 9).verdict == "not separated"
    assert compare_paired([0] * 10, [1] * 10).verdict == "better"
    assert compare_paired([1] * 10, [0] * 10).verdict == "worse"
    assert compare_paired([0] * 10, [1] * 10).called(0.05) == "not separated"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([], []),
        ([1.0], [1.0, 0.0]),
        ([float("nan")], [0.0]),
        ([0.0], [1.5]),
        ([-0.1], [0.5]),
        ([[0.0]], [[0.0]]),
        (0.5, 0.5),
    ],
)
def test_unusable_scores_are_refused(first, second):
    with pytest.raises(ValueError, match="paired comparison"):
        compare_paired(first, second)


@pytest.mark.parametrize(("score", "gain", "samples"), [(0.03, 0.0, 1), (0.03, 0.05, 8), (0.5, 0.1, 8)])
def test_the_interval_covers_the_truth_as_often_as_it_says(score, gain, samples):
    """50 problems, responses to one problem correlated; 3,000 draws have a standard error of 0.4 points."""
    generator = numpy.random.default_rng(samples)
    held = 0
    for _ in range(3000):
        rates = generator.beta(score, 1 - score, 50)
        better = rates + (1 - rates) * gain / (1 - score)  # on average by `gain`
        first, second = (generator.binomial(samples, own) / samples for own in (rates, better))
        _, low, high = compare_paired(first, second).interval
        held += low <= gain <= high
    assert held / 3000 >= 0.935


def test_welch_is_that_of_scipy(stats):
    first, second = [1.0, 2.0, 3.0], [3.0, 5.0, 7.5, 4.0]
    wanted = stats.ttest_ind(second, first, equal_var=False).confidence_interval()
    found = welch_interval(first, second)
    assert found.estimate == pytest.approx(2.875) and found[1:] == pytest.approx(tuple(wanted))
    assert welch_interval([1, 1], [2, 2]) == (1.0, 1.0, 1.0)
    with pytest.raises(ValueError):
        welch_interval([1], [2, 3])


def test_the_interval_over_seeds_by_hand():
    # mean 2, standard deviation 1, over root 3; t(2) = 4.3027
    assert seed_interval([1.0, 2.0, 3.0]) == (
        2.0,
        pytest.approx(2 - 4.3027 / 3**0.5, abs=1e-4),
        pytest.approx(2 + 4.3027 / 3**0.5, abs=1e-4),
    )
    assert seed_interval([1.0]) is None


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == [pytest.approx(0.03), pytest.approx(0.06), pytest.approx(0.06)]
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == []
