"""Drawing tokens from logits: temperature, cuts of the vocabulary, and the log-probs of what was drawn."""

from __future__ import annotations

import torch
from torch import Tensor

from stages.algorithms.vocabulary_pruning import safe_vocabulary
from stages.engines.samplers.protocol import SamplingSettings


def draw(logits: Tensor, settings: SamplingSettings, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """One token per row of `logits` [sequences, vocab] and its log-prob in the distribution drawn from.

    `uniform` [sequences, 1] are float64 numbers in [0, 1), one a row: drawing inverts the distribution function, summed
    in float64 over the vocabulary, and a token of probability 0 is never drawn. Greedy (temperature 0) needs none and
    reports the log-prob at temperature 1. Logits that are not finite numbers give log-probs that are not.
    """
    if settings.temperature == 0:
        logprobs = torch.log_softmax(logits, dim=-1)
        token = logprobs.argmax(dim=-1)
        return token, logprobs.gather(-1, token[:, None])[:, 0]
    cut, highest, mass = _cut_and_mass(logits, settings)
    total = mass[:, -1:]
    # The first token whose sum exceeds the target: below `total` there is one, and its own mass is not zero.
    target = torch.minimum(uniform * total, total.nextafter(torch.zeros_like(total)))
    token = torch.searchsorted(mass, target, right=True).clamp_(
        max=logits.shape[-1] - 1
    )  # NaN is in no order
    logprob = cut.gather(-1, token) - highest - total.log().float()
    return token[:, 0], logprob[:, 0]


def distribution(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Log-probs [sequences, vocab] of the distribution that `draw` draws from; -inf outside its cuts.

    To the bit what `draw` reports of the token it drew.
    """
    if settings.temperature == 0:
        return torch.log_softmax(logits, dim=-1)
    cut, highest, mass = _cut_and_mass(logits, settings)
    return cut - highest - mass[:, -1:].log().float()


def _cut_and_mass(logits: Tensor, settings: SamplingSettings) -> tuple[Tensor, Tensor, Tensor]:
    """Logits after temperature and cuts, the highest of each row, and the sums of exp(cut - highest) in float64."""
    cut = _cut(logits / settings.temperature if settings.temperature != 1 else logits, settings)
    highest = cut.amax(dim=-1, keepdim=True)
    return cut, highest, (cut - highest).exp_().cumsum(dim=-1, dtype=torch.float64)


def _cut(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """-inf on tokens outside the safe vocabulary, the `top_k` most probable, and the smallest set with `top_p` mass.

    In this order, each over what the one before has kept.
    """
    if settings.log_threshold is not None:
        logits = logits.masked_fill(~safe_vocabulary(logits, settings.log_threshold), -torch.inf)
    if settings.top_k and settings.top_k < logits.shape[-1]:
        smallest = logits.topk(settings.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if settings.top_p < 1:
        ordered, places = logits.sort(dim=-1, descending=True)
        mass_before = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
        outside = (mass_before >= settings.top_p).scatter(-1, places, mass_before >= settings.top_p)
        logits = logits.masked_fill(outside, -torch.inf)
    return logits
