"""Advantages of groups and of tokens: by hand, against reference code, and what must not change them."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from stages.algorithms.advantages import (
    batch_normalized,
    distilled,
    group_normalized,
    leave_one_out,
    length_weighted,
    logit_gradient_proxy,
    mean_normalized,
    optimal_token_baseline,
    pass_at_k,
)

ESTIMATORS = {
    "normalized": group_normalized,
    "centred": lambda rewards, group_ids: group_normalized(rewards, group_ids, divide_by_std=False),
    "leave_one_out": leave_one_out,
    "length_weighted": lambda rewards, group_ids: length_weighted(
        rewards, torch.arange(1, len(rewards) + 1), group_ids
    ),
}


def test_by_hand():
    """Ids are neither contiguous nor sorted nor positive."""
    rewards = torch.tensor([1.0, 1.0, 0.0, -1.0, 0.0])
    group_ids = torch.tensor([4, -9, 4, -9, 4])
    # Group 4: mean 1/3, deviations (2/3, -1/3, -1/3), sum of squares 6/9, sample std sqrt(1/3) = 0.577350.
    # 0.666667 / 0.577351 = 1.154699; -0.333333 / 0.577351 = -0.577349. Group -9: mean 0, std sqrt(2) = 1.414214.
    expected = torch.tensor([1.154699, 0.707106, -0.577349, -0.707106, -0.577349])
    torch.testing.assert_close(group_normalized(rewards, group_ids), expected, atol=1e-6, rtol=0)
    centred = group_normalized(rewards, group_ids, divide_by_std=False)
    torch.testing.assert_close(centred, torch.tensor([2 / 3, 1.0, -1 / 3, -1.0, -1 / 3]))
    # Others of group 4: mean of (0, 0) = 0, then mean of (1, 0) = 0.5 twice.
    torch.testing.assert_close(leave_one_out(rewards, group_ids), torch.tensor([1.0, 2.0, -0.5, -2.0, -0.5]))
    # Group 4: 10 * 1 / (10 + 20 + 10) = 0.25. Group -9: (30 - 10) / 40 = 0.5.
    weighted = length_weighted(rewards, torch.tensor([10, 30, 20, 10, 10]), group_ids)
    torch.testing.assert_close(weighted, torch.tensor([0.75, 0.5, -0.25, -1.5, -0.25]))
    # Without any token, the plain mean.
    torch.testing.assert_close(length_weighted(rewards, torch.zeros(5, dtype=torch.long), group_ids), centred)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_groups_without_signal_or_of_one_and_integer_rewards_and_an_empty_batch(name):
    # 0.1 and 0.7 have no exact float: a mean of them is off by a rounding error, which 1e-6 must not blow up.
    for value in (0.0, 1.0, 0.1, 0.35, 0.7, -1e6):
        for dtype in (torch.float32, torch.float64):
            advantages = ESTIMATORS[name](torch.full((7,), value, dtype=dtype), torch.zeros(7, dtype=torch.long))
            assert (advantages == 0).all()
    alone = ESTIMATORS[name](torch.tensor([0.5, 2.0, 1.0]), torch.tensor([0, 1, 0]))[1]
    assert alone.item() == pytest.approx(2.0, abs=1e-5)
    advantages = ESTIMATORS[name](torch.tensor([1, 0]), torch.tensor([3, 3]))
    assert advantages.dtype == torch.float32 and advantages[0] > 0 > advantages[1]
    assert ESTIMATORS[name](torch.zeros(0), torch.zeros(0, dtype=torch.long)).shape == (0,)


@pytest.mark.parametrize(("one", "count", "other"), [(0.35, 7, 0.95), (0.3, 7, 0.1), (-0.7, 15, 0.2)])
def test_rewards_that_float32_cannot_hold_give_no_spike(one, count, other):
    """Of n rewards one differs by d: its deviation is d (n - 1) / n, and the sample std is d / sqrt(n)."""
    rewards, n = torch.tensor([one] * count + [other]), count + 1
    for name, estimator in ESTIMATORS.items():
        advantages = estimator(rewards, torch.zeros(n, dtype=torch.long)).abs()
        assert advantages.max() == advantages[-1] <= (4 if name == "normalized" else abs(other - one) + 1e-6)
    normalized = group_normalized(rewards, torch.zeros(n, dtype=torch.long)).abs()
    assert normalized[-1].item() == pytest.approx((n - 1) / n**0.5, rel=1e-4)
    assert normalized[:-1].tolist() == pytest.approx([n**-0.5] * count, rel=1e-4)


@pytest.fixture
def responses():
    rng = np.random.default_rng(0)
    lengths = [6, 4, 5, 2, 6, 3, 0]
    mask = np.arange(6)[None, :] < np.array(lengths)[:, None]
    mask[0, 2] = False  # tool output in the middle of a response
    group_ids = np.array([3, 3, 3, 8, 8, 5, 3])
    return [torch.tensor(one) for one in (rng.normal(size=(7, 6)), mask, rng.random((7, 6)), group_ids)]


def test_the_optimal_baseline_by_hand():
    returns = torch.tensor([[1.0, 1.0, 1.0], [-1.0, -1.0, 0.0]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    proxy = torch.tensor([[0.25, 0.5, 0.5], [0.75, 0.5, 9.0]])
    group_ids = torch.tensor([0, 0])
    # t=0: W = (0.25, 0.75): (0.25 - 0.75) / 1 = -0.5. t=1: W = (0.75, 1.25): (0.75 - 1.25) / 2 = -0.25.
    # t=2: only the first is alive: its return 1 under "zero" (advantage 0), 0 under "return" (advantage 1).
    zero = optimal_token_baseline(returns, mask, proxy, group_ids)
    torch.testing.assert_close(zero, torch.tensor([[-0.5, -0.25, 1.0], [-0.5, -0.25, 0.0]]))
    full = optimal_token_baseline(returns, mask, proxy, group_ids, lone_tail="return")
    torch.testing.assert_close(full, torch.tensor([[-0.5, -0.25, 0.0], [-0.5, -0.25, 0.0]]))
    # Weight 2 on the first response quadruples its energy at t=0: (1 - 0.75) / 1.75.
    weights = torch.tensor([[2.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    weighted = optimal_token_baseline(returns, mask, proxy, group_ids, weights)
    assert weighted[0, 0].item() == pytest.approx(0.25 / 1.75)


def test_a_response_is_lone_by_its_own_tokens_and_not_by_its_place():
    """The first response has three tokens of its own around a tool's two; the second has two, then ends."""
    returns, proxy = torch.tensor([[1.0] * 5, [-1.0] * 5]), torch.ones(2, 5)
    mask = torch.tensor([[1, 0, 0, 1, 1], [1, 1, 0, 0, 0]])
    # Tokens 1 and 2: both alive, equal energy, so the mean of 1 and -1. Token 3 is the first one's alone.
    zero = optimal_token_baseline(returns, mask, proxy, torch.tensor([0, 0]))
    torch.testing.assert_close(zero, torch.tensor([[0.0, 0, 0, 0, 1], [0.0, 0, 0, 0, 0]]))
    full = optimal_token_baseline(returns, mask, proxy, torch.tensor([0, 0]), lone_tail="return")
    torch.testing.assert_close(full, torch.zeros(2, 5))


