"""Losses of tokens and their aggregation: by hand, against reference code, and their edges."""

import math

import pytest
import torch

from stages.algorithms.policy_losses import (
    aggregate,
    cispo,
    clipped_surrogate,
    dppo,
    gspo,
    reinforce,
    sapo,
    tokens_of_prompts,
)


def unclipped(*arguments):
    """REINFORCE with the arguments of the losses that clip."""
    return reinforce(*arguments[:4])


LOSSES = {
    "clipped_surrogate": clipped_surrogate,
    "gspo": gspo,
    "cispo": cispo,
    "reinforce": unclipped,
    "dppo": lambda *given: dppo(*given, 20.0, "total_variation"),
    "sapo": lambda *given: sapo(*given[:4], 1.0, 1.05),
}
MODES = ["token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant"]


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    policy = -torch.rand(5, 9, generator=generator, dtype=torch.float64) * 4
    proximal = policy + 0.5 * torch.randn(5, 9, generator=generator, dtype=torch.float64)
    advantages = torch.randn(5, 9, generator=generator, dtype=torch.float64)
    mask = torch.rand(5, 9, generator=generator) < 0.7
    mask[3] = False  # a response that a mask has emptied
    return policy, proximal, advantages, mask


def test_clipped_surrogate_by_hand():
    ratios = torch.tensor([[1.5, 1.5, 0.5, 0.5, 1.1]])
    advantages = torch.tensor([[2.0, -2.0, 2.0, -2.0, 1.0]])
    loss, diagnostics = clipped_surrogate(ratios.log(), torch.zeros(1, 5), advantages, torch.ones(1, 5), 0.2, 0.28)
    # A > 0, r = 1.5: min(3, 1.28 * 2) = 2.56. A < 0, r = 1.5: min(-3, -2.56) = -3. A > 0, r = 0.5: min(1, 1.6) = 1.
    # A < 0, r = 0.5: min(-1, 0.8 * -2) = -1.6. r = 1.1 is inside: 1.1.
    torch.testing.assert_close(loss, torch.tensor([[-2.56, 3.0, -1.0, 1.6, -1.1]]))
    assert diagnostics["clip_fraction/high"].item() == pytest.approx(1 / 5)
    assert diagnostics["clip_fraction/low"].item() == pytest.approx(1 / 5)
    assert diagnostics["ratio/mean"].item() == pytest.approx(5.1 / 5)
    assert diagnostics["ratio/max"].item() == pytest.approx(1.5)


def test_dual_clip_by_hand():
    ratios = torch.tensor([[8.0, 2.0, 8.0]])
    advantages = torch.tensor([[-1.0, -1.0, 1.0]])
    loss, diagnostics = clipped_surrogate(
        ratios.log(), torch.zeros(1, 3), advantages, torch.ones(1, 3), 0.2, 0.2, dual_clip=3.0
    )
    # A < 0: the loss r |A| = 8 is capped at 3 * 1; 2 is below the cap. A > 0 is capped by the clip alone, at 1.2.
    torch.testing.assert_close(loss, torch.tensor([[3.0, 2.0, -1.2]]))
    assert diagnostics["clip_fraction/dual"].item() == pytest.approx(1 / 3)


def test_gspo_cispo_and_reinforce_by_hand():
    policy = torch.tensor([[-1.0, -2.0, -3.0]])
    proximal = torch.tensor([[-1.3, -2.1, 9.0]])
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    # Log-ratios 0.3 and 0.1: s = exp(0.2) = 1.221403, clipped to 1.2 for A > 0; unclipped for A < 0.
    loss, _ = gspo(policy, proximal, torch.tensor([1.0]), mask, 0.2, 0.2)
    torch.testing.assert_close(loss, torch.tensor([[-1.2, -1.2, 0.0]]))
    loss, _ = gspo(policy, proximal, torch.tensor([-1.0]), mask, 0.2, 0.2)
    torch.testing.assert_close(loss, torch.tensor([[1.221403, 1.221403, 0.0]]))
    # Ratios exp(0.3) = 1.349859 -> 1.2 and exp(0.1) = 1.105171; times -A log pi = -2 * -1 and -2 * -2.
    loss, diagnostics = cispo(policy, proximal, torch.tensor([2.0]), mask, 0.2, 0.2)
    torch.testing.assert_close(loss, torch.tensor([[2.4, 4.420684, 0.0]]))
    assert diagnostics["clip_fraction/high"].item() == pytest.approx(0.5)
    assert reinforce(policy, proximal, torch.tensor([2.0]), mask)[0].tolist() == [[2.0, 4.0, 0.0]]


