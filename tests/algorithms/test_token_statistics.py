import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stages.algorithms.token_statistics import (
    likeliest_tokens,
    listed_statistics,
    pruned_logprobs,
    safe_vocabulary,
    token_statistics,
)


def naive(hidden, head, token_ids, temperature=1.0, log_threshold=None, cap=None):
    """The same statistics with the whole tensor of logits, by autograd."""
    logits = hidden @ head.T
    if cap is not None:
        logits = cap * (logits / cap).tanh()
    return statistics_of_logits(logits / temperature, token_ids, log_threshold)


def statistics_of_logits(logits, token_ids, log_threshold):
    chosen = token_ids[..., None]
    if log_threshold is not None:
        safe = logits >= logits.amax(-1, keepdim=True) + log_threshold
        logits = torch.where(safe.scatter(-1, chosen, True), logits, -torch.inf)
    logprobs = logits.log_softmax(-1)
    probs = logprobs.exp()
    entropy = -(probs * logprobs.clamp_min(-1e4)).sum(-1)
    return logprobs.gather(-1, chosen)[..., 0], entropy, probs.square().sum(-1)


def make(batch=3, tokens=11, width=16, vocab=37, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(batch, tokens, width, generator=generator, dtype=dtype)
    head = torch.randn(vocab, width, generator=generator, dtype=dtype) * 2 * width**-0.5
    token_ids = torch.randint(vocab, (batch, tokens), generator=generator)
    return hidden.requires_grad_(), head.requires_grad_(), token_ids


def gradients(statistics, inputs, which=(0, 1, 2), seed=1):
    generator = torch.Generator().manual_seed(seed)
    total = 0.0
    for index, values in enumerate(statistics):
        weights = torch.randn(values.shape, generator=generator, dtype=torch.float64).to(values)
        total = total + (values * weights).sum() * (index in which)
    return torch.autograd.grad(total, inputs)


def test_by_hand():
    # Logits log(0.5), log(0.25), log(0.25). Log-probability of the second: log 0.25. Entropy: 0.5 log 2 + 2 * 0.25 *
    # log 4 = 1.5 log 2. Sum of squares: 0.25 + 0.0625 + 0.0625 = 0.375.
    head = torch.tensor([[0.5], [0.25], [0.25]]).log()
    hidden, token_ids = torch.tensor([[[1.0]]]), torch.tensor([[1]])
    logprobs, entropy, sum_squared_probs = token_statistics(hidden, head, token_ids)
    assert logprobs.item() == pytest.approx(math.log(0.25))
    assert entropy.item() == pytest.approx(1.5 * math.log(2))
    assert sum_squared_probs.item() == pytest.approx(0.375)
    # Temperature 0.5 squares the odds to 4 : 1 : 1.
    assert token_statistics(hidden, head, token_ids, 0.5).logprobs.item() == pytest.approx(math.log(1 / 6))
    # Threshold log 0.6: the others (half as likely as the best) are out. The sampled one joins: 0.25 / 0.75.
    pruned = token_statistics(hidden, head, token_ids, 1.0, math.log(0.6))
    assert pruned.logprobs.item() == pytest.approx(math.log(1 / 3)) and pruned.outside.item() is True
    best = token_statistics(hidden, head, torch.tensor([[0]]), 1.0, math.log(0.6))
    assert (best.logprobs.item(), best.entropy.item(), best.outside.item()) == (0.0, 0.0, False)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("log_threshold", [None, -13.0, -1.5])
@pytest.mark.parametrize("chunk_tokens", [None, 1, 7, 1000])
def test_values_and_gradients_in_float32(temperature, log_threshold, chunk_tokens):
    hidden, head, token_ids = make()
    ours = token_statistics(hidden, head, token_ids, temperature, log_threshold, chunk_tokens)
    exact = [tensor.detach().double().requires_grad_() for tensor in (hidden, head)]
    expected = naive(*exact, token_ids, temperature, log_threshold)
    for left, right in zip(ours, expected, strict=True):
        assert left.dtype == torch.float32
        torch.testing.assert_close(left.double(), right, atol=1e-5, rtol=0)
    for which in ((0,), (1,), (2,), (0, 1, 2)):
        again = token_statistics(hidden, head, token_ids, temperature, log_threshold, chunk_tokens)
        left = gradients(again, (hidden, head), which)
        right = gradients(naive(*exact, token_ids, temperature, log_threshold), exact, which)
        for ours_gradient, exact_gradient in zip(left, right, strict=True):
            torch.testing.assert_close(ours_gradient.double(), exact_gradient, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("log_threshold", [None, -1.5])
@pytest.mark.parametrize(("cap", "which"), [(None, (0, 1, 2)), *((1.5, one) for one in ((0,), (1,), (2,), (0, 1, 2)))])
def test_many_tiles_of_tokens_and_vocabulary_and_capped_logits(temperature, log_threshold, cap, which):
    """Logits are about normal with a deviation of 2: a cap of 1.5 bends most of them."""
    hidden, head, token_ids = make(batch=2, tokens=600, width=8, vocab=2500, dtype=torch.float64)
    ours = token_statistics(hidden, head, token_ids, temperature, log_threshold, 700, cap=cap)
    expected = naive(hidden, head, token_ids, temperature, log_threshold, cap)
    for left, right in zip(ours, expected, strict=True):
        torch.testing.assert_close(left, right)
    inputs = (hidden, head)
    for left, right in zip(gradients(ours, inputs, which), gradients(expected, inputs, which), strict=True):
        torch.testing.assert_close(left, right)


def test_a_cap_by_hand():
    # Products ln 3 and 0 under a cap of 1: tanh(ln 3) = (9 - 1) / (9 + 1) = 0.8, and 0.
    hidden, head = torch.tensor([[[1.0]]]), torch.tensor([[math.log(3)], [0.0]])
    found = token_statistics(hidden, head, torch.tensor([[0]]), cap=1.0).logprobs
    assert found.item() == pytest.approx(-math.log(1 + math.exp(-0.8)))


@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("log_threshold", [None, -1.0])
def test_gradcheck(log_threshold, cap):
    hidden, head, token_ids = make(batch=2, tokens=3, width=4, vocab=7, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda h, w: tuple(token_statistics(h, w, token_ids, 0.8, log_threshold, 2, cap)), (hidden, head)
    )


@pytest.mark.parametrize("cap", [None, 1.5])
def test_the_tensor_over_the_vocabulary_never_exists(cap):
    hidden, head, token_ids = make(batch=4, tokens=256, width=2, vocab=3000)
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            sizes = [t.numel() for t in (result if isinstance(result, tuple) else (result,)) if torch.is_tensor(t)]
            largest = max([largest, *sizes])
            return result

    for chunk_tokens, most in ((None, 1024 // 8 * 3000), (10, 10 * 3000)):
        largest = 0
        with Watch():
            gradients(token_statistics(hidden, head, token_ids, 1.0, -3.0, chunk_tokens, cap), (hidden, head))
        assert 0 < largest <= most


def test_bfloat16_inputs_with_float32_softmax():
    hidden, head, token_ids = make(width=64, vocab=301)
    halves = [tensor.detach().bfloat16().requires_grad_() for tensor in (hidden, head)]
    exact = [tensor.detach().float().requires_grad_() for tensor in halves]
    ours, expected = token_statistics(*halves, token_ids), naive(*exact, token_ids)
    for left, right in zip(ours, expected, strict=True):
        assert left.dtype == torch.float32
        torch.testing.assert_close(left, right, atol=0.05, rtol=0.02)  # logits themselves are rounded to 8 bits
    for left, right in zip(gradients(ours, halves, (0,)), gradients(expected, exact, (0,)), strict=True):
        assert left.dtype == torch.bfloat16
        assert (left.float() - right).norm() < 0.02 * right.norm()


def test_outputs_unpack_into_three_and_report_what_is_outside():
    hidden, head, token_ids = make()
    assert len(token_statistics(hidden, head, token_ids)) == 3
    assert not token_statistics(hidden, head, token_ids).outside.any()
    statistics = token_statistics(hidden, head, token_ids, 1.0, -4.0)
    logprobs, outside = pruned_logprobs(hidden @ head.T, token_ids, -4.0)
    assert torch.equal(statistics.outside, outside) and 0 < outside.sum() < outside.numel()
    torch.testing.assert_close(statistics.logprobs, logprobs)
    assert statistics.logprobs.isfinite().all()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("log_threshold", [-13.0, -4.0, -1.5, 0.0])
def test_the_pruned_mass_is_what_the_safe_set_leaves_out_and_the_total_variation(temperature, log_threshold):
    hidden, head, token_ids = make(dtype=torch.float64)
    found = token_statistics(hidden, head, token_ids, temperature, log_threshold, chunk_tokens=4).pruned_mass
    hidden, head = hidden.detach(), head.detach()
    for b, t in np.ndindex(token_ids.shape):
        z = [float(hidden[b, t] @ row) / temperature for row in head]
        total = sum(math.exp(value) for value in z)
        kept = [v == token_ids[b, t].item() or value >= max(z) + log_threshold for v, value in enumerate(z)]
        mass = sum(math.exp(value) for v, value in enumerate(z) if kept[v]) / total
        pruned = [math.exp(value) / total / mass * is_kept for value, is_kept in zip(z, kept, strict=True)]
        variation = 0.5 * sum(abs(math.exp(value) / total - p) for value, p in zip(z, pruned, strict=True))
        assert [found[b, t].item()] * 2 == pytest.approx([1 - mass, variation], abs=1e-12)
    assert not found.requires_grad and not token_statistics(hidden, head, token_ids).pruned_mass.any()


def test_no_gradient_is_asked_of_frozen_inputs():
    hidden, head, token_ids = make()
    with torch.no_grad():
        assert not token_statistics(hidden, head, token_ids).logprobs.requires_grad
    (only_hidden,) = torch.autograd.grad(token_statistics(hidden, head.detach(), token_ids).logprobs.sum(), hidden)
    (only_head,) = torch.autograd.grad(token_statistics(hidden.detach(), head, token_ids).logprobs.sum(), head)
    both = torch.autograd.grad(token_statistics(hidden, head, token_ids).logprobs.sum(), (hidden, head))
    assert torch.equal(only_hidden, both[0]) and torch.equal(only_head, both[1])


def test_positions_without_a_gradient_get_none_and_give_none():
    hidden, head, token_ids = make()
    mask = torch.rand(3, 11, generator=torch.Generator().manual_seed(2)) < 0.5

    def masked_gradients(values):
        statistics = token_statistics(values, head, token_ids)
        return torch.autograd.grad(torch.where(mask, statistics.logprobs, 0.0).sum(), (values, head))

    for_hidden, for_head = masked_gradients(hidden)
    assert (for_hidden[~mask] == 0).all() and (for_hidden[mask] != 0).any()
    other = torch.where(mask[..., None], hidden.detach(), 123.0).requires_grad_()
    torch.testing.assert_close(masked_gradients(other)[1], for_head)
    nothing = torch.autograd.grad((token_statistics(hidden, head, token_ids).logprobs * 0).sum(), (hidden, head))
    assert all((gradient == 0).all() for gradient in nothing)


def test_empty_batch():
    hidden, head, token_ids = make(tokens=0)
    statistics = token_statistics(hidden, head, token_ids)
    assert all(values.shape == (3, 0) for values in statistics)
    for gradient, tensor in zip(gradients(statistics, (hidden, head)), (hidden, head), strict=True):
        assert gradient.shape == tensor.shape and (gradient == 0).all()


def test_extreme_logits_stay_finite():
    hidden, head, token_ids = make()
    statistics = token_statistics(hidden * 1e4, head, token_ids)
    found = gradients(statistics, (hidden, head))
    assert all(values.isfinite().all() for values in (*statistics, *found))
    uniform = token_statistics(torch.zeros_like(hidden), head, token_ids)
    torch.testing.assert_close(uniform.entropy, torch.full((3, 11), math.log(37)))
    torch.testing.assert_close(uniform.sum_squared_probs, torch.full((3, 11), 1 / 37))


def test_equal_runs_are_equal_to_the_last_bit():
    hidden, head, token_ids = make(batch=2, tokens=300, vocab=500)
    runs = [gradients(token_statistics(hidden, head, token_ids), (hidden, head)) for _ in range(2)]
    assert all(torch.equal(*pair) for pair in zip(*runs, strict=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0,), "temperature"),
        ((1.0, 0.5), "log_threshold"),
        ((1.0, None, 0), "chunk_tokens"),
        ((1.0, None, 1, 0.0), "cap"),
    ],
)
def test_senseless_settings_are_refused(arguments, message):
    hidden, head, token_ids = make()
    with pytest.raises(ValueError, match=message):
        token_statistics(hidden, head, token_ids, *arguments)


def test_pruning_by_hand():
    # p = (0.5, 0.3, 0.15, 0.05), rho = 0.3: safe while p >= 0.15. Renormalised over 0.95: log(0.3 / 0.95).
    logits = torch.tensor([0.5, 0.3, 0.1501, 0.05], dtype=torch.float64).log()
    assert safe_vocabulary(logits, math.log(0.3)).tolist() == [True, True, True, False]
    logprobs, outside = pruned_logprobs(logits.repeat(1, 2, 1), torch.tensor([[1, 3]]), math.log(0.3))
    assert logprobs[0, 0].item() == pytest.approx(math.log(0.3 / 0.9501))
    # The token outside joins its own set: 0.05 / (0.9501 + 0.05).
    assert logprobs[0, 1].item() == pytest.approx(math.log(0.05 / 1.0001))
    assert outside.tolist() == [[False, True]]


def test_safe_vocabulary_keeps_ties_and_any_leading_shape():
    logits = torch.tensor([1.0, 1.0, 0.999])
    logprobs, outside = pruned_logprobs(logits[None, None], torch.tensor([[2]]), -math.inf)
    torch.testing.assert_close(logprobs[0], logits.log_softmax(-1)[2:])
    assert not outside.any()
    assert safe_vocabulary(logits, 0.0).tolist() == [True, True, False]
    assert safe_vocabulary(logits.expand(2, 4, 5, 3), -1.0).shape == (2, 4, 5, 3)
    with pytest.raises(ValueError, match="at most 0"):
        safe_vocabulary(logits, 0.5)


def cut_distribution(logits, top_k, top_p):
    """Returns log-probs after both cuts, by loops: -inf outside the set."""
    out = torch.full_like(logits, -torch.inf)
    for row, target in zip(logits, out, strict=True):
        order, mass = row.argsort(descending=True)[:top_k].tolist(), 0.0
        total, kept = row[order].logsumexp(0), []
        for token in order:
            if mass < top_p:
                kept.append(token)
            mass += float((row[token] - total).exp())
        target[kept] = row[kept].log_softmax(0)
    return out


@pytest.mark.parametrize(("temperature", "cap", "top_p"), [(1.0, None, 1.0), (0.7, None, 0.8), (0.7, 1.5, 0.6)])
@pytest.mark.parametrize("chunk_tokens", [None, 4])
def test_the_samplers_set_against_masked_logits(temperature, cap, top_p, chunk_tokens):
    """The set is that of other weights, and the tokens are drawn from it: it has nothing to do with today's logits."""
    hidden, head, token_ids = make(batch=1, tokens=23, dtype=torch.float64)
    old, _, _ = make(batch=1, tokens=23, dtype=torch.float64, seed=1)
    sampler = cut_distribution((old[0] @ head.T).detach(), 5, top_p)
    token_ids = sampler.exp().multinomial(1, generator=torch.Generator().manual_seed(0))[:, 0]
    listed = likeliest_tokens(sampler, 7)
    ours = listed_statistics(hidden[0], head, token_ids, listed, temperature, cap, chunk_tokens)

    def masked():
        logits = hidden[0] @ head.T
        logits = (logits if cap is None else cap * (logits / cap).tanh()) / temperature
        return statistics_of_logits(logits.masked_fill(sampler == -torch.inf, -torch.inf), token_ids, None)

    for left, right in zip(ours, masked(), strict=True):
        torch.testing.assert_close(left, right)
    for which in ((0,), (1,), (2,), (0, 1, 2)):
        again = listed_statistics(hidden[0], head, token_ids, listed, temperature, cap, chunk_tokens)
        both = gradients(again, (hidden, head), which), gradients(masked(), (hidden, head), which)
        for left, right in zip(*both, strict=True):
            torch.testing.assert_close(left, right)
    whole = token_statistics(hidden, head, token_ids[None], temperature, cap=cap)
    assert not ours.outside.any() and (ours.logprobs > whole.logprobs[0] + 0.01).all()


def test_a_sampled_token_that_the_list_lacks_joins_its_set():
    # Logits log 0.5, log 0.25, log 0.25: a list of one has the first only, and the third was sampled: 0.25 / 0.75.
    head, hidden = torch.tensor([[0.5], [0.25], [0.25]]).log(), torch.tensor([[1.0]])
    listed = likeliest_tokens(torch.tensor([[0.5, 0.25, 0.25]]).log(), 1)
    found = listed_statistics(hidden, head, torch.tensor([2]), listed)
    assert found.logprobs.item() == pytest.approx(math.log(1 / 3)) and found.outside.tolist() == [True]
    alone = listed_statistics(hidden, head, torch.tensor([0]), listed)
    assert (alone.logprobs.item(), alone.entropy.item(), alone.outside.tolist()) == (0.0, 0.0, [False])
    empty = listed_statistics(hidden[:0].requires_grad_(), head, torch.zeros(0, dtype=torch.long), listed[:0])
    assert empty.logprobs.shape == (0,) and empty.logprobs.requires_grad