def test_padding_and_order_change_nothing(responses):
    returns, mask, proxy, group_ids = responses
    baseline = optimal_token_baseline(returns, mask, proxy, group_ids)
    dirty = [torch.where(mask, tensor, math.nan) for tensor in (returns, proxy)]
    torch.testing.assert_close(optimal_token_baseline(dirty[0], mask, dirty[1], group_ids), baseline)
    order = torch.tensor([4, 2, 6, 0, 5, 3, 1])
    permuted = optimal_token_baseline(returns[order], mask[order], proxy[order], group_ids[order])
    torch.testing.assert_close(permuted, baseline[order])


def test_group_of_one_and_a_group_that_is_sure_of_itself():
    returns, mask, one = torch.tensor([[2.0, 1.0]]), torch.ones(1, 2), torch.tensor([0])
    assert torch.equal(optimal_token_baseline(returns, mask, torch.ones(1, 2), one), returns)
    assert (optimal_token_baseline(returns, mask, torch.ones(1, 2), one, lone_tail="return") == 0).all()
    pair = optimal_token_baseline(returns.repeat(2, 1), torch.ones(2, 2), torch.zeros(2, 2), torch.tensor([0, 0]))
    assert (pair == 0).all()


def test_proxy_is_the_squared_norm_of_the_logit_gradient():
    # Two tokens with p = 0.75 and 0.25, the first sampled: 1 - 1.5 + (0.5625 + 0.0625) = 0.125 = 0.25^2 + 0.25^2.
    by_hand = logit_gradient_proxy(torch.tensor([[math.log(0.75)]]), torch.tensor([[0.625]]))
    assert by_hand.item() == pytest.approx(0.125)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, 11, generator=generator, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(11, (3, 4), generator=generator)
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(-1, ids[..., None])[..., 0]
    (gradient,) = torch.autograd.grad(chosen.sum(), logits, retain_graph=True)
    proxy = logit_gradient_proxy(chosen, logprobs.exp().square().sum(-1))
    torch.testing.assert_close(proxy, gradient.square().sum(-1))
    assert not proxy.requires_grad


