import numpy as np
import pytest
import torch

from stages.algorithms.advantages import group_normalized, leave_one_out, length_weighted


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
    for value in (0.0, 1.0, 0.1, 0.7, -1e6):
        rewards = torch.full((7,), value)
        advantages = ESTIMATORS[name](rewards, torch.zeros(7, dtype=torch.long))
        assert (advantages == 0).all()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_constant_added_to_the_rewards_changes_nothing(name, batch):
    rewards, _, group_ids = batch
    inside = group_ids != 1000
    shifted = ESTIMATORS[name](rewards + 3.0, group_ids)
    torch.testing.assert_close(shifted[inside], ESTIMATORS[name](rewards, group_ids)[inside])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_scale(name, batch):
    rewards, _, group_ids = batch
    inside = group_ids != 1000
    scaled = ESTIMATORS[name](rewards * 3.0, group_ids)[inside]
    factor = 1.0 if name == "normalized" else 3.0
    torch.testing.assert_close(scaled, factor * ESTIMATORS[name](rewards, group_ids)[inside], atol=1e-5, rtol=1e-5)


def test_permutation_permutes(batch):
    rewards, lengths, group_ids = batch
    order = torch.randperm(len(rewards), generator=torch.Generator().manual_seed(1))
    for divide in (True, False):
        permuted = group_normalized(rewards[order], group_ids[order], divide)
        torch.testing.assert_close(permuted, group_normalized(rewards, group_ids, divide)[order])
    permuted = length_weighted(rewards[order], lengths[order], group_ids[order])
    torch.testing.assert_close(permuted, length_weighted(rewards, lengths, group_ids)[order])


def test_leave_one_out_is_the_centred_reward_stretched():
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.5])
    group_ids = torch.zeros(5, dtype=torch.long)
    centred = group_normalized(rewards, group_ids, divide_by_std=False)
    torch.testing.assert_close(leave_one_out(rewards, group_ids), 5 / 4 * centred)


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


def test_negative_length_is_refused():
    with pytest.raises(ValueError, match="-1"):
        length_weighted(torch.ones(2), torch.tensor([3, -1]), torch.tensor([0, 0]))