@pytest.mark.parametrize("function", LOSSES.values(), ids=LOSSES)
def test_what_lies_outside_the_mask_changes_nothing(function, batch):
    policy, proximal, advantages, mask = batch

    def outcome(fill):
        inputs = [torch.where(mask, tensor, fill) for tensor in (policy, proximal, advantages)]
        inputs[0] = inputs[0].requires_grad_()
        loss, diagnostics = function(*inputs, mask, 0.2, 0.28)
        (gradient,) = torch.autograd.grad(aggregate(loss, mask, "token_mean"), inputs[0])
        assert not any(value.requires_grad for value in diagnostics.values())
        return loss.detach(), gradient, diagnostics

    for fill in (math.nan, -math.inf, 1e30):
        for ours, clean in zip(outcome(fill)[:2], outcome(-1.0)[:2], strict=True):
            assert torch.equal(ours, clean) and (ours[~mask] == 0).all()
        assert outcome(fill)[2] == outcome(-1.0)[2]


@pytest.mark.parametrize("function", LOSSES.values(), ids=LOSSES)
def test_far_apart_log_probabilities_stay_finite(function):
    policy = torch.tensor([[-1000.0, -0.1]], requires_grad=True)
    proximal = torch.tensor([[-0.1, -1000.0]])
    loss, diagnostics = function(policy, proximal, torch.tensor([-1.0]), torch.ones(1, 2), 0.2, 0.28)
    loss.sum().backward()
    assert loss.isfinite().all() and policy.grad.isfinite().all()
    assert all(value.isfinite() for value in diagnostics.values())


