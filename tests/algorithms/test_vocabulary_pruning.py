import math

import numpy as np
import pytest
import torch

from stages.algorithms.token_statistics import pruned_logprobs, safe_vocabulary


def slow_pruned(logits, token_ids, log_threshold):
    logprobs, outside = np.zeros(token_ids.shape), np.zeros(token_ids.shape, dtype=bool)
    for b, t in np.ndindex(token_ids.shape):
        z, a = logits[b, t], token_ids[b, t]
        safe = [v for v in range(len(z)) if z[v] >= max(z) + log_threshold]
        outside[b, t] = a not in safe
        logprobs[b, t] = z[a] - math.log(sum(math.exp(z[v]) for v in {*safe, a}))
    return logprobs, outside


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(3, 5, 17, generator=generator, dtype=torch.float64)
    return logits, torch.randint(17, (3, 5), generator=generator)


def test_by_hand():
    # p = (0.5, 0.3, 0.15, 0.05), rho = 0.3: safe while p >= 0.15. Renormalised over 0.95: log(0.3 / 0.95).
    logits = torch.tensor([0.5, 0.3, 0.1501, 0.05], dtype=torch.float64).log()
    assert safe_vocabulary(logits, math.log(0.3)).tolist() == [True, True, True, False]
    logprobs, outside = pruned_logprobs(logits.repeat(1, 2, 1), torch.tensor([[1, 3]]), math.log(0.3))
    assert logprobs[0, 0].item() == pytest.approx(math.log(0.3 / 0.9501))
    # The token outside joins its own set: 0.05 / (0.9501 + 0.05).
    assert logprobs[0, 1].item() == pytest.approx(math.log(0.05 / 1.0001))
    assert outside.tolist() == [[False, True]]


@pytest.mark.parametrize("log_threshold", [0.0, -1.0, -3.0, -13.0])
def test_against_loops(log_threshold, batch):
    logits, token_ids = batch
    logprobs, outside = pruned_logprobs(logits, token_ids, log_threshold)
    expected, expected_outside = slow_pruned(logits.numpy(), token_ids.numpy(), log_threshold)
    np.testing.assert_allclose(logprobs, expected, atol=1e-12)
    np.testing.assert_array_equal(outside, expected_outside)


def test_pruned_probabilities_of_the_safe_set_sum_to_one(batch):
    logits, _ = batch
    every = torch.arange(17).expand(3, 5, 17)
    safe = safe_vocabulary(logits, -2.0)
    columns = [pruned_logprobs(logits, every[..., v].contiguous(), -2.0)[0].exp() for v in range(17)]
    total = torch.where(safe, torch.stack(columns, -1), 0.0).sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total))


def test_a_shift_of_the_logits_changes_nothing_and_no_threshold_prunes_nothing(batch):
    logits, token_ids = batch
    torch.testing.assert_close(
        pruned_logprobs(logits + 100.0, token_ids, -2.0), pruned_logprobs(logits, token_ids, -2.0)
    )
    logprobs, outside = pruned_logprobs(logits, token_ids, -math.inf)
    torch.testing.assert_close(logprobs, logits.log_softmax(-1).gather(-1, token_ids[..., None])[..., 0])
    assert not outside.any()


def test_members_of_the_set_gain_and_nobody_else_moves(batch):
    logits, token_ids = batch
    logits.requires_grad_()
    logprobs, _ = pruned_logprobs(logits, token_ids, -2.0)
    (gradient,) = torch.autograd.grad(logprobs.sum(), logits)
    member = safe_vocabulary(logits.detach(), -2.0).scatter(-1, token_ids[..., None], True)
    assert (gradient[~member] == 0).all() and gradient.isfinite().all()
    alone = member.sum(-1) == 1
    assert (gradient.gather(-1, token_ids[..., None])[..., 0][~alone] > 0).all()
    step = pruned_logprobs((logits + 0.01 * gradient).detach(), token_ids, -2.0)[0]
    assert (step >= logprobs.detach() - 1e-12).all()


def test_safe_vocabulary_keeps_ties_and_any_leading_shape():
    logits = torch.tensor([1.0, 1.0, 0.999])
    assert safe_vocabulary(logits, 0.0).tolist() == [True, True, False]
    assert safe_vocabulary(logits.expand(2, 4, 5, 3), -1.0).shape == (2, 4, 5, 3)
    with pytest.raises(ValueError, match="at most 0"):
        safe_vocabulary(logits, 0.5)


def test_pruning_moves_the_distribution_by_the_mass_it_drops(batch):
    logits, _ = batch
    probs, safe = logits.softmax(-1), safe_vocabulary(logits, -2.0)
    kept = torch.where(safe, probs, 0.0)
    total = kept.sum(-1, keepdim=True)
    distance = 0.5 * (kept / total - probs).abs().sum(-1)
    torch.testing.assert_close(distance, 1 - total[..., 0])
