import itertools

import numpy
import pytest

from stages.algorithms.estimators import (
    Interval,
    clustered_bootstrap,
    majority_at_k,
    paired_bootstrap,
    pass_at_k,
    with_width,
)


def test_pass_at_k_by_hand():
    # 4 samples, 1 correct: of the 6 pairs, 3 hold the correct one.
    assert pass_at_k(4, 1, 2) == pytest.approx(0.5)
    assert pass_at_k(8, 0, 3) == 0
    assert pass_at_k(8, 6, 3) == 1
    assert pass_at_k(10, 3, 1) == pytest.approx(0.3)


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 3), (6, 1, 4), (7, 5, 2), (3, 3, 3)])
def test_pass_at_k_counts_subsets(n, c, k):
    subsets = list(itertools.combinations([1] * c + [0] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(any(subset) for subset in subsets) / len(subsets))


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


def test_majority_of_many_samples_is_quick():
    answers = [index % 40 for index in range(64)]
    assert 0 < majority_at_k(answers, 3, 32) < 1


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


def test_pairing_finds_a_small_constant_gain():
    generator = numpy.random.default_rng(2)
    first = generator.random(200)
    gain = paired_bootstrap(first, first + 0.01)
    assert gain.estimate == pytest.approx(0.01)
    assert gain.low > 0
    separate = [clustered_bootstrap(first), clustered_bootstrap(first + 0.01)]
    assert separate[0].high > separate[1].low


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
