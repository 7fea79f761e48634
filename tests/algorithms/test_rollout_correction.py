import math

import numpy as np
import pytest
import torch

from stages.algorithms.policy_losses import importance_weights


def slow_weights(policy, rollout, mask, level, cap):
    weights = np.zeros_like(policy)
    for b in range(policy.shape[0]):
        inside = [t for t in range(policy.shape[1]) if mask[b, t]]
        product = math.prod(math.exp(policy[b, t] - rollout[b, t]) for t in inside)
        for t in inside:
            ratio = product if level == "sequence" else math.exp(policy[b, t] - rollout[b, t])
            weights[b, t] = min(ratio, cap)
    return weights


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    policy = -torch.rand(5, 8, generator=generator, dtype=torch.float64)
    rollout = policy + 0.4 * torch.randn(5, 8, generator=generator, dtype=torch.float64)
    mask = torch.rand(5, 8, generator=generator) < 0.7
    mask[2] = False
    return policy, rollout, mask


def test_by_hand():
    policy = torch.tensor([[1.5, 4.0, 0.5, 7.0]]).log()
    mask = torch.tensor([[1, 1, 1, 0]])
    # Token: 1.5, min(4, 2) = 2, 0.5. Sequence: 1.5 * 4 * 0.5 = 3, capped at 2; a cap of 5 leaves it.
    token = importance_weights(policy, torch.zeros(1, 4), mask, "token", 2.0)
    torch.testing.assert_close(token, torch.tensor([[1.5, 2.0, 0.5, 0.0]]))
    sequence = importance_weights(policy, torch.zeros(1, 4), mask, "sequence", 2.0)
    torch.testing.assert_close(sequence, torch.tensor([[2.0, 2.0, 2.0, 0.0]]))
    sequence = importance_weights(policy, torch.zeros(1, 4), mask, "sequence", 5.0)
    torch.testing.assert_close(sequence, torch.tensor([[3.0, 3.0, 3.0, 0.0]]))


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("cap", [1.1, 2.0, math.inf])
def test_against_loops(level, cap, batch):
    expected = slow_weights(*(tensor.numpy() for tensor in batch), level, cap)
    np.testing.assert_allclose(importance_weights(*batch, level, cap), expected, atol=1e-12)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_equal_log_probabilities_give_one_and_padding_nothing(level, batch):
    policy, rollout, mask = batch
    assert torch.equal(importance_weights(policy, policy, mask, level, 2.0), mask.double())
    dirty = [torch.where(mask, tensor, math.nan) for tensor in (policy, rollout)]
    clean = importance_weights(policy, rollout, mask, level, 2.0)
    torch.testing.assert_close(importance_weights(*dirty, mask, level, 2.0), clean)


def test_no_gradient_and_no_overflow():
    policy = torch.tensor([[0.0, -500.0]], requires_grad=True)
    rollout = torch.tensor([[-500.0, 0.0]])
    for level in ("token", "sequence"):
        weights = importance_weights(policy, rollout, torch.ones(1, 2), level, math.inf)
        assert weights.isfinite().all() and not weights.requires_grad


def test_senseless_settings_are_refused(batch):
    with pytest.raises(ValueError, match="level"):
        importance_weights(*batch, "group", 2.0)
    with pytest.raises(ValueError, match="cap"):
        importance_weights(*batch, "token", 0.0)


def test_weights_undo_the_sampler():
    # E_mu[w f] = E_pi[f] for untruncated weights: over a whole vocabulary of 3 tokens, f = token id.
    pi, mu = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.6, 0.3, 0.1])
    weights = importance_weights(pi.log()[:, None], mu.log()[:, None], torch.ones(3, 1), "token", math.inf)[:, 0]
    torch.testing.assert_close((mu * weights * torch.arange(3)).sum(), (pi * torch.arange(3)).sum())
