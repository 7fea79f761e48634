"""Advantages of groups and of tokens: by hand, against loops and reference code, and what must not change them."""

import itertools
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


def slow_group_normalized(rewards, group_ids, divide_by_std=True):
    advantages = np.empty(len(rewards))
    for i, group in enumerate(group_ids):
        peers = [r for r, g in zip(rewards, group_ids, strict=True) if g == group]
        mean = np.mean(peers) if len(peers) > 1 else 0.0
        std = np.std(peers, ddof=1) if len(peers) > 1 else 1.0
        advantages[i] = (rewards[i] - mean) / (std + 1e-6 if divide_by_std else 1.0)
    return advantages


def slow_leave_one_out(rewards, group_ids):
    advantages = np.empty(len(rewards))
    for i, group in enumerate(group_ids):
        others = [rewards[j] for j in range(len(rewards)) if group_ids[j] == group and j != i]
        advantages[i] = rewards[i] - (np.mean(others) if others else 0.0)
    return advantages


def slow_length_weighted(rewards, lengths, group_ids):
    advantages = np.empty(len(rewards))
    for i, group in enumerate(group_ids):
        members = [j for j in range(len(rewards)) if group_ids[j] == group]
        total = sum(lengths[j] for j in members)
        baseline = sum(lengths[j] * rewards[j] for j in members) / total if len(members) > 1 else 0.0
        advantages[i] = rewards[i] - baseline
    return advantages


ESTIMATORS = {
    "normalized": group_normalized,
    "centred": lambda rewards, group_ids: group_normalized(rewards, group_ids, divide_by_std=False),
    "leave_one_out": leave_one_out,
    "length_weighted": lambda rewards, group_ids: length_weighted(
        rewards, torch.arange(1, len(rewards) + 1), group_ids
    ),
}


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randn(23, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, 50, (23,), generator=generator)
    group_ids = torch.randint(-2, 4, (23,), generator=generator) * 7  # neither contiguous nor sorted nor positive
    group_ids[5] = 1000  # a group of one
    return rewards, lengths, group_ids


def test_by_hand():
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, -1.0])
    group_ids = torch.tensor([4, 4, 4, 9, 9])
    # Group 4: mean 1/3, deviations (2/3, -1/3, -1/3), sum of squares 6/9, sample std sqrt(1/3) = 0.577350.
    # 0.666667 / 0.577351 = 1.154699; -0.333333 / 0.577351 = -0.577349. Group 9: mean 0, std sqrt(2) = 1.414214.
    expected = torch.tensor([1.154699, -0.577349, -0.577349, 0.707106, -0.707106])
    torch.testing.assert_close(group_normalized(rewards, group_ids), expected, atol=1e-6, rtol=0)
    centred = group_normalized(rewards, group_ids, divide_by_std=False)
    torch.testing.assert_close(centred, torch.tensor([2 / 3, -1 / 3, -1 / 3, 1.0, -1.0]))
    # Others of group 4: mean of (0, 0) = 0, then mean of (1, 0) = 0.5 twice.
    torch.testing.assert_close(leave_one_out(rewards, group_ids), torch.tensor([1.0, -0.5, -0.5, 2.0, -2.0]))
    # Group 4: 10 * 1 / (10 + 20 + 10) = 0.25. Group 9: (30 - 10) / 40 = 0.5.
    weighted = length_weighted(rewards, torch.tensor([10, 20, 10, 30, 10]), group_ids)
    torch.testing.assert_close(weighted, torch.tensor([0.75, -0.25, -0.25, 0.5, -1.5]))


def test_against_loops(batch):
    rewards, lengths, group_ids = batch
    values, sizes, groups = rewards.numpy(), lengths.numpy(), group_ids.numpy()
    for divide in (True, False):
        ours = group_normalized(rewards, group_ids, divide)
        np.testing.assert_allclose(ours, slow_group_normalized(values, groups, divide), atol=1e-12)
    np.testing.assert_allclose(leave_one_out(rewards, group_ids), slow_leave_one_out(values, groups), atol=1e-12)
    ours = length_weighted(rewards, lengths, group_ids)
    np.testing.assert_allclose(ours, slow_length_weighted(values, sizes, groups), atol=1e-12)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_group_without_signal_has_no_advantage(name):
    # 0.1 and 0.7 have no exact float: a mean of them is off by a rounding error, which 1e-6 must not blow up.
    for value in (0.0, 1.0, 0.1, 0.35, 0.7, -1e6):
        rewards = torch.full((7,), value)
        advantages = ESTIMATORS[name](rewards, torch.zeros(7, dtype=torch.long))
        assert (advantages == 0).all()


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


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_constant_added_to_the_rewards_changes_nothing(name, batch):
    rewards, _, group_ids = batch
    inside = group_ids != 1000
    shifted = ESTIMATORS[name](rewards + 3.0, group_ids)
    torch.testing.assert_close(shifted[inside], ESTIMATORS[name](rewards, group_ids)[inside])


