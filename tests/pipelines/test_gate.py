"""The gate as a table of cases."""

import numpy
import pytest

from pipelines.retraining.gate import Pair, decide


def pairs(champion, candidate, benchmark="b", clean=None, undecided=(0.0, 0.0)):
    """One pair for each problem; `undecided` are the shares of champion and candidate."""
    clean = [True] * len(champion) if clean is None else clean
    rows = zip(champion, candidate, clean, strict=True)
    return [Pair(benchmark, first, second, *undecided, is_clean) for first, second, is_clean in rows]


def test_a_gain_worked_by_hand():
    """40 problems, of which 30 gain a half and 10 stay: the mean gain is 0.375.

    Resampled means have standard deviation sqrt(0.046875 / 40) = 0.0342, so the interval is about 0.375 +- 0.067.
    """
    found = decide(pairs([0.25] * 40, [0.75] * 30 + [0.25] * 10))
    assert found.is_promoted and found.reasons == () and found.problems == 40
    assert found.gain.estimate == pytest.approx(0.375)
    assert found.gain.low == pytest.approx(0.375 - 0.067, abs=0.01)
    assert found.gain.high == pytest.approx(0.375 + 0.067, abs=0.01)
    assert found.clean_gain == pytest.approx(0.375)


def test_a_gain_inside_the_noise_is_refused():
    """Of 40 problems 11 are won and 9 lost: +0.05, with standard deviation sqrt(0.5 / 40) = 0.11."""
    found = decide(pairs([0.0] * 11 + [1.0] * 9 + [0.5] * 20, [1.0] * 11 + [0.0] * 9 + [0.5] * 20))
    assert not found.is_promoted and found.gain.estimate == pytest.approx(0.05)
    assert found.reasons == ("inside the noise: +5.0 points (-17.5 to 27.5)",)


def test_equal_policies_are_refused():
    found = decide(pairs([0.0, 0.5, 1.0] * 30, [0.0, 0.5, 1.0] * 30))
    assert found.gain.estimate == 0 and found.gain.low < 0 < found.gain.high
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
    assert found.gain.low > 0
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
    assert found.gain.low > 0 and found.by_benchmark["b"].high < 0
    assert [reason.split(":")[0] for reason in found.reasons] == ["worse on b"]


def test_all_reasons_are_told():
    found = decide(pairs([0.5] * 60, [0.3] * 30 + [0.4] * 30, undecided=(0.0, 0.1)))
    assert len(found.reasons) == 4, found.reasons


def test_no_common_problem():
    assert decide([]).reasons == ("no problem was measured with both policies",)


def test_equal_policies_pass_by_chance_once_in_forty_times():
    """60 problems, 8 responses each, both policies equally good: rule 1 alone passes at most 2.5% in the long run."""
    random = numpy.random.default_rng(0)
    passed = 0
    for _ in range(60):
        rates = random.random(60)
        passed += decide(pairs(random.binomial(8, rates) / 8, random.binomial(8, rates) / 8)).is_promoted
    assert passed <= 5
