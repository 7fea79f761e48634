"""Muon on a CPU: torch's, but for the type of the Newton-Schulz iteration."""

import pytest
import torch

from stages.engines.trainers.torch_trainer import Float32Muon

SHAPES = [(4, 4), (12, 5), (5, 12)]


def weights_with_gradients(seed):
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    return weights, lambda: [
        setattr(weight, "grad", torch.randn(weight.shape, generator=generator)) for weight in weights
    ]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_goes_where_torch_goes_but_for_the_rounding(seed):
    (ours, draw_ours), (torchs, draw_torchs) = weights_with_gradients(seed), weights_with_gradients(seed)
    before = [weight.detach().clone() for weight in ours]
    one, other = (Float32Muon(ours, lr=0.02, weight_decay=0.1), torch.optim.Muon(torchs, lr=0.02, weight_decay=0.1))
    for _ in range(4):
        draw_ours(), draw_torchs()
        one.step(), other.step()
    for weight, peer, start in zip(ours, torchs, before, strict=True):
        assert (weight - peer).norm() < 0.02 * (weight - start).norm()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_is_the_quintic_of_the_singular_values(shape):
    """The independent way: singular values, each through the polynomial five times, at a float64 precision."""
    weight = torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64))
    gradient = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    weight.grad = gradient.clone()
    Float32Muon([weight], lr=1.0, weight_decay=0.0).step()
    left, values, right = torch.linalg.svd(gradient, full_matrices=False)
    values = values / values.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    expected = left @ torch.diag(values) @ right * max(1, shape[0] / shape[1]) ** 0.5
    assert torch.allclose(-weight.detach(), expected, atol=1e-10)


def test_a_weight_without_a_gradient_stays_and_a_gradient_of_zeros_is_no_nan():
    weights, draw = weights_with_gradients(0)
    draw()
    weights[0].grad = None
    weights[1].grad = torch.zeros_like(weights[1])
    before = [weight.detach().clone() for weight in weights]
    Float32Muon(weights, lr=0.02, weight_decay=0.0).step()
    assert torch.equal(weights[0], before[0]) and torch.equal(weights[1], before[1])
    assert torch.isfinite(weights[2]).all() and not torch.equal(weights[2], before[2])