def test_equal_lengths_give_the_plain_mean(batch):
    rewards, _, group_ids = batch
    centred = group_normalized(rewards, group_ids, divide_by_std=False)
    for length in (17, 0):
        weighted = length_weighted(rewards, torch.full((len(rewards),), length), group_ids)
        torch.testing.assert_close(weighted, centred)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_group_of_one_keeps_its_reward(name):
    advantages = ESTIMATORS[name](torch.tensor([0.5, 2.0, 1.0]), torch.tensor([0, 1, 0]))
    assert advantages[1].item() == pytest.approx(2.0, abs=1e-5)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_integer_rewards_and_an_empty_batch(name):
    advantages = ESTIMATORS[name](torch.tensor([1, 0]), torch.tensor([3, 3]))
    assert advantages.dtype == torch.float32 and advantages[0] > 0 > advantages[1]
    assert ESTIMATORS[name](torch.zeros(0), torch.zeros(0, dtype=torch.long)).shape == (0,)


def slow_baseline(returns, mask, proxy, group_ids, weights, lone_tail):
    baseline = np.zeros_like(returns)
    size, tokens = returns.shape
    own = [[t for t in range(tokens) if mask[i, t]] for i in range(size)]
    for i in range(size):
        for k in range(len(own[i])):
            alive = [j for j in range(size) if group_ids[j] == group_ids[i] and k < len(own[j])]
            if len(alive) == 1:
                baseline[i, own[i][k]] = returns[i, own[i][k]] if lone_tail == "zero" else 0.0
                continue
            above, below = 0.0, 0.0
            for j in alive:
                energy = sum(proxy[j, t] * weights[j, t] ** 2 for t in own[j][: k + 1])
                above += energy * returns[j, own[j][k]]
                below += energy
            baseline[i, own[i][k]] = above / (below + 1e-8)
    return baseline


@pytest.fixture
def responses():
    rng = np.random.default_rng(0)
    lengths = [6, 4, 5, 2, 6, 3, 0]
    mask = np.arange(6)[None, :] < np.array(lengths)[:, None]
    mask[0, 2] = False  # tool output in the middle of a response
    group_ids = np.array([3, 3, 3, 8, 8, 5, 3])
    return rng.normal(size=(7, 6)), mask, rng.random((7, 6)), group_ids, rng.random((7, 6)) * 2


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


@pytest.mark.parametrize("lone_tail", ["zero", "return"])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_the_optimal_baseline_against_loops(lone_tail, is_weighted, responses):
    returns, mask, proxy, group_ids, weights = responses
    ours = optimal_token_baseline(
        torch.tensor(returns),
        torch.tensor(mask),
        torch.tensor(proxy),
        torch.tensor(group_ids),
        torch.tensor(weights) if is_weighted else None,
        lone_tail,
    )
    used = weights if is_weighted else np.ones_like(weights)
    np.testing.assert_allclose(ours, slow_baseline(returns, mask, proxy, group_ids, used, lone_tail), atol=1e-12)


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
    returns, mask, proxy, group_ids, _ = (torch.tensor(array) for array in responses)
    baseline = optimal_token_baseline(returns, mask, proxy, group_ids)
    dirty = [torch.where(mask, tensor, math.nan) for tensor in (returns, proxy)]
    torch.testing.assert_close(optimal_token_baseline(dirty[0], mask, dirty[1], group_ids), baseline)
    order = torch.tensor([4, 2, 6, 0, 5, 3, 1])
    permuted = optimal_token_baseline(returns[order], mask[order], proxy[order], group_ids[order])
    torch.testing.assert_close(permuted, baseline[order])


