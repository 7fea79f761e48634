"""The two passes over logits of `token_statistics` as Triton kernels: each reads a logit once, in its type.

In plain torch the same passes read and write float32 logits about sixteen times, about 110 bytes per logit. Here they
move 2 bytes forward (4 with a safe vocabulary, whose border depends on the maximum) and 4 backward in bfloat16. The
plain code is the reference for the tests of these kernels, and runs on a CPU.

Source: one pass with a running maximum, as in online softmax (arXiv 1805.02867), extended to the entropy's sum.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

FORWARD_BLOCK = 4096
"""Number of logits of a row that a program reads at once."""
BACKWARD_BLOCK = 1024
LOWEST = tl.constexpr(-1e30)
"""Replaces minus infinity in the running maximum, because its differences must stay numbers."""


def row_statistics(
    logits: Tensor,
    token_ids: Tensor,
    inverse_temperature: float,
    log_threshold: float | None,
    border_slack: float,
    results: list[Tensor],
) -> None:
    """Fills `results` [rows]: log-probability, entropy, sum of squares, log of the normaliser, border, outside, pruned
    mass.

    `logits` [rows, vocabulary] in any floating type, rows contiguous; all arithmetic in float32. The border is lower
    than the edge of the safe vocabulary by `border_slack` times max(1, |largest logit|).
    """
    rows, vocab = logits.shape
    # One program per row: a row is read in blocks, and its logits are not written back.
    _row_statistics_kernel[(rows,)](
        logits,
        token_ids,
        *results,
        vocab,
        logits.stride(0),
        inverse_temperature,
        0.0 if log_threshold is None else log_threshold,
        border_slack,
        IS_PRUNED=log_threshold is not None,
        BLOCK=FORWARD_BLOCK,
        num_warps=8,
    )


def logit_gradient_(
    logits: Tensor,
    token_ids: Tensor,
    first_id: int,
    inverse_temperature: float,
    border: Tensor | None,
    log_total: Tensor,
    entropy: Tensor,
    sum_squared_probs: Tensor,
    slopes: tuple[Tensor, Tensor | None, Tensor | None],
) -> Tensor:
    """Turns `logits` [rows, part of the vocabulary from `first_id` on] into their gradient, in place.

    `slopes` are the gradients of log-probability, entropy and sum of squares [rows], divided by the temperature.
    """
    rows, columns = logits.shape
    slope_logprob, slope_entropy, slope_squared = slopes
    _logit_gradient_kernel[(rows, triton.cdiv(columns, BACKWARD_BLOCK))](
        logits,
        token_ids,
        log_total,
        entropy,
        sum_squared_probs,
        # Triton needs a pointer for each argument. Arguments that the flags switch off are never read.
        log_total if border is None else border,
        slope_logprob,
        slope_logprob if slope_entropy is None else slope_entropy,
        slope_logprob if slope_squared is None else slope_squared,
        columns,
        logits.stride(0),
        first_id,
        inverse_temperature,
        IS_PRUNED=border is not None,
        HAS_ENTROPY=slope_entropy is not None,
        HAS_SQUARED=slope_squared is not None,
        BLOCK=BACKWARD_BLOCK,
        num_warps=4,
    )
    return logits


@triton.jit
def _row_statistics_kernel(
    logits,
    token_ids,
    logprobs,
    entropies,
    squares,
    log_totals,
    borders,
    outsides,
    pruned_masses,
    vocab,
    stride,
    inverse_temperature,
    log_threshold,
    border_slack,
    IS_PRUNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # 64 bits: rows times vocabulary exceeds 2^31.
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * stride
    token = tl.load(token_ids + row)
    chosen = tl.load(start + token).to(tl.float32)
    columns = tl.arange(0, BLOCK)
    top = LOWEST
    # The border depends on the maximum, so a first pass finds it.
    if IS_PRUNED:
        for first in range(0, vocab, BLOCK):
            inside = first + columns < vocab
            z = tl.load(start + first + columns, mask=inside, other=-float("inf"))
            top = tl.maximum(top, tl.max(z.to(tl.float32), 0))
    # The maximum is subtracted before the division by the temperature. In the other order a GPU fuses product and
    # difference and rounds once, while the maximum was rounded twice. Then the likeliest token may fall below a
    # threshold of 0.
    total = 0.0  # sum of e^below, below = (logit - top) / temperature
    weighted = 0.0  # sum of e^below below
    squared = 0.0  # sum of e^(2 below)
    pruned = 0.0  # sum of e^below over the tokens outside the safe vocabulary
    for first in range(0, vocab, BLOCK):
        inside = first + columns < vocab
        z = tl.load(start + first + columns, mask=inside, other=-float("inf"))
        z = z.to(tl.float32)
        # Online softmax: when the maximum rises, the sums so far are scaled down by the drop.
        if not IS_PRUNED:
            higher = tl.maximum(top, tl.max(z, 0))
            drop = (top - higher) * inverse_temperature
            scale = tl.exp(drop)
            # Each of the summed logits falls by `drop`, so their weighted sum falls by total times drop.
            weighted = (weighted + total * drop) * scale
            total *= scale
            squared *= scale * scale
            top = higher
        below = (z - top) * inverse_temperature
        weight = tl.exp(below)
        if IS_PRUNED:
            is_out = (below < log_threshold) & (first + columns != token)
            pruned += tl.sum(tl.where(is_out, weight, 0.0), 0)
            weight = tl.where(is_out, 0.0, weight)
        total += tl.sum(weight, 0)
        # 0 times minus infinity would be NaN.
        weighted += tl.sum(tl.where(weight == 0.0, 0.0, weight * below), 0)
        squared += tl.sum(weight * weight, 0)
    log_total = tl.log(total)
    chosen_below = (chosen - top) * inverse_temperature
    top *= inverse_temperature
    tl.store(logprobs + row, chosen_below - log_total)
    tl.store(entropies + row, log_total - weighted / total)
    tl.store(squares + row, squared / (total * total))
    tl.store(log_totals + row, top + log_total)
    if IS_PRUNED:
        slack = border_slack * tl.maximum(tl.abs(top), 1.0)
        tl.store(borders + row, top + log_threshold - slack)
        tl.store(outsides + row, chosen_below < log_threshold)
        tl.store(pruned_masses + row, pruned / (pruned + total))
    else:
        tl.store(borders + row, -float("inf"))
        tl.store(outsides + row, False)
        tl.store(pruned_masses + row, 0.0)


@triton.jit
def _logit_gradient_kernel(
    logits,
    token_ids,
    log_totals,
    entropies,
    squares,
    borders,
    slopes_logprob,
    slopes_entropy,
    slopes_squared,
    columns,
    stride,
    first_id,
    inverse_temperature,
    IS_PRUNED: tl.constexpr,
    HAS_ENTROPY: tl.constexpr,
    HAS_SQUARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    place = logits + row * stride + column
    z = tl.load(place, mask=inside, other=0.0).to(tl.float32) * inverse_temperature
    logprob = z - tl.load(log_totals + row)
    prob = tl.exp(logprob)
    slope_logprob = tl.load(slopes_logprob + row)
    factor = tl.zeros_like(logprob) - slope_logprob
    if HAS_ENTROPY:
        factor -= tl.load(slopes_entropy + row) * (logprob + tl.load(entropies + row))
    if HAS_SQUARED:
        factor += 2.0 * tl.load(slopes_squared + row) * (prob - tl.load(squares + row))
    slope = tl.where(prob == 0.0, 0.0, prob * factor)  # of a logit of minus infinity: 0, not 0 times infinity
    is_chosen = column == tl.load(token_ids + row) - first_id
    if IS_PRUNED:
        slope = tl.where((z < tl.load(borders + row)) & (is_chosen == 0), 0.0, slope)
    slope += tl.where(is_chosen, slope_logprob, 0.0)
    tl.store(place, slope.to(logits.dtype.element_ty), mask=inside)
