"""Scores with intervals, and comparisons of two policies: by hand and against SciPy."""

import itertools

import numpy
import pytest

from stages.algorithms.estimators import (
    Interval,
    clustered_bootstrap,
    compare_paired,
    holm,
    majority_at_k,
    paired_bootstrap,
    pass_at_k,
    seed_interval,
    welch_interval,
    with_width,
)


def test_pass_at_k_by_hand():
    # 4 samples, 1 correct: of the 6 pairs, 3 hold the correct one.
    assert pass_at_k(4, 1, 2) == pytest.approx(0.5)
    assert pass_at_k(8, 0, 3) == 0
    assert pass_at_k(8, 6, 3) == 1
    assert pass_at_k(10, 3, 1) == pytest.approx(0.3)


def test_pass_at_k_takes_arrays_and_large_n():
    numpy.testing.assert_allclose(pass_at_k(4, numpy.array([0, 1, 4]), 2), [0, 0.5, 1])
    assert 0 < pass_at_k(10_000, 1, 5_000) == pytest.approx(0.5)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 5), (4, 1, 0)])
def test_pass_at_k_refuses_nonsense(n, c, k):
    with pytest.raises(ValueError, match="pass_at_k"):
        pass_at_k(n, c, k)


def test_majority_by_hand():
    assert majority_at_k(["3", "3", "5"], "3", 3) == 1
    assert majority_at_k(["3", "5", "5"], "3", 3) == 0
    assert majority_at_k(["3", "5"], "3", 2) == 0.5
    assert majority_at_k(["3", None, None], "3", 3) == 1
    assert majority_at_k([None, None], "3", 2) == 0
    # Of the pairs (3,3), (3,5), (3,5): one wins, two tie.
    assert majority_at_k(["3", "3", "5"], "3", 2) == pytest.approx((1 + 0.5 + 0.5) / 3)


def _slow_majority(answers, gold, k):
    total = 0.0
    subsets = list(itertools.combinations(answers, k))
    for subset in subsets:
        votes = {answer: subset.count(answer) for answer in subset if answer is not None}
        best = [answer for answer, count in votes.items() if count == max(votes.values())]
        total += (gold in best) / len(best) if best else 0
    return total / len(subsets)


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
def test_majority_equals_counting_every_subset(k):
    generator = numpy.random.default_rng(k)
    for _ in range(20):
        answers = [None if a == 4 else int(a) for a in generator.integers(0, 5, size=8)]
        assert majority_at_k(answers, 1, k) == pytest.approx(_slow_majority(answers, 1, k))


def test_bootstrap_is_deterministic_and_covers_the_mean():
    scores = numpy.random.default_rng(0).integers(0, 2, size=300)
    interval = clustered_bootstrap(scores, draws=1000, seed=5)
    assert interval == clustered_bootstrap(scores, draws=1000, seed=5)
    assert interval != clustered_bootstrap(scores, draws=1000, seed=6)
    assert interval.low < interval.estimate < interval.high
    assert interval.estimate == pytest.approx(scores.mean())
    # Normal theory: half width 1.96 * sqrt(p(1-p)/n), some 0.057 here.
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * scores.std() / 300**0.5, rel=0.1)


def test_clusters_widen_the_interval():
    by_problem = numpy.random.default_rng(1).integers(0, 2, size=50)
    scores, clusters = numpy.repeat(by_problem, 16), numpy.repeat(numpy.arange(50), 16)
    naive, clustered = clustered_bootstrap(scores), clustered_bootstrap(scores, clusters)
    assert naive.estimate == clustered.estimate
    # Samples of a problem that all agree carry the information of one: sqrt(16) times as wide.
    assert (clustered.high - clustered.low) / (naive.high - naive.low) == pytest.approx(4, rel=0.15)
    assert clustered_bootstrap(by_problem) == clustered


def test_cluster_order_and_kind_do_not_matter():
    scores, clusters = [1.0, 0, 1, 1, 0], ["b", "a", "b", "c", "a"]
    backwards = clustered_bootstrap(scores[::-1], clusters[::-1])
    assert backwards == clustered_bootstrap(scores, clusters) == clustered_bootstrap(scores, [1, 0, 1, 2, 0])


def test_memory_bound_does_not_change_the_result(monkeypatch):
    scores = numpy.arange(100.0)
    whole = clustered_bootstrap(scores, draws=500)
    monkeypatch.setattr("stages.algorithms.estimators._CELLS_AT_ONCE", 700)
    assert clustered_bootstrap(scores, draws=500) == whole