def test_aggregate_by_hand():
    loss = torch.tensor([[1.0, 2.0, 3.0], [4.0, 100.0, 100.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    # Sums 6 and 4 over 3 + 1 tokens: 10 / 4; (6 / 3 + 4 / 1) / 2; (6 + 4) / 2; 10 / 8.
    assert aggregate(loss, mask, "token_mean").item() == 2.5
    assert aggregate(loss, mask, "sequence_mean_token_mean").item() == 3.0
    assert aggregate(loss, mask, "sequence_mean_token_sum").item() == 5.0
    assert aggregate(loss, mask, "constant", divisor=8).item() == 1.25


@pytest.mark.parametrize("how", MODES)
def test_micro_batches_add_up_to_the_batch(how, batch):
    loss, _, _, mask = batch
    divisor = {"token_mean": float(mask.sum()), "constant": 11.0}.get(how, float(len(loss)))
    parts = sum(aggregate(loss[rows], mask[rows], how, divisor) for rows in ([0, 3], [1], [2, 4]))
    torch.testing.assert_close(parts, aggregate(loss, mask, how, divisor))


@pytest.mark.parametrize("how", MODES)
@pytest.mark.parametrize("value", [1.0, math.nan])
def test_an_empty_mask_gives_zero_and_a_zero_gradient(how, value):
    loss = torch.full((2, 3), value, requires_grad=True)
    total = aggregate(loss, torch.zeros(2, 3), how, divisor=4.0 if how == "constant" else None)
    (gradient,) = torch.autograd.grad(total, loss)
    assert total.item() == 0.0 and (gradient == 0).all()


def test_the_mean_over_prompts_by_hand_and_its_micro_batches_add_up(batch):
    # One prompt with responses of 1 and 3 tokens, one with a response of 2.
    mask = torch.tensor([[1, 0, 0], [1, 1, 1], [1, 1, 0]])
    counts = tokens_of_prompts(mask, torch.tensor([7, 7, 3]))
    assert counts.tolist() == [4, 4, 2]
    found = aggregate(torch.tensor([[8.0, 0, 0], [4.0, 0, 0], [1.0, 1.0, 0]]), mask, "prompt_mean", 2, counts)
    assert float(found) == (12 / 4 + 2 / 2) / 2
    loss, _, _, mask = batch
    counts = tokens_of_prompts(mask, torch.tensor([7, 3, 7, 7, 3]))
    parts = [aggregate(loss[rows], mask[rows], "prompt_mean", 2, counts[rows]) for rows in ([0, 4], [1, 2, 3])]
    assert float(sum(parts)) == pytest.approx(float(aggregate(loss, mask, "prompt_mean", 2, counts)), rel=1e-6)


def test_unknown_modes_and_divisors_are_refused():
    with pytest.raises(ValueError, match="token_sum"):
        aggregate(torch.ones(1, 1), torch.ones(1, 1), "token_sum")
    with pytest.raises(ValueError, match="positive"):
        aggregate(torch.ones(1, 1), torch.ones(1, 1), "token_mean", divisor=0)
    with pytest.raises(ValueError, match="needs a divisor"):
        aggregate(torch.ones(1, 1), torch.ones(1, 1), "constant")
    with pytest.raises(ValueError, match="needs the number of prompts"):
        aggregate(torch.ones(1, 1), torch.ones(1, 1), "prompt_mean")


def test_dppo_keeps_a_token_that_ppo_would_clip_and_drops_one_that_it_would_keep():
    """A rare token may double its probability; a common one may not gain 0.3."""
    policy, proximal = torch.tensor([[2e-4, 0.9]]).log(), torch.tensor([[1e-4, 0.6]]).log()
    ones = torch.ones(1, 2)
    loss, shown = dppo(policy, proximal, ones, ones, 0.2, 0.2, 20.0, "total_variation")
    assert loss[0, 0] > 0 and loss[0, 1] == 0
    assert (shown["clip_fraction/low"], shown["clip_fraction/high"]) == (0, 0.5)
    loss, shown = dppo(proximal, policy, -ones, ones, 0.2, 0.2, 20.0, "total_variation")
    assert loss[0, 0] != 0 and loss[0, 1] == 0
    assert (shown["clip_fraction/low"], shown["clip_fraction/high"]) == (0.5, 0)
    assert clipped_surrogate(policy, proximal, ones, ones, 0.2, 0.6)[1]["clip_fraction/high"] == 0.5


def test_sapo_has_reinforces_gradient_at_ratio_1_and_less_far_from_it():
    proximal = torch.full((1, 5), -1.0)
    policy = (proximal + torch.tensor([[0.0, 1.0, -1.0, 0.0, 1.0]])).requires_grad_()
    advantages = torch.tensor([[2.0, 2.0, 2.0, -3.0, -3.0]])
    loss, diagnostics = sapo(policy, proximal, advantages, torch.ones(1, 5), 1.0, 1.05)
    (gradient,) = torch.autograd.grad(loss.sum(), policy)
    # d/dr (4/t) sigmoid(t (r - 1)) = 4 s (1 - s), times dr/dlogp = r.
    for place, (ratio, advantage) in enumerate(
        zip([1, math.e, 1 / math.e, 1, math.e], advantages[0].tolist(), strict=True)
    ):
        t = 1.0 if advantage > 0 else 1.05
        s = 1 / (1 + math.exp(-t * (ratio - 1)))
        assert gradient[0, place].item() == pytest.approx(-4 * s * (1 - s) * ratio * advantage, rel=1e-5)
        assert loss[0, place].item() == pytest.approx(-4 / t * s * advantage, rel=1e-5)
    assert gradient[0, 0].item() == pytest.approx(-2.0) and gradient[0, 3].item() == pytest.approx(3.0)
    assert diagnostics["clip_fraction/high"] > 0


# Three responses in probabilities; the last token of the second one is padding. The numbers of each kind are those of
# verl-project/verl at 1dda039b, `compute_policy_loss_*` in verl/trainer/ppo/core_algos.py, in float64. For DPPO the
# authors' code gives the same: `compute_policy_loss_with_mask` in sail-sg/Stable-RL at c6af1d11.
FLOAT64 = {"dtype": torch.float64}
POLICY = torch.tensor([[0.9, 0.6, 0.12, 0.66, 0.3], [0.3, 0.5, 0.8, 0.05, 1], [0.45, 0.35, 0.55, 0.5, 0.6]], **FLOAT64)
PROXIMAL = torch.tensor([[0.6, 0.5, 0.01, 0.5, 0.7], [0.7, 0.55, 0.4, 0.01, 1], [0.5, 0.4, 0.5, 0.5, 0.55]], **FLOAT64)
ADVANTAGES, MASK = torch.tensor([2.0, -1.0, 0.5], **FLOAT64), torch.tensor([[1] * 5, [1, 1, 1, 1, 0], [1] * 5])
NEAR = [-0.032143, -0.03125, -0.039286, -0.035714, -0.038961]
"""The gradient of the third response under all kinds that average over tokens: no kind holds it back."""


@pytest.mark.parametrize(
    ("function", "limits", "how", "expected", "gradients"),
    [
        pytest.param(
            *(dppo, (0.1, 0.15, 3.0, "total_variation"), "token_mean", 0.47775453),
            [[0, -0.171429, -0.428571, 0, -0.061224], [0, 0.064935, 0.142857, 0.214286, 0], NEAR],
            id="dppo-total_variation",
        ),
        pytest.param(
            *(dppo, (0.02, 0.06, 3.0, "kl"), "token_mean", -0.3525755),
            [[0, -0.171429, 0, -0.188571, -0.061224], [0, 0.064935, 0.142857, 0.214286, 0], NEAR],
            id="dppo-kl",
        ),
        pytest.param(
            *(sapo, (1.0, 2.0), "sequence_mean_token_mean", -1.56271661),
            [
                [-0.188003, -0.158411, -0.000107, -0.17157, -0.052721],
                [0.02619, 0.075135, 0.069996, 0.000559, 0],
                [-0.029925, -0.029053, -0.036575, -0.033333, -0.036289],
            ],
            id="sapo",
        ),
        pytest.param(
            *(clipped_surrogate, (0.2, 0.28, 3.0), "token_mean", -0.47935761),
            [[0, -0.171429, 0, 0, -0.061224], [0, 0.064935, 0.142857, 0, 0], NEAR],
            id="clipped_surrogate",
        ),
        pytest.param(
            *(gspo, (0.2, 0.28), "sequence_mean_token_mean", -0.54981177),
            [[0] * 5, [0.117078] * 4 + [0], [-0.032958] * 5],
            id="gspo",
        ),
        pytest.param(
            *(cispo, (0.2, 0.28), "token_mean", 0.42663027),
            [
                [-0.182857, -0.171429, -0.182857, -0.182857, -0.114286],
                [0.057143, 0.064935, 0.091429, 0.091429, 0],
                NEAR,
            ],
            id="cispo",
        ),
    ],
)
def test_losses_and_gradients_are_those_of_the_reference(function, limits, how, expected, gradients):
    policy = POLICY.log().requires_grad_()
    loss = aggregate(function(policy, PROXIMAL.log(), ADVANTAGES, MASK, *limits)[0], MASK, how)
    (gradient,) = torch.autograd.grad(loss, policy)
    assert loss.item() == pytest.approx(expected, abs=1e-7)
    torch.testing.assert_close(gradient, torch.tensor(gradients, **FLOAT64), atol=1e-6, rtol=0)
