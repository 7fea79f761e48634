import math

import numpy as np
import pytest
import torch

from stages.algorithms.policy_losses import error_bounds, exact_divergences, trust_region_mask, trust_region_mask_exact


def slow_mask(policy, rollout, mask, max_threshold, mean_threshold):
    accepted = []
    for b in range(policy.shape[0]):
        log_ratios = [policy[b, t] - rollout[b, t] for t in range(policy.shape[1]) if mask[b, t]]
        k2 = [0.5 * x**2 for x in log_ratios]
        k3 = [math.exp(x) - 1 - x for x in log_ratios]
        is_in = max_threshold is None or not k2 or max(k2) <= max_threshold
        accepted.append(is_in and (mean_threshold is None or not k3 or sum(k3) / len(k3) <= mean_threshold))
    return np.array(accepted)


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    policy = -torch.rand(60, 10, generator=generator, dtype=torch.float64)
    spread = torch.linspace(0.0, 0.6, 60, dtype=torch.float64)[:, None]
    rollout = policy + spread * torch.randn(60, 10, generator=generator, dtype=torch.float64)
    mask = torch.rand(60, 10, generator=generator) < 0.7
    mask[50] = False
    return policy, rollout, mask


def test_by_hand():
    policy = torch.tensor([[math.log(1.3), 0.0], [math.log(1.4), 0.0], [math.log(0.7), 0.0]])
    rollout, mask = torch.zeros(3, 2), torch.ones(3, 2)
    # k2: 0.5 log(1.3)^2 = 0.0344, 0.5 log(1.4)^2 = 0.0566, 0.5 log(0.7)^2 = 0.0636.
    assert trust_region_mask(policy, rollout, mask, max_threshold=0.05).tolist() == [True, False, False]
    assert trust_region_mask(policy, rollout, mask, max_threshold=0.06).tolist() == [True, True, False]
    # Mean k3 over two tokens: (0.3 - 0.26236) / 2 = 0.01882, (0.4 - 0.33647) / 2 = 0.03176, (-0.3 + 0.35667) / 2 =
    # 0.02834.
    assert trust_region_mask(policy, rollout, mask, mean_threshold=0.03).tolist() == [True, False, True]
    assert trust_region_mask(policy, rollout, mask, 0.06, 0.03).tolist() == [True, False, False]
    assert trust_region_mask(policy, rollout, mask).tolist() == [True, True, True]


@pytest.mark.parametrize("max_threshold", [None, 0.05, 0.1])
@pytest.mark.parametrize("mean_threshold", [None, 0.001, 0.02])
def test_against_loops(max_threshold, mean_threshold, batch):
    expected = slow_mask(*(tensor.numpy() for tensor in batch), max_threshold, mean_threshold)
    ours = trust_region_mask(*batch, max_threshold, mean_threshold)
    np.testing.assert_array_equal(ours, expected)
    if max_threshold or mean_threshold:
        assert 0 < ours.sum() < len(ours)


def test_padding_changes_nothing_and_nan_is_rejected(batch):
    policy, rollout, mask = batch
    clean = trust_region_mask(policy, rollout, mask, 0.05, 0.02)
    dirty = torch.where(mask, policy, math.nan)
    assert torch.equal(trust_region_mask(dirty, rollout, mask, 0.05, 0.02), clean)
    assert clean[0] and clean[50]  # no gap at all; no tokens at all
    broken = policy.clone()
    broken[0, mask[0].nonzero()[0, 0]] = math.nan
    assert not trust_region_mask(broken, rollout, mask, max_threshold=1e9)[0]
    assert not trust_region_mask(broken, rollout, mask, mean_threshold=1e9)[0]


def test_wider_thresholds_accept_more(batch):
    narrow, wide = trust_region_mask(*batch, 0.02, 0.001), trust_region_mask(*batch, 0.1, 0.01)
    assert (narrow <= wide).all() and wide.sum() > narrow.sum()