def test_proxy_of_a_certain_token_is_not_negative():
    assert logit_gradient_proxy(torch.zeros(1, 1), torch.tensor([[1 - 1e-7]])).item() == 0.0


def test_batch_and_mean_normalisation_by_hand():
    rewards, ids = torch.tensor([1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    centred = torch.tensor([0.75, -0.25, -0.25, -0.25, 0.5, 0.5, -0.5, -0.5])
    # Three of eight are 1: the sample variance is 8/7 * 3/8 * 5/8.
    deviation = math.sqrt(8 / 7 * 15 / 64)
    torch.testing.assert_close(batch_normalized(rewards, ids, "rewards"), centred / (deviation + 1e-6))
    # Of the advantages: (0.75^2 + 3 * 0.25^2 + 4 * 0.5^2) / 7 = 1.75 / 7 = 1 / 4, whose root is 1 / 2.
    torch.testing.assert_close(batch_normalized(rewards, ids, "advantages"), centred / (0.5 + 1e-6))
    torch.testing.assert_close(mean_normalized(rewards, ids), torch.tensor([3.0, -1, -1, -1, 1, 1, -1, -1]))
    assert not mean_normalized(torch.zeros(4), torch.zeros(4, dtype=torch.long)).any()
    for kind in ("rewards", "advantages"):
        assert batch_normalized(torch.tensor([2.0]), torch.tensor([0]), kind).tolist() == [2.0]


def test_pass_at_k_of_small_groups_and_of_groups_without_signal():
    is_correct, ids = torch.tensor([True, True, False, False, True, False]), torch.tensor([0, 0, 1, 1, 2, 2])
    found = pass_at_k(is_correct, ids, 4)
    assert not found.any(), "every group as a whole either passes or fails"
    assert pass_at_k(is_correct, ids, 1).tolist() == pytest.approx([0, 0, 0, 0, 1, -1])


def test_distilled_by_hand():
    """log(1/2) - log(1/4) = log 2 more than the teacher gives costs it; the same the other way round earns it."""
    half, quarter, nan = math.log(0.5), math.log(0.25), math.nan
    policy, teacher = torch.tensor([[half, quarter, nan]]), torch.tensor([[quarter, half, nan]])
    expected = [[-2 * math.log(2), 2 * math.log(2), 0.0]]
    found = distilled(policy, teacher, torch.tensor([[1.0, 1.0, 0.0]]), 2.0)
    assert found.tolist() == [pytest.approx(expected[0])]
    assert not distilled(policy, teacher, torch.tensor([[0.0, 0.0, 0.0]]), 2.0).any()


# Four groups of four: one with a share of a reward, two without signal, one with a single failure.
REWARDS = torch.tensor([1, 0, 0, 0.25, *[0.5] * 4, *[0] * 4, 1, 0, 1, 1], dtype=torch.float64)
LENGTHS = torch.tensor([3, 1, 2, 4, 2, 2, 1, 3, 1, 2, 3, 4, 4, 1, 3, 2])
FOURS = torch.arange(4).repeat_interleave(4)


@pytest.mark.parametrize(
    ("estimator", "first", "last"),
    [
        # tajwarfahim/maxrl (the authors) at c0698ebb, `compute_maxrl_outcome_advantage`. It adds 1e-6 to the mean.
        pytest.param(mean_normalized, [2.199993, -0.999997, -0.999997, -0.199999], [1 / 3, -0.999999], id="maxrl"),
        # alibaba/ROLL (the authors of Lite PPO) at 8eb27cc2, `reward_norm`: mean of a group, deviation of a batch.
        pytest.param(
            partial(batch_normalized, deviation_of="rewards"),
            [1.64466, -0.747573, -0.747573, -0.149515],
            [0.598058, -1.794174],
            id="lite_ppo",
        ),
        # verl-project/verl at 1dda039b, verl/trainer/ppo/core_algos.py: `compute_grpo_outcome_advantage`, ...
        pytest.param(group_normalized, [1.452741, -0.660337, -0.660337, -0.132067], [0.499999, -1.499997], id="grpo"),
        pytest.param(ESTIMATORS["centred"], [0.6875, -0.3125, -0.3125, -0.0625], [0.25, -0.75], id="dr_grpo"),
        # ... `compute_rloo_outcome_advantage` and `compute_opo_outcome_advantage`.
        pytest.param(leave_one_out, [0.916667, -0.416667, -0.416667, -0.083333], [1 / 3, -1], id="rloo"),
        pytest.param(
            lambda *two: length_weighted(two[0], LENGTHS, two[1]), [0.6, -0.4, -0.4, -0.15], [0.1, -0.9], id="opo"
        ),
    ],
)
def test_advantages_are_those_of_reference_code(estimator, first, last):
    found = estimator(REWARDS, FOURS).tolist()
    assert found[:4] == pytest.approx(first, abs=1e-5)
    assert found[4:12] == [0] * 8
    assert found[12:] == pytest.approx([last[0], last[1], last[0], last[0]], abs=1e-5)


@pytest.mark.parametrize(
    ("k", "few", "many"),
    [
        (1, (1.732047, -0.577349), (0.577349, -1.732047)),
        (2, (1.07417, -0.358057), (0.192449, -0.577347)),
        (4, (0.522232, -0.174077), (0, 0)),
        (8, (0, 0), (0, 0)),
    ],
)
def test_pass_at_k_is_the_authors_code(k, few, many):
    """RUCAIBox/Passk_Training at c3ba575e, code/passk_adv.py, `compute_advantage`. It adds 1e-6 to the deviation.

    Eight responses with 2 correct ones, then eight with 6: of those, four cannot all be wrong.
    """
    is_correct = torch.tensor([1, 0, 0, 1, 0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 0, 1]).bool()
    found = pass_at_k(is_correct, torch.arange(2).repeat_interleave(8), k).tolist()
    expected = [pair[0 if right else 1] for pair, right in zip([few] * 8 + [many] * 8, is_correct, strict=True)]
    assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (None, [[1 / 3, 0.408654, 0.302326, 0], [-1 / 6, -0.091346, -0.197674, 0.5], [-1.666667, -0.591346, 0, 0]]),
        (
            [[1, 0.5, 2, 1], [1, 1, 0.4, 1], [1.5, 1, 1, 1], [1] * 4],
            [[0.389262, 0.553797, 0.267003, 0], [-0.110738, 0.053797, -0.232997, 0.5], [-1.610738, -0.446203, 0, 0]],
        ),
    ],
)
def test_the_optimal_baseline_is_that_of_verl(weights, expected):
    """verl at 1dda039b, `compute_optimal_token_baseline_advantage`. The last response is alone in its group."""
    logprobs = torch.tensor(
        [[0.6, 0.3, 0.9, 0.2], [0.5, 0.8, 0.1, 0.7], [0.9, 0.4, 0.6, 0.5], [0.25, 0.5, 0.5, 0.5]]
    ).log()
    squares = torch.tensor(
        [[0.5, 0.3, 0.82, 0.4], [0.4, 0.66, 0.3, 0.55], [0.82, 0.4, 0.5, 0.45], [0.4, 0.5, 0.5, 0.5]]
    )
    returns = torch.tensor([[1.0, 1, 1, 0], [0.5, 0.5, 0.5, 0.5], [-1, 0, 0, 0], [1, 1, 1, 1]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1]])
    weights = weights and torch.tensor(weights)
    proxy = logit_gradient_proxy(logprobs, squares)
    baseline = optimal_token_baseline(returns, mask, proxy, torch.tensor([0, 0, 0, 1]), weights, lone_tail="return")
    torch.testing.assert_close((returns - baseline) * mask, torch.tensor([*expected, [1] * 4]), atol=1e-5, rtol=0)
