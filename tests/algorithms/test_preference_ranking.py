import math

import pytest
import torch

from stages.algorithms.text_to_image_losses import pairs_from_ranking, pairwise_ranking_loss


def test_loss_by_hand():
    # -log sigmoid(2 - 1) = log(1 + e^-1) = 0.313262; -log sigmoid(0 - 3) = log(1 + e^3) = 3.048587; mean 1.680924.
    loss = pairwise_ranking_loss(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 3.0]))
    assert loss.item() == pytest.approx(1.680924, abs=1e-5)
    assert pairwise_ranking_loss(torch.ones(4), torch.ones(4)).item() == pytest.approx(math.log(2))


def test_loss_is_the_two_way_cross_entropy_and_ignores_a_shift():
    generator = torch.Generator().manual_seed(0)
    better, worse = torch.randn(2, 20, generator=generator, dtype=torch.float64)
    loss = pairwise_ranking_loss(better, worse)
    slow = sum(-math.log(math.exp(b) / (math.exp(b) + math.exp(w))) for b, w in zip(better, worse, strict=True)) / 20
    assert loss.item() == pytest.approx(slow)
    torch.testing.assert_close(pairwise_ranking_loss(better + 7.0, worse + 7.0), loss)
    order = torch.randperm(20, generator=generator)
    torch.testing.assert_close(pairwise_ranking_loss(better[order], worse[order]), loss)


def test_a_step_raises_the_better_and_lowers_the_worse():
    better, worse = torch.zeros(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    pairwise_ranking_loss(better, worse).backward()
    torch.testing.assert_close(better.grad, torch.full((3,), -1 / 6))
    torch.testing.assert_close(worse.grad, torch.full((3,), 1 / 6))


def test_loss_edges():
    nothing = torch.zeros(0, requires_grad=True)
    loss = pairwise_ranking_loss(nothing, nothing)
    loss.backward()
    assert loss.item() == 0.0 and nothing.grad.shape == (0,)
    assert pairwise_ranking_loss(torch.tensor([-1e4]), torch.tensor([1e4])).item() == pytest.approx(2e4)


def test_pairs_by_hand():
    # Item 1 is best, items 0 and 3 tie, item 2 is last.
    assert pairs_from_ranking([2, 1, 3, 2]) == [(0, 2), (1, 0), (1, 2), (1, 3), (3, 2)]
    assert pairs_from_ranking(torch.tensor([2, 1, 3, 2])) == pairs_from_ranking([2, 1, 3, 2])


def test_pairs_edges():
    assert pairs_from_ranking([]) == [] == pairs_from_ranking([1]) == pairs_from_ranking([4, 4, 4])
    pairs = pairs_from_ranking([5, 3, 1, 4, 2])
    assert len(pairs) == 10 and not {(worse, better) for better, worse in pairs} & set(pairs)