def test_the_maximum_is_symmetric(batch):
    policy, rollout, mask = batch
    one = trust_region_mask(policy, rollout, mask, max_threshold=0.05)
    assert torch.equal(one, trust_region_mask(rollout, policy, mask, max_threshold=0.05))


def test_exact_by_hand():
    kl = torch.tensor([[0.01, 0.03, 9.0], [0.06, 0.0, 9.0], [0.04, 0.04, 9.0]])
    mask = torch.tensor([[1, 1, 0]] * 3)
    # Maxima 0.03, 0.06, 0.04; means 0.02, 0.03, 0.04.
    assert trust_region_mask_exact(kl, mask, max_threshold=0.05).tolist() == [True, False, True]
    assert trust_region_mask_exact(kl, mask, mean_threshold=0.035).tolist() == [True, True, False]
    assert trust_region_mask_exact(kl, mask, 0.05, 0.035).tolist() == [True, False, False]


def test_empty_tensors_and_negative_thresholds():
    assert trust_region_mask(torch.zeros(2, 0), torch.zeros(2, 0), torch.zeros(2, 0), 0.1).tolist() == [True, True]
    with pytest.raises(ValueError, match="negative"):
        trust_region_mask_exact(torch.zeros(1, 1), torch.ones(1, 1), max_threshold=-0.1)


def test_the_papers_table():
    # T = 4096, delta = 1e-4; both columns of the table as printed in the paper.
    kl_only = error_bounds(4096, 1e-4, sequence_kl=0.01)
    printed = {"classical": 1677, "coupling": 113.8, "pinsker_marginal_kl": 35.0, "mixed_kl": 8.2, "mixed_tv": 8.2}
    for name, value in {**printed, "pinsker_marginal_tv": 35.0, "unified": 8.2}.items():
        assert kl_only[name] == pytest.approx(value, rel=0.01)
    assert kl_only["adaptive"] <= 35.0
    with_tv = error_bounds(4096, 1e-4, max_token_tv=5e-3, sequence_kl=0.01, sequence_tv=0.05)
    printed = {"classical": 839, "coupling": 79.9, "pinsker_marginal_kl": 35.0, "pinsker_marginal_tv": 24.7}
    for name, value in {**printed, "mixed_kl": 8.2, "mixed_tv": 4.1, "unified": 4.1}.items():
        assert with_tv[name] == pytest.approx(value, rel=0.01)
    assert with_tv["adaptive"] <= 24.72


def test_bounds_by_hand():
    # T = 3, delta = 0.02, eps = sqrt(0.01) = 0.1. Classical: 2 * 3 * 2 * 0.01 = 0.12. Coupling: 4 * 0.1 * (0.1 + 0.2).
    # Marginal: 4 * 0.1 * (0.1 + 0.1 sqrt 2) = 0.096569. sequence_kl <= 3 * 0.02 = 0.06: 6 sqrt(0.0012) = 0.207846.
    bounds = error_bounds(3, 0.02)
    assert bounds["classical"] == pytest.approx(0.12) and bounds["coupling"] == pytest.approx(0.12)
    assert bounds["pinsker_marginal_kl"] == pytest.approx(0.0965685)
    assert bounds["mixed_kl"] == pytest.approx(0.2078461)
    assert bounds["mixed_tv"] == pytest.approx(4 * 3 * 0.1 * math.sqrt(0.03))
    # Adaptive with means (0.1, 0.05, 0): 4 * (0.1 * min(0.2, 0.1 sqrt 2) + 0.05 * 0.1) = 0.0765685.
    adaptive = error_bounds(3, 0.02, mean_token_tv=[0.1, 0.05, 0.0])
    assert adaptive["adaptive"] == pytest.approx(0.0765685) == adaptive["unified"]


