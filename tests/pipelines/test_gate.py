"""The gate as a table of cases."""

import numpy
import pytest

from pipelines.retraining.gate import Pair, decide
from stages.algorithms.estimators import paired_bootstrap


def pairs(champion, candidate, benchmark="b", clean=None, undecided=(0.0, 0.0)):
    """One pair for each problem; `undecided` are the shares of champion and candidate."""
    clean = [True] * len(champion) if clean is None else clean
    rows = zip(champion, candidate, clean, strict=True)
    return [Pair(benchmark, first, second, *undecided, is_clean) for first, second, is_clean in rows]


def test_a_gain_worked_by_hand():
    """40 problems, of which 30 gain a half and 10 stay: the mean gain is 0.375.

    The mean of 40 has standard deviation sqrt(0.046875 / 40) = 0.0342, so the interval is about 0.375 +- 0.07, and a
    little wider and nearer to 0 by the problems that are added.
    """
    found = decide(pairs([0.25] * 40, [0.75] * 30 + [0.25] * 10))
    assert found.is_promoted and found.reasons == () and found.problems == 40
    assert found.gain.interval == pytest.approx((0.375, 0.27, 0.44), abs=0.02)
    assert found.clean_gain == pytest.approx(0.375)


def test_a_gain_inside_the_noise_is_refused():
    """Of 40 problems 11 are won and 9 lost: +0.05, with standard deviation sqrt(0.5 / 40) = 0.11."""
    found = decide(pairs([0.0] * 11 + [1.0] * 9 + [0.5] * 20, [1.0] * 11 + [0.0] * 9 + [0.5] * 20))
    assert not found.is_promoted and found.gain.interval.estimate == pytest.approx(0.05)
    assert found.reasons == ("inside the noise: +5.0 points (-18.0 to 27.5)",)


def test_equal_policies_are_refused():
    found = decide(pairs([0.0, 0.5, 1.0] * 30, [0.0, 0.5, 1.0] * 30))
    assert found.gain.interval.estimate == 0 and found.gain.interval.low < 0 < found.gain.interval.high
    assert len(found.reasons) == 1 and found.reasons[0].startswith("inside the noise: +0.0 points")


def test_a_few_problems_that_all_gain_prove_nothing():
    assert not decide(pairs([0.0] * 3, [1.0] * 3)).is_promoted
    assert decide(pairs([0.0] * 12, [1.0] * 12)).is_promoted


def test_a_worse_policy_is_called_worse():
    found = decide(pairs([0.75] * 30 + [0.25] * 10, [0.25] * 40))
    assert found.reasons[0].startswith("worse than the champion: -37.5 points")


def test_a_falling_clean_subset_is_refused_however_large_the_gain():
    """90 leaked problems gain everything, 10 clean ones lose a tenth."""
    leaked, clean = pairs([0.0] * 90, [1.0] * 90, clean=[False] * 90), pairs([0.5] * 10, [0.4] * 10)
    found = decide(leaked + clean)
    assert found.gain.interval.low > 0
    assert found.reasons == ("the clean subset falls by 10.0 points",)
    assert decide(leaked + pairs([0.5] * 10, [0.5] * 10)).is_promoted, "an equal clean subset does not fall"


def test_without_a_clean_problem_nothing_is_promoted():
    found = decide(pairs([0.0] * 50, [1.0] * 50, clean=[False] * 50))
    assert found.clean_gain is None and "nothing clean can be compared" in found.reasons[0]


def test_rising_undecided_verdicts_are_refused():
    found = decide(pairs([0.0] * 50, [1.0] * 50, undecided=(0.01, 0.02)))
    assert found.reasons == ("undecided verdicts rise from 1.00% to 2.00%",)
    assert decide(pairs([0.0] * 50, [1.0] * 50, undecided=(0.02, 0.02))).is_promoted
    assert decide(pairs([0.0] * 50, [1.0] * 50, undecided=(0.02, 0.01))).is_promoted


def test_a_benchmark_must_not_pay_for_the_gain():
    found = decide(pairs([0.0] * 90, [1.0] * 90, "a") + pairs([1.0] * 9, [0.0] * 9, "b"))
    assert found.gain.interval.low > 0 and found.by_benchmark["b"].interval.high < 0
    assert [reason.split(":")[0] for reason in found.reasons] == ["worse on b"]


def test_all_reasons_are_told():
    found = decide(pairs([0.5] * 60, [0.3] * 30 + [0.4] * 30, undecided=(0.0, 0.1)))
    assert len(found.reasons) == 4, found.reasons


def test_no_common_problem():
    assert decide([]).reasons == ("no problem was measured with both policies",)


def promoted_by_percentile_bootstrap(champion, candidate):
    """Rule 1 as it would be with the percentile bootstrap."""
    return paired_bootstrap(champion, candidate, draws=2000).low > 0


def test_noise_that_a_percentile_bootstrap_would_promote_is_refused():
    """40 problems, one response each; five are won, none lost, and 35 equal.

    Where two policies are equally good and five problems differ, all five go one way once in 16 times. A bootstrap
    sample without any of the five has a chance of (35/40)^40 = 0.5% only, so its interval leaves out 0.
    """
    champion, candidate = [0.0] * 40, [1.0] * 5 + [0.0] * 35
    assert promoted_by_percentile_bootstrap(champion, candidate)
    found = decide(pairs(champion, candidate))
    assert found.reasons == ("inside the noise: +12.5 points (-0.9 to 24.4)",)
    # The same gain on ten times the problems is no noise, and neither are eight of 40.
    assert decide(pairs(champion * 10, candidate * 10)).is_promoted
    assert decide(pairs([0.0] * 40, [1.0] * 8 + [0.0] * 32)).is_promoted


def test_a_gain_of_a_few_responses_on_a_hopeless_benchmark_is_refused():
    """50 problems, 8 responses each: on four of them the candidate is right once, the champion never."""
    champion, candidate = [0.0] * 50, [0.125] * 4 + [0.0] * 46
    assert promoted_by_percentile_bootstrap(champion, candidate)
    assert decide(pairs(champion, candidate)).reasons[0].startswith("inside the noise: +1.0 points")


@pytest.mark.parametrize(("problems", "rate", "responses"), [(40, 0.06, 1), (60, 0.5, 8), (50, 0.02, 8)])
def test_equal_policies_pass_by_chance_at_most_once_in_forty_times(problems, rate, responses):
    """Both policies equally good; 2,000 draws, in which 2.5% have a standard error of 0.35%."""
    random = numpy.random.default_rng(0)
    passed = 0
    for _ in range(2000):
        rates = random.beta(rate, 1 - rate, problems) if responses > 1 else numpy.full(problems, rate)
        champion, candidate = (random.binomial(responses, rates) / responses for _ in range(2))
        passed += decide(pairs(champion, candidate)).is_promoted
    assert passed <= 65


def test_a_real_gain_is_promoted():
    """100 problems, 8 responses each, from 50% to 60% right: promoted in 9 of 10 draws."""
    random = numpy.random.default_rng(0)
    passed = 0
    for _ in range(100):
        rates = random.beta(1, 1, 100)
        better = rates + 0.2 * (1 - rates)
        champion, candidate = (random.binomial(8, own) / 8 for own in (rates, better))
        passed += decide(pairs(champion, candidate)).is_promoted
    assert passed >= 90
