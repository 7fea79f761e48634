"""Levers on entropy: against loops, by hand, and against the numbers of the reference implementations."""

import math
import random

import pytest
import torch

from stages.algorithms.entropy_levers import adapted_coefficient, covariances, random_between, top_fraction
from stages.algorithms.policy_losses import kl_cov

# Two responses, of 4 and of 2 tokens. The numbers below are those of verl's `compute_policy_loss_clip_cov` and
# `compute_policy_loss_kl_cov` for these inputs, in float64.
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
POLICY = torch.tensor([[-0.1, -2.0, -0.5, -3.0], [-1.0, -0.3, 0, 0]], dtype=torch.float64)
PROXIMAL = torch.tensor([[-0.2, -1.9, -0.6, -2.9], [-1.1, -0.25, 0, 0]], dtype=torch.float64)
ADVANTAGES = torch.tensor([[1.0, 1, 1, 1], [-1, -1, 0, 0]], dtype=torch.float64)


def test_covariances_and_both_choices_are_those_of_the_reference():
    found = covariances(POLICY, ADVANTAGES, MASK)
    expected = [0.7, -0.566667, 0.433333, -1.233333, -0.2, -1.133333]
    assert found[MASK.bool()].tolist() == pytest.approx(expected, abs=1e-6)
    assert found[1, 2:].tolist() == [0, 0]
    # Clip-Cov leaves out at random among those between its bounds: here there are two, and room for five.
    clipped = random_between(found, MASK, 0.2, 1.5, 0.9, seed=1)
    assert clipped.tolist() == [[True, False, True, False], [False] * 4]
    # KL-Cov: the largest 0.4 of six tokens, rounded down.
    assert torch.equal(top_fraction(found, MASK, 0.4), clipped)


def test_kl_cov_is_the_reference():
    policy = POLICY.clone().requires_grad_()
    held = torch.tensor([[True, False, True, False], [False] * 4])
    loss, shown = kl_cov(policy, PROXIMAL, ADVANTAGES, MASK, held, 0.5)
    expected = [[-1.055171, -0.904837, -1.055171, -0.904837], [1.105171, 0.951229, 0, 0]]
    torch.testing.assert_close(loss.detach(), torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)
    (gradient,) = torch.autograd.grad(loss.sum(), policy)
    expected = [[-0.605171, -0.904837, -0.605171, -0.904837], [1.105171, 0.951229, 0, 0]]
    torch.testing.assert_close(gradient, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)
    assert shown["clip_fraction/high"] == 0 and shown["ratio/max"] == pytest.approx(math.exp(0.1))


def test_nan_outside_the_mask_reaches_no_choice_and_no_gradient():
    policy = torch.where(MASK.bool(), POLICY, math.nan).requires_grad_()
    torch.testing.assert_close(covariances(policy, ADVANTAGES, MASK), covariances(POLICY, ADVANTAGES, MASK))
    assert torch.equal(top_fraction(policy, MASK, 0.4), top_fraction(POLICY, MASK, 0.4))
    loss, _ = kl_cov(policy, PROXIMAL, ADVANTAGES, MASK, MASK.bool(), 0.5)
    (gradient,) = torch.autograd.grad(loss.sum(), policy)
    assert loss.isfinite().all() and gradient.isfinite().all()


@pytest.mark.parametrize("seed", range(5))
def test_the_top_fraction_against_a_loop(seed):
    rng = random.Random(seed)
    rows, columns, fraction = rng.randint(1, 5), rng.randint(1, 9), rng.choice([0.01, 0.2, 0.5, 0.9])
    # Many equal values, for the order among them.
    values = torch.tensor([[rng.choice([0.0, 0.5, 1.0, 2.0]) for _ in range(columns)] for _ in range(rows)])
    mask = torch.tensor([[rng.random() < 0.7 for _ in range(columns)] for _ in range(rows)])
    places = [(row, column) for row in range(rows) for column in range(columns) if mask[row, column]]
    wanted = sorted(places, key=lambda place: -float(values[place]))[: max(1, int(len(places) * fraction))]
    found = top_fraction(values, mask, fraction)
    assert [tuple(place) for place in found.nonzero().tolist()] == sorted(wanted)


def test_the_top_fifth_is_that_of_a_reference_with_a_quantile():
    """TRL's example: 10 tokens inside the mask and 2 outside, of which the fifth with the highest entropy stays."""
    entropy = torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.7, 0.8, 0.9, 1.0, 1.1, 1.2]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    assert top_fraction(entropy, mask, 0.2).tolist() == [[False] * 6, [False, False, True, True, False, False]]


def test_random_tokens_are_a_fraction_of_all_and_the_same_for_a_seed():
    values, mask = torch.arange(1000.0).view(10, 100), torch.ones(10, 100)
    drawn = [random_between(values, mask, 99.0, 900.0, 0.05, seed) for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    for one in drawn:
        assert one.sum() == 50 and values[one].min() > 99 and values[one].max() < 900
    # Each of the 800 candidates about equally often.
    often = sum(random_between(values, mask, 99.0, 900.0, 0.4, seed).double() for seed in range(200))[1:9]
    assert often.min() > 60 and often.max() < 140 and often.mean() == pytest.approx(100, abs=0.5)
    # Bounds are exclusive; without a candidate, or without a token, nothing is chosen.
    assert random_between(values, mask, 5.0, 7.0, 0.9, 0).nonzero().tolist() == [[0, 6]]
    assert not random_between(values, mask, 5.0, 6.0, 0.9, 0).any()
    assert (
        not random_between(values, 0 * mask, 5.0, 7.0, 0.9, 0).any() and not top_fraction(values, 0 * mask, 0.5).any()
    )


def test_the_coefficient_by_hand():
    """Skywork-OR1's controller: target 0.2, step 0.0001, bounds 0 and 0.005."""
    found, coefficient = [], 0.0
    for entropy in (0.1, 0.19, 0.2, 0.3, 0.3, 0.1):
        coefficient = adapted_coefficient(coefficient, entropy, 0.2, 0.0001, 0.005)
        found.append(coefficient)
    assert found == pytest.approx([0.0001, 0.0002, 0.0001, 0.0, 0.0, 0.0001], abs=1e-12)
    assert adapted_coefficient(0.00495, 0.1, 0.2, 0.0001, 0.005) == 0.005