def test_a_constant_added_to_the_returns_moves_the_baseline_with_it(responses):
    returns, mask, proxy, group_ids, _ = (torch.tensor(array) for array in responses)
    baseline = optimal_token_baseline(returns, mask, proxy, group_ids)
    shifted = optimal_token_baseline(returns + 5.0, mask, proxy, group_ids)
    torch.testing.assert_close(shifted[mask], baseline[mask] + 5.0, atol=1e-5, rtol=0)
    scaled = optimal_token_baseline(returns, mask, 4.0 * proxy, group_ids)
    torch.testing.assert_close(scaled, baseline, atol=1e-6, rtol=1e-6)


def test_a_group_without_signal_has_no_optimal_advantage():
    returns = torch.full((4, 5), 0.7)
    proxy = torch.rand(4, 5, generator=torch.Generator().manual_seed(0)) + 0.1
    mask = torch.arange(5)[None] < torch.tensor([5, 4, 4, 2])[:, None]
    baseline = optimal_token_baseline(returns, mask, proxy, torch.zeros(4, dtype=torch.long))
    torch.testing.assert_close((returns - baseline)[mask], torch.zeros(15), atol=1e-6, rtol=0)


def test_it_minimises_the_weighted_square_of_the_advantage(responses):
    returns, _, proxy, _, _ = (torch.tensor(array) for array in responses)
    mask, group_ids = torch.ones(7, 6), torch.zeros(7, dtype=torch.long)
    baseline = optimal_token_baseline(returns, mask, proxy, group_ids)
    energy = proxy.cumsum(-1)

    def power(candidate):
        return (energy * (returns - candidate).square()).sum(0)

    for step in (-0.01, 0.01):
        assert (power(baseline + step) > power(baseline)).all()


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
    every, squares = logprobs.reshape(12, 11), logprobs.exp().square().sum(-1, keepdim=True)
    expected = (every.exp() * logit_gradient_proxy(every, squares.reshape(12, 1).expand(12, 11))).sum(-1)
    torch.testing.assert_close(expected, 1 - squares.reshape(12))  # E_a[s2] = 1 - sum p^2


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


def test_mean_normalisation_is_the_gradient_of_the_log_of_the_mean_reward():
    """For a policy over three answers: the mean of A times the score is the derivative of log E[R]."""
    logits = torch.tensor([0.3, -0.4, 0.1], dtype=torch.float64, requires_grad=True)
    rewards = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    p = logits.softmax(-1)
    (exact,) = torch.autograd.grad((p * rewards).sum().log(), logits)
    # Each answer as often as its probability says, of 10,000: the group's mean reward is then E[R].
    counts = (p.detach() * 10_000).round().long()
    answers = torch.arange(3).repeat_interleave(counts)
    advantages = mean_normalized(rewards[answers], torch.zeros(len(answers), dtype=torch.long))
    (found,) = torch.autograd.grad((advantages * logits.log_softmax(-1)[answers]).mean(), logits)
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-3)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_pass_at_k_against_all_subsets(k):
    """The advantage of a response is the mean, over the subsets with it, of (reward - mean) / deviation."""
    is_correct = [True, False, False, True, False]
    subsets = list(itertools.combinations(range(5), k))
    reward = {one: float(any(is_correct[place] for place in one)) for one in subsets}
    mean = sum(reward.values()) / len(reward)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in reward.values()) / len(reward))
    expected = [
        sum(reward[one] - mean for one in subsets if place in one)
        / sum(place in one for one in subsets)
        / (deviation or 1)
        for place in range(5)
    ]
    found = pass_at_k(torch.tensor(is_correct), torch.zeros(5, dtype=torch.long), k)
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


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


@pytest.mark.parametrize("seed", range(3))
def test_the_expected_gradient_of_distilled_is_that_of_the_reverse_kl(seed):
    """Over all tokens of a small vocabulary, weighted by the policy's probabilities: the KL as autograd sees it."""
    generator = torch.Generator().manual_seed(seed)
    logits, teacher = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    logprobs, of_teacher = logits.log_softmax(-1), teacher.log_softmax(-1)
    kl = (logprobs.exp() * (logprobs - of_teacher)).sum()
    (exact,) = torch.autograd.grad(kl, logits, retain_graph=True)
    # A row for each token, as if it had been sampled.
    ones = torch.ones(5, 1, dtype=torch.float64)
    advantages = distilled(logprobs.detach()[:, None], of_teacher[:, None], ones, 1.0)[:, 0]
    loss = -(logprobs.detach().exp() * advantages * logprobs).sum()
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], exact)
    assert float((logprobs.exp() * advantages).sum()) == pytest.approx(-float(kl))


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