def test_bounds_vanish_without_divergence_and_grow_with_it():
    assert set(error_bounds(1000, 0.0).values()) == {0.0}
    small, large = error_bounds(500, 1e-5), error_bounds(500, 1e-4)
    assert all(small[name] < large[name] for name in small)
    for arguments in ((0, 0.1), (5, -0.1), (5, 0.1, -1.0)):
        with pytest.raises(ValueError):
            error_bounds(*arguments)
    with pytest.raises(ValueError, match="5 tokens"):
        error_bounds(5, 0.1, mean_token_tv=[0.1])


def test_exact_divergences_by_hand():
    rollout = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]).log()
    policy = torch.tensor([[0.25, 0.5, 0.25], [0.25, 0.25, 0.5], [0.5, 0.25, 0.25]]).log() + 3.0
    # 0.5 log 2 + 0.25 log 0.5 = 0.25 log 2; log 2 twice half; log 2. A shift of the logits changes nothing.
    expected = [0.25 * math.log(2), math.log(2), math.log(2)]
    assert exact_divergences(rollout, policy).tolist() == pytest.approx(expected, abs=1e-7)
    # Heated to p^0.5 the first policy is (1, sqrt 2, 1) / (2 + sqrt 2).
    heated = exact_divergences(rollout[:1], policy[:1], temperature=2.0).item()
    by_hand = 0.5 * math.log(0.5) + 0.5 * math.log(0.25) + math.log(2 + 2**0.5) - 0.25 * math.log(2**0.5)
    assert heated == pytest.approx(by_hand, abs=1e-7)


def test_pruned_divergences_join_the_two_sets():
    """Policy (0.6, 0.3, 0.08, 0.02): a threshold of log 0.4 keeps two tokens, log 0.1 three."""
    policy = torch.tensor([[0.6, 0.3, 0.08, 0.02]]).log()
    same = torch.tensor([[2 / 3, 1 / 3, 0.0, 0.0]]).log()
    assert exact_divergences(same, policy, log_threshold=math.log(0.4)).item() == pytest.approx(0.0, abs=1e-7)
    # One token more on the policy's side: every mass shrinks by 0.9 / 0.98.
    wider = exact_divergences(same, policy, log_threshold=math.log(0.1)).item()
    assert wider == pytest.approx(math.log(0.98 / 0.9), abs=1e-6)
    # One token more on the sampler's side belongs to the policy's set there: finite, and 0 at equal probabilities.
    sampled = torch.tensor([[0.6, 0.3, 0.08, 0.0]]).div(0.98).log()
    assert exact_divergences(sampled, policy, log_threshold=math.log(0.4)).item() == pytest.approx(0, abs=1e-6)


def test_exact_divergences_against_torch_and_their_edges():
    generator = torch.Generator().manual_seed(0)
    rollout = torch.randn(50, 40, generator=generator).log_softmax(-1)
    logits = rollout + 0.3 * torch.randn(50, 40, generator=generator)
    logits.requires_grad_()
    found = exact_divergences(rollout, logits)
    expected = torch.nn.functional.kl_div(
        logits.detach().double().log_softmax(-1), rollout.double(), reduction="none", log_target=True
    ).sum(-1)
    assert not found.requires_grad and found.dtype == torch.float64
    assert torch.allclose(found, expected, atol=1e-6)
    assert 0 <= exact_divergences(rollout, rollout).min() <= exact_divergences(rollout, rollout).max() < 1e-12
    assert exact_divergences(rollout, torch.full_like(rollout, math.nan)).isnan().all()
    assert exact_divergences(rollout[:0], rollout[:0]).shape == (0,)
    with pytest.raises(ValueError, match="temperature must be positive"):
        exact_divergences(rollout, rollout, temperature=0.0)


def test_sampled_k3_averages_to_the_exact_divergence():
    rollout = torch.tensor([0.5, 0.3, 0.2]).log()
    logits = torch.tensor([0.4, 0.3, 0.3]).log()
    log_ratio = logits - rollout
    k3 = (rollout.exp() * (log_ratio.expm1() - log_ratio)).sum().item()
    assert exact_divergences(rollout[None], logits[None]).item() == pytest.approx(k3, abs=1e-7)
