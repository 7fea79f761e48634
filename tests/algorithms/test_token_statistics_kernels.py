"""The fused kernels against all logits in float64: on a CPU in Triton's interpreter, on a GPU compiled.

Triton decides at its first import whether it interprets, so the tests on a CPU run in a process of their own.
"""

import os
import subprocess
import sys

import pytest
import torch

from stages.algorithms import token_statistics as plain
from stages.algorithms.token_statistics import token_statistics
from tests.algorithms.test_token_statistics import gradients, make, naive

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
EXACTNESS = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


@pytest.fixture(params=["cpu"] if IS_INTERPRETED else [pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    """Where the kernels run: small blocks in the interpreter, so that a row has several and the last one in part."""
    from stages.algorithms import token_statistics_kernels as kernels

    if IS_INTERPRETED:
        monkeypatch.setattr(kernels, "FORWARD_BLOCK", 16)
        monkeypatch.setattr(kernels, "BACKWARD_BLOCK", 16)
        monkeypatch.setattr(plain, "_kernels", lambda tensor: kernels)
    return torch.device(request.param)


@pytest.mark.skipif(IS_INTERPRETED, reason="this is the process that it starts")
def test_the_interpreter_gives_the_values_and_gradients_below():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", __file__]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0 and "10 passed, 1 skipped" in done.stdout, done.stdout


def on(device, dtype, *tensors):
    return [one.detach().to(device, dtype).requires_grad_() for one in tensors]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("temperature", "log_threshold"), [(1.0, None), (0.7, -1.5), (1.3, 0.0)])
def test_values_and_gradients(device, dtype, temperature, log_threshold):
    hidden, head, token_ids = make(batch=2, tokens=5)
    ours = on(device, dtype, hidden, head)
    exact = on(torch.device("cpu"), torch.float64, *(one.cpu() for one in ours))
    if dtype == torch.bfloat16:  # logits themselves are rounded: the border and the safe vocabulary hang on that
        log_threshold = None
    expected = naive(*exact, token_ids, temperature, log_threshold)
    found = token_statistics(*ours, token_ids.to(device), temperature, log_threshold, chunk_tokens=4)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu().double(), other, rtol=EXACTNESS[dtype], atol=EXACTNESS[dtype])
    weights = [torch.linspace(-1, 1, 10, dtype=torch.float64).reshape(2, 5) * factor for factor in (1, 2, 3)]
    for statistics in (found, expected):
        sum((one * weight.to(one)).sum() for one, weight in zip(statistics, weights, strict=True)).backward()
    for one, other in zip(ours, exact, strict=True):
        scale = other.grad.abs().max().item()
        torch.testing.assert_close(one.grad.cpu().double(), other.grad, rtol=0, atol=EXACTNESS[dtype] * scale)


@pytest.mark.parametrize("which", [(0,), (1,), (2,)])
def test_each_gradient_alone_is_the_plain_code_s(device, which, monkeypatch):
    hidden, head, token_ids = make(batch=1, tokens=6)
    ours = on(device, torch.float32, hidden, head)
    fused = gradients(token_statistics(*ours, token_ids.to(device), 0.9, -2.0), ours, which)
    masses = token_statistics(*ours, token_ids.to(device), 0.9, -2.0).pruned_mass
    monkeypatch.setattr(plain, "_kernels", lambda tensor: None)
    reference = gradients(token_statistics(*ours, token_ids.to(device), 0.9, -2.0), ours, which)
    pruned = token_statistics(*ours, token_ids.to(device), 0.9, -2.0).pruned_mass
    assert pruned.max() > 0
    torch.testing.assert_close(masses, pruned, rtol=1e-5, atol=1e-6)
    for one, other in zip(fused, reference, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_impossible_tokens_and_broken_numbers(device):
    """A logit of minus infinity takes no part; what is no number is not hidden."""
    hidden = torch.tensor([[[1.0], [float("nan")]]], device=device, requires_grad=True)
    head = torch.tensor([[0.0], [0.0], [-float("inf")]], device=device, requires_grad=True)
    found = token_statistics(hidden, head, torch.tensor([[0, 1]], device=device))
    assert found.logprobs[0, 0].item() == pytest.approx(-0.6931, abs=1e-4)
    assert found.entropy[0, 0].item() == pytest.approx(0.6931, abs=1e-4)
    assert found.sum_squared_probs[0, 0].item() == pytest.approx(0.5)
    assert found.logprobs[0, 1].isnan()
