"""Tokens are drawn with their probabilities, within the cuts, and never where there is none."""

import math
from dataclasses import replace

import pytest
import torch

from stages.algorithms.token_statistics import pruned_logprobs
from stages.engines.samplers import torch_decoding
from stages.engines.samplers.protocol import SamplingSettings
from stages.engines.samplers.torch_decoding import distribution

SETTINGS = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_response_tokens=1, log_threshold=None)


def seeded():
    return torch.Generator().manual_seed(0)


def draw(logits, settings, generator=None):
    """`torch_decoding.draw` with random numbers of a generator."""
    numbers = torch.rand(len(logits), 1, generator=generator or seeded(), dtype=torch.float64)
    return torch_decoding.draw(logits, settings, numbers)


def test_tokens_are_drawn_with_their_probabilities():
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05])).repeat(20_000, 1)
    token, logprob = draw(logits, SETTINGS, seeded())
    shares = torch.bincount(token, minlength=4) / len(token)
    assert shares.tolist() == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.012)  # 3 standard errors
    assert logprob[token == 1][0].exp().item() == pytest.approx(0.3)


def test_a_large_vocabulary_is_drawn_evenly():
    generator, logits = seeded(), torch.zeros(100, 50_000)
    token, logprob = map(torch.cat, zip(*(draw(logits, SETTINGS, generator) for _ in range(20)), strict=True))
    shares = torch.bincount(token // 5_000, minlength=10) / len(token)
    assert shares.tolist() == pytest.approx([0.1] * 10, abs=0.023)  # 3.5 standard errors
    assert logprob.tolist() == pytest.approx([-math.log(50_000)] * len(token), abs=1e-6)


def test_temperature_comes_before_the_softmax():
    logits = torch.tensor([[1.0, 3.0, 2.0]]).repeat(50, 1)
    token, logprob = draw(logits, replace(SETTINGS, temperature=0.5), seeded())
    expected = (logits / 0.5).log_softmax(-1).gather(-1, token[:, None])[:, 0]
    assert logprob.tolist() == pytest.approx(expected.tolist(), abs=1e-6)


def test_cuts_renormalise_over_what_is_kept():
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05])).repeat(5_000, 1)
    for cut in (replace(SETTINGS, top_k=2), replace(SETTINGS, top_p=0.75)):
        token, logprob = draw(logits, cut, seeded())
        assert set(token.tolist()) == {0, 1}
        assert logprob[token == 0][0].exp().item() == pytest.approx(0.5 / 0.8)


def test_pruning_keeps_the_safe_set_after_the_temperature():
    # Temperature 2 halves the distances to the largest: 0, 1, 2.5. Those within 1.5 are drawn.
    logits = torch.tensor([[4.0, 2.0, -1.0]]).repeat(5_000, 1)
    pruned = replace(SETTINGS, temperature=2.0, log_threshold=-1.5)
    token, logprob = draw(logits, pruned, seeded())
    assert set(token.tolist()) == {0, 1}
    expected, outside = pruned_logprobs(logits[None] / 2.0, token[None], -1.5)
    assert logprob.tolist() == pytest.approx(expected[0].tolist(), abs=1e-6)
    assert not outside.any()
    assert logprob[token == 1][0].exp().item() == pytest.approx(1 / (1 + math.e), abs=1e-6)
    shares = torch.bincount(token, minlength=3) / len(token)
    assert shares[1].item() == pytest.approx(1 / (1 + math.e), abs=0.019)  # 3 standard errors


def test_pruning_comes_before_the_other_cuts():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(2_000, 1)
    # 0.05 is pruned; of the other three, with 0.53, 0.32, 0.16, the first two hold 0.84 of the mass.
    token, _ = draw(logits, replace(SETTINGS, log_threshold=math.log(0.2), top_p=0.83), seeded())
    assert set(token.tolist()) == {0, 1}
    token, _ = draw(logits, replace(SETTINGS, log_threshold=-math.inf), seeded())
    assert set(token.tolist()) == {0, 1, 2, 3}
    with pytest.raises(ValueError, match="at most 0"):
        draw(logits, replace(SETTINGS, log_threshold=0.5), seeded())


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
def test_no_random_number_draws_a_token_without_probability(number):
    none = -torch.inf
    logits = torch.tensor([[none, none, 0.0, none, 0.0, none], [0.0, none, none, none, none, none]])
    numbers = torch.full((2, 1), number, dtype=torch.float64)
    token, logprob = torch_decoding.draw(logits, SETTINGS, numbers)
    assert token.tolist() == ([2, 0] if number == 0 else [4, 0])
    assert logprob.exp().tolist() == pytest.approx([0.5, 1.0])


def test_greedy_takes_the_likeliest_and_reports_temperature_one():
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    token, logprob = draw(logits, replace(SETTINGS, temperature=0.0), seeded())
    assert token.tolist() == [1]
    assert logprob.item() == pytest.approx(logits.log_softmax(-1)[0, 1].item())


@pytest.mark.parametrize(
    "changes", [{}, {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.6}, {"log_threshold": -1.0}, {"temperature": 0.0}]
)
def test_the_distribution_is_that_of_the_drawn_token_to_the_bit_and_sums_to_one(changes):
    settings = replace(SETTINGS, **changes)
    logits = torch.randn(200, 12, generator=seeded())
    token, logprob = draw(logits, settings, seeded())
    whole = distribution(logits, settings)
    assert torch.equal(whole.gather(-1, token[:, None])[:, 0], logprob)
    assert torch.allclose(whole.exp().sum(-1), torch.ones(200), atol=1e-6)
    is_cut = bool(changes) and "temperature" not in changes
    assert bool((whole == -torch.inf).any()) == is_cut
