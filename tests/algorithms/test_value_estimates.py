"""Generalised advantages, the clipped value loss and explained variance: by hand, against verl, and edges."""

import math

import pytest
import torch

from stages.algorithms.value_estimates import clipped_value_loss, explained_variance, generalised_advantages


def random_batch(seed=0):
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(5, 9, generator=generator), torch.randn(5, 9, generator=generator)
    mask = (torch.rand(5, 9, generator=generator) < 0.7).float()
    mask[3], mask[4, 0], mask[4, 1:] = 0.0, 1.0, 0.0
    return rewards, values, mask


def test_generalised_advantages_by_hand():
    """Rewards 0, 0, 1, values 0.5, 0.25, 0.75, discount 0.5, lambda 0.5.

    d = (0 + 0.125 - 0.5, 0 + 0.375 - 0.25, 1 - 0.75) = (-0.375, 0.125, 0.25);
    A_3 = 0.25, A_2 = 0.125 + 0.25 * 0.25 = 0.1875, A_1 = -0.375 + 0.25 * 0.1875 = -0.328125. Two tokens of a tool in
    between and padding have values and rewards of their own, and are no actions.
    """
    rewards, values = torch.tensor([[0.0, 9.0, 9.0, 0.0, 1.0, 9.0]]), torch.tensor([[0.5, 7.0, 7.0, 0.25, 0.75, 7.0]])
    found = generalised_advantages(rewards, values, torch.tensor([[1.0, 0, 0, 1, 1, 0]]), 0.5, 0.5)
    assert found.tolist() == [[-0.328125, 0.0, 0.0, 0.1875, 0.25, 0.0]]


def test_padding_may_hold_anything():
    rewards, values, mask = random_batch(2)
    broken = [torch.where(mask.bool(), part, float("nan")) for part in (rewards, values)]
    assert torch.equal(
        generalised_advantages(*broken, mask, 1.0, 0.9), generalised_advantages(rewards, values, mask, 1.0, 0.9)
    )


def test_value_loss_by_hand():
    """Target 1 and value before 0 with clip 0.2.

    V = 0.1: inside, 0.5 * 0.9^2. V = 0.7: clipped to 0.2, 0.8^2 > 0.3^2, no gradient. V = -3: clipped to -0.2,
    1.2^2 < 4^2, so it must still come back.
    """
    values = torch.tensor([[0.1, 0.7, -3.0, 5.0]], requires_grad=True)
    mask, before = torch.tensor([[1.0, 1.0, 1.0, 0.0]]), torch.zeros(1, 4)
    loss, is_clipped = clipped_value_loss(values, before, torch.ones(1, 4), mask, 0.2)
    assert loss.tolist()[0] == pytest.approx([0.405, 0.32, 8.0, 0.0])
    assert is_clipped.tolist() == [[False, True, False, False]]
    loss.sum().backward()
    assert values.grad.tolist()[0] == pytest.approx([-0.9, 0.0, -4.0, 0.0])
    loss, is_clipped = clipped_value_loss(values, before + 50, torch.ones(1, 4), mask, None)
    assert loss.tolist()[0] == pytest.approx([0.405, 0.045, 8.0, 0.0]) and not is_clipped.any()


def test_explained_variance():
    """Targets 0, 1, 2, 3 have variance 1.25; errors 0, 0, 0, 1 have 3/16."""
    targets, mask = torch.tensor([[0.0, 1.0], [2.0, 3.0]]), torch.ones(2, 2)
    assert explained_variance(targets, targets, mask) == 1.0
    assert explained_variance(torch.full((2, 2), 7.0), targets, mask) == pytest.approx(0.0)
    assert explained_variance(torch.tensor([[0.0, 1.0], [2.0, 2.0]]), targets, mask) == pytest.approx(1 - 0.1875 / 1.25)
    assert explained_variance(-targets, targets, mask) == pytest.approx(-3.0)
    # The tokens outside the mask do not count, and neither do equal targets or none.
    nan = math.nan
    cut = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    wide = torch.tensor([[0.0, 1.0, nan], [2.0, 3.0, nan]])
    assert explained_variance(wide, wide, cut) == 1.0
    assert explained_variance(targets, torch.ones(2, 2), mask) == 0.0 == explained_variance(targets, targets, 0 * mask)


# Three responses, of 5 and 3 tokens, and of 3 with a tool's token in between. The numbers of the next two tests are
# those of verl-project/verl at 1dda039b, verl/trainer/ppo/core_algos.py, in float64.
FLOAT64 = {"dtype": torch.float64}
VALUES = torch.tensor([[0.5, 0.2, 0.1, 0.7, 0.3], [-0.3, 0.4, 0.6, 9, 9], [0.1, 7, 0.8, 0.2, -0.4]], **FLOAT64)
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 1, 1, 0]])


@pytest.mark.parametrize(
    ("discount", "lam", "expected"),
    [
        (1.0, 1.0, [[1, 1, 1, 1, 0], [-0.5, -1, -1, 0, 0], [1, 0, 1, 0, 0]]),
        (
            0.9,
            0.95,
            [[0.669339, 0.772326, 0.898042, 1.0135, 0], [-0.18994, -0.828, -1, 0, 0], [0.898695, 0, 1.009, 0, 0]],
        ),
        (0.99, 0.0, [[0.198, 0.099, 0.693, 1.297, 0], [0.896, 0.594, -1, 0, 0], [0.792, 0, 1.198, 0, 0]]),
    ],
)
def test_targets_are_those_of_verl(discount, lam, expected):
    """`compute_gae_advantage_return`. Its targets: it whitens the advantages."""
    rewards = torch.tensor([[0, 0, 0, 1, 0], [0.5, 0, -1, 0, 0], [0, 9, 1, 0, 0]], **FLOAT64)
    targets = generalised_advantages(rewards, VALUES, MASK, discount, lam) + VALUES * MASK
    torch.testing.assert_close(targets, torch.tensor(expected, **FLOAT64), atol=1e-6, rtol=0)


def test_the_value_loss_is_that_of_verl():
    """`compute_value_loss`: mean over tokens, share of clipped ones, gradient."""
    values = torch.tensor([[0.6, 0.5, 0.1, 0, 0.3], [-0.6, 0.9, -0.5, 3, 3], [0.1, 3, 0.5, 0.9, 3]], **FLOAT64)
    targets = torch.tensor([[0.8, 1, 0.4, 0.3, 0], [-0.1, 0.5, 0.9, 0, 0], [-0.4, 0, 0.4, 0.5, 0]], **FLOAT64)
    loss, is_clipped = clipped_value_loss(values.requires_grad_(), VALUES, targets, MASK, 0.2)
    (gradient,) = torch.autograd.grad(loss.sum() / 11, values)
    assert loss.sum().item() / 11 == pytest.approx(0.1586364, abs=1e-7)
    assert is_clipped.sum().item() / 11 == pytest.approx(0.1818182, abs=1e-7)
    expected = [
        [-0.018182, 0, -0.027273, -0.027273, 0.027273],
        [-0.045455, 0.036364, -0.127273, 0, 0],
        [0.045455, 0, 0, 0.036364, 0],
    ]
    torch.testing.assert_close(gradient, torch.tensor(expected, **FLOAT64), atol=1e-6, rtol=0)