@pytest.mark.parametrize(
    ("score", "problems", "low", "high"),
    [
        (0.0, 32, 0.0, 0.1089),  # Clopper-Pearson tables: 0 of 32
        (1.0, 10, 0.6915, 1.0),  # and 10 of 10
        (0.5, 1, 0.0125, 0.9875),
    ],
)
def test_equal_scores_everywhere_still_leave_doubt(score, problems, low, high):
    interval = with_width(clustered_bootstrap([score] * problems, draws=50), problems, 0.0, 1.0)
    assert interval == pytest.approx((score, low, high), abs=1e-4)


def test_policies_that_never_differ_are_not_known_to_be_equal():
    gain = with_width(paired_bootstrap([0.0, 1.0] * 8, [0.0, 1.0] * 8), 16, -1.0, 1.0)
    assert gain == pytest.approx((0.0, -0.2059, 0.2059), abs=1e-4)


def test_an_interval_with_a_width_stays():
    assert with_width(Interval(0.5, 0.4, 0.6), 10, 0.0, 1.0) == (0.5, 0.4, 0.6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: clustered_bootstrap([]),
        lambda: clustered_bootstrap([1.0, float("nan")]),
        lambda: clustered_bootstrap([1.0, 0.0], ["a"]),
        lambda: paired_bootstrap([1.0], [1.0, 0.0]),
        lambda: majority_at_k(["1"], "1", 2),
    ],
)
def test_unusable_input_is_refused(call):
    with pytest.raises(ValueError):
        call()


@pytest.fixture
def stats():
    """An import of 1.5 s, which only these tests have to wait for."""
    import scipy.stats

    return scipy.stats


def of_counts(wins, losses, ties):
    """Both policies' scores where each problem is right or wrong."""
    return [0] * wins + [1] * losses + [1] * ties, [1] * wins + [0] * losses + [1] * ties


def test_right_or_wrong_by_hand(stats):
    # 12 problems, 3 won, 1 lost, and 1.25 added on both sides, are 14.5 problems. Mean: 2 / 14.5 = 0.137931. Mean
    # square: 6.5 / 14.5 = 0.448276. Variance of the mean: (0.448276 - 0.019025) / 13.5 = 0.0317963. Its root: 0.178315.
    found = compare_paired(*of_counts(3, 1, 8))
    assert (found.problems, found.wins, found.losses, found.ties) == (12, 3, 1, 8)
    reach = stats.t(13.5).ppf(0.975) * 0.178315
    wanted = (2 / 12, 0.137931 - reach, 0.137931 + reach)
    assert found.interval == pytest.approx(wanted, abs=1e-5)
    assert found.p_value == pytest.approx(2 * stats.t(13.5).sf(0.137931 / 0.178315), abs=1e-5)


def test_shares_by_hand(stats):
    # The squares of the differences 0.5, -0.25, 0, 0 add up to 0.3125. With eight differences of 1, each added square
    # is 8.3125 / 10 = 0.83125; 2.5 of them are 2.078125. Over 6.5 problems the mean is 0.25 / 6.5 = 0.0384615, and the
    # mean square 2.390625 / 6.5 = 0.367788.
    found = compare_paired([0.25, 0.5, 0.75, 1.0], [0.75, 0.25, 0.75, 1.0])
    error = ((0.367788 - 0.0384615**2) / 5.5) ** 0.5
    reach = stats.t(5.5).ppf(0.975) * error
    wanted = (0.0625, 0.0384615 - reach, 0.0384615 + reach)
    assert found.interval == pytest.approx(wanted, abs=1e-5)


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


def test_welch_by_hand(stats):
    # means 2 and 4.875; squared errors 1/3 and 3.7292/4; 4.6392 degrees of freedom by Welch and Satterthwaite
    reach = stats.t(4.6392).ppf(0.975) * (1 / 3 + 3.7291667 / 4) ** 0.5
    found = welch_interval([1.0, 2.0, 3.0], [3.0, 5.0, 7.5, 4.0])
    assert found == pytest.approx((2.875, 2.875 - reach, 2.875 + reach), abs=1e-3)
    # One group without a spread has the interval of the other: t(2) = 4.3027, and a squared error of 1/3.
    assert welch_interval([1, 1], [1.0, 2.0, 3.0]) == pytest.approx((1, 1 - 2.4842, 1 + 2.4842), abs=1e-4)
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
