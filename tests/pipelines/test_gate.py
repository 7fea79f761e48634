"""The gate as a table of cases, and how often it is wrong by chance."""

import numpy
import pytest

from pipelines.retraining.gate import Pair, decide
from stages.algorithms.estimators import paired_bootstrap


def pairs(champion, candidate, benchmark="b", is_clean=True, undecided=(0.0, 0.0)):
    """Returns one pair for each problem; `undecided` are the shares of champion and candidate."""
    rows = zip(champion, candidate, strict=True)
    return [Pair(benchmark, first, second, *undecided, is_clean) for first, second in rows]


def all_gain(problems, **more):
    return pairs([0.0] * problems, [1.0] * problems, **more)


LEAKED = all_gain(90, is_clean=False)


@pytest.mark.parametrize(
    ("measured", "reasons"),
    [
        # Of 40 problems 11 are won and 9 lost: +0.05, with standard deviation sqrt(0.5 / 40) = 0.11.
        (
            pairs([0.0] * 11 + [1.0] * 9 + [0.5] * 20, [1.0] * 11 + [0.0] * 9 + [0.5] * 20),
            ["inside the noise: +5.0 points (-18.0 to 27.5)"],
        ),
        (pairs([0.0, 0.5, 1.0] * 30, [0.0, 0.5, 1.0] * 30), ["inside the noise: +0.0 points"]),
        (all_gain(3), ["inside the noise"]),  # a few problems prove nothing
        (all_gain(12), []),
        (
            pairs([0.75] * 30 + [0.25] * 10, [0.25] * 40),
            ["worse than the champion: -37.5 points", "worse on", "the cl"],
        ),
        (LEAKED + pairs([0.5] * 10, [0.4] * 10), ["the clean subset falls by 10.0 points"]),
        (LEAKED + pairs([0.5] * 10, [0.5] * 10), []),  # an equal clean subset does not fall
        (LEAKED, ["one of the policies was trained on every problem, so nothing clean can be compared"]),
        (all_gain(50, undecided=(0.01, 0.02)), ["undecided verdicts rise from 1.00% to 2.00%"]),
        (all_gain(50, undecided=(0.02, 0.02)), []),
        (all_gain(50, undecided=(0.02, 0.01)), []),
        (all_gain(90, benchmark="a") + pairs([1.0] * 9, [0.0] * 9, "b"), ["worse on b:"]),
        (
            pairs([0.5] * 60, [0.3] * 30 + [0.4] * 30, undecided=(0.0, 0.1)),
            ["worse than the champion", "worse on b", "the clean subset falls", "undecided verdicts rise"],
        ),
        ([], ["no problem was measured with both policies"]),
    ],
)
def test_decisions(measured, reasons):
    found = decide(measured)
    assert found.is_promoted == (not reasons) and len(found.reasons) == len(reasons)
    assert all(reason.startswith(start) for reason, start in zip(found.reasons, reasons, strict=True)), found.reasons


def test_a_gain_worked_by_hand():
    """40 problems, of which 30 gain a half and 10 stay: the mean gain is 0.375.

    The mean of 40 has standard deviation sqrt(0.046875 / 40) = 0.0342, so the interval is about 0.375 +- 0.07. The
    problems that the gate adds make it a little wider and nearer to 0.
    """
    found = decide(pairs([0.25] * 40, [0.75] * 30 + [0.25] * 10))
    assert found.is_promoted and found.problems == 40
    assert found.gain.interval == pytest.approx((0.375, 0.27, 0.44), abs=0.02)
    assert found.clean_gain == pytest.approx(0.375)


@pytest.mark.parametrize(
    ("champion", "candidate", "reason"),
    [
        # 40 problems, one response each, five won and none lost. If two policies are equally good and five problems
        # differ, all five differ in the same direction once in 16 times. A bootstrap sample has none of the five with
        # chance (35/40)^40 = 0.5% only, so its interval excludes 0.
        ([0.0] * 40, [1.0] * 5 + [0.0] * 35, "inside the noise: +12.5 points (-0.9 to 24.4)"),
        # 50 problems, 8 responses each: on four of them the candidate is correct once, the champion never.
        ([0.0] * 50, [0.125] * 4 + [0.0] * 46, "inside the noise: +1.0 points"),
    ],
)
def test_noise_that_a_percentile_bootstrap_would_promote_is_refused(champion, candidate, reason):
    assert paired_bootstrap(champion, candidate, draws=2000).low > 0
    assert decide(pairs(champion, candidate)).reasons[0].startswith(reason)
    assert decide(pairs(champion * 10, candidate * 10)).is_promoted, "on ten times the problems it is no noise"


@pytest.mark.parametrize(("problems", "rate", "responses"), [(40, 0.06, 1), (60, 0.5, 8), (50, 0.02, 8)])
def test_equal_policies_pass_by_chance_at_most_once_in_forty_times(problems, rate, responses):
    """Both policies are equally good; with 2,000 draws, 2.5% have a standard error of 0.35%."""
    random = numpy.random.default_rng(0)
    passed = 0
    for _ in range(2000):
        rates = random.beta(rate, 1 - rate, problems) if responses > 1 else numpy.full(problems, rate)
        champion, candidate = (random.binomial(responses, rates) / responses for _ in range(2))
        passed += decide(pairs(champion, candidate)).is_promoted
    assert passed <= 65


def test_a_real_gain_is_promoted():
    """100 problems, 8 responses each, accuracy from 50% to 60%: promoted in 9 of 10 draws."""
    random = numpy.random.default_rng(0)
    passed = 0
    for _ in range(100):
        rates = random.beta(1, 1, 100)
        better = rates + 0.2 * (1 - rates)
        champion, candidate = (random.binomial(8, own) / 8 for own in (rates, better))
        passed += decide(pairs(champion, candidate)).is_promoted
    assert passed >= 90
