"""Log-probability, entropy and sum of squared probabilities of sampled tokens, computed from hidden states.

The tensor [batch, tokens, vocab] never exists. The forward pass holds the logits of `chunk_tokens` tokens at a time
and keeps a few numbers per token. The backward pass recomputes the logits in tiles, and turns each tile into its share
of both gradients while it is still in the cache.

Sources: chunked recomputation as in Liger-Kernel (arXiv 2410.10989) and Cut Cross-Entropy (arXiv 2411.09009); sum of
squared probabilities for the optimal token baseline (arXiv 2602.07078; verl `calculate_sum_pi_squared`); vocabulary
pruning, "Taming the Tail" (arXiv 2512.23087); the sampler's own set, "Keep Sampling Mask" of DeepSeek-V3.2 (arXiv
2512.02556, section 3.1).

Pruning, re-derived: S = {v : pi(v) >= rho max pi} <=> z_v >= z_max + log rho (the min-p rule), and log pi_S(a) = z_a -
LSE_S(z). The rule depends on the scale of the logits, not on a shift. Apply it after the temperature, both in the
sampler and in the trainer.

With S the safe vocabulary (all of it when nothing is pruned), treated as a constant, and z = hidden . head / T:
    log p_a = z_a - LSE_S(z)      H = -sum_S p log p      Q = sum_S p^2
    d log p_a / dz_v = [v = a] - p_v      dH / dz_v = -p_v (log p_v + H)      dQ / dz_v = 2 p_v (p_v - Q)

With a cap c on the logits (Gemma 2, arXiv 2408.00118) z = c tanh(hidden . head / c) / T, and the gradient of the
product takes a factor of 1 - (z T / c)^2.

Deviations:
1. A sampled token outside S (the engines' sets differ at the border) is added to the S of its position. Its
   log-probability is then finite and its gradient pulls it back into S. `outside` marks it; the caller counts it and
   may drop the token or the response.
2. Positions whose incoming gradients are all zero (padding, clipped tokens, groups without signal) are left out of
   the backward pass. This is faster, and the result is the same up to rounding in the last bit.
3. In the backward pass the border of S is a few roundings lower (BORDER_ROUNDINGS). Otherwise the rounding of the
   recomputed logits could exclude a token on the border, such as the likeliest one at a threshold of 0.
4. The paper's threshold could not be verified; e^-13 is from memory. It has no default here.
"""

import importlib.util
import math
from types import ModuleType
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding
from torch.utils.checkpoint import checkpoint

PerToken = Float[Tensor, "batch tokens"]
# Roundings between the logits of the forward pass and those that the backward pass recomputes (deviation 3).
BORDER_ROUNDINGS = 4
# Columns of the head in one product on a CPU (`_product`).
PRODUCT_COLUMNS = 1024
# exp(x) is computed as exp2(x log2 e), which takes a third of the time of torch.exp on a CPU. It stays as fast for
# denormal results (most of the vocabulary of a confident policy), for which torch.exp takes 36 times as long.
LOG2_E = math.log2(math.e)


class _ThreeStatistics(NamedTuple):
    logprobs: PerToken
    entropy: PerToken
    sum_squared_probs: PerToken


class TokenStatistics(_ThreeStatistics):
    """Unpacks into (logprobs, entropy, sum_squared_probs); entropy in nats.

    `outside` is an attribute and not a fourth member, so that unpacking into three works. It is True where the sampled
    token was outside the safe vocabulary and was added to it; all False without pruning.
    """

    outside: Bool[Tensor, "batch tokens"]
    pruned_mass: PerToken
    """1 - Z: the probability of all tokens that were pruned, before the others are renormalised, without gradient. It
    is also the total variation between the whole distribution and the pruned one. 0 without pruning."""


def token_statistics(
    hidden: Float[Tensor, "batch tokens hidden"],
    head_weight: Float[Tensor, "vocab hidden"],
    token_ids: Int[Tensor, "batch tokens"],
    temperature: float = 1.0,
    log_threshold: float | None = None,
    chunk_tokens: int | None = None,
    cap: float | None = None,
) -> TokenStatistics:
    """Returns statistics of `token_ids` under softmax(hidden @ head_weight.T / temperature), optionally pruned.

    Gradients flow from all three statistics to `hidden` and `head_weight`. `log_threshold` (<= 0, applied after the
    temperature) prunes to the tokens with z_v >= z_max + log_threshold. A soft `cap` acts on the product, before the
    temperature: see `capped`. `chunk_tokens` bounds the memory: at most chunk_tokens * vocab logits exist at any time.
    None means about 128 MiB on a CPU and 1 GiB on a GPU, and at most an eighth of the tokens, or 64. Results are
    float32 (float64 for float64 input): products in the type of the inputs, softmax in float32; `hidden` is cast to the
    head's type. Padded positions need any valid token id. An empty batch gives empty results and zero gradients. There
    are no second derivatives. ValueError on a temperature, cap or chunk_tokens that is not positive, or a log_threshold
    above 0.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    if cap is not None and not cap > 0:
        raise ValueError(f"cap must be positive, not {cap}")
    if log_threshold is not None and not log_threshold <= 0:
        raise ValueError(f"log_threshold must be at most 0, not {log_threshold}: it is log(p / p_max)")
    if chunk_tokens is not None and chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, not {chunk_tokens}")
    # Under autocast the hidden states may be wider than the head.
    flat = hidden.reshape(-1, hidden.shape[-1]).to(head_weight.dtype)
    chunk_tokens = chunk_tokens or _usual_chunk_tokens(flat, len(head_weight))
    *statistics, outside, pruned_mass = _TokenStatistics.apply(
        flat, head_weight, token_ids.reshape(-1), float(temperature), log_threshold, chunk_tokens, cap
    )
    result = TokenStatistics(*(values.view(token_ids.shape) for values in statistics))
    result.outside, result.pruned_mass = outside.view(token_ids.shape), pruned_mass.view(token_ids.shape)
    return result


def listed_statistics(
    hidden: Float[Tensor, "tokens hidden"],
    head_weight: Float[Tensor, "vocab hidden"],
    token_ids: Int[Tensor, " tokens"],
    likeliest: Float[Tensor, "tokens columns"],
    temperature: float = 1.0,
    cap: float | None = None,
    chunk_tokens: int | None = None,
) -> TokenStatistics:
    """Returns the statistics of `token_statistics`, [tokens], under the softmax over the tokens that the sampler could
    draw: S is the sampler's set after its top-k and top-p cuts, and not one of the current weights.

    `likeliest` is from `likeliest_tokens`; its tokens with a log-prob above -inf are S. Gradients flow as there; only
    the listed rows of the head are read. If tokens tie at the last place of the list, some may be missing: a sampled
    one is added to the S of its position and marked `outside`. `pruned_mass` is 0: what the cut removes under the
    current weights is not computed. At most chunk_tokens * columns / 2 rows of the head are copied at any time.
    """
    logprobs, ids = likeliest.chunk(2, dim=-1)
    ids, is_member = ids.long(), logprobs != -torch.inf
    outside = ~((ids == token_ids[:, None]) & is_member).any(-1)
    # The sampled token comes last, and counts only where the list lacks it.
    ids, is_member = torch.cat([ids, token_ids[:, None]], -1), torch.cat([is_member, outside[:, None]], -1)

    def statistics(hidden: Tensor, head_weight: Tensor, ids: Tensor, is_member: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(hidden.device.type, enabled=False):
            products = torch.einsum("th,tch->tc", hidden, embedding(ids, head_weight)).to(_precision(hidden))
        logits = capped(products, cap) / temperature
        logprobs = logits.masked_fill(~is_member, -torch.inf).log_softmax(-1)
        probs = logprobs.exp()
        entropy = -(probs * logprobs.masked_fill(~is_member, 0.0)).sum(-1)
        chosen = logits[:, -1] - logits.masked_fill(~is_member, -torch.inf).logsumexp(-1)
        return chosen, entropy, probs.square().sum(-1)

    flat = hidden.to(head_weight.dtype)
    rows = _block_elements(flat) // (ids.shape[1] * flat.shape[1])
    size = max(1, min(rows, chunk_tokens or len(flat)))
    # Recomputed in the backward pass: the copied rows of the head are many times the hidden states. One chunk at least,
    # so that an empty batch has gradients too.
    parts = [
        checkpoint(statistics, flat[part], head_weight, ids[part], is_member[part], use_reentrant=False)
        for part in (slice(start, start + size) for start in range(0, max(1, len(flat)), size))
    ]
    result = TokenStatistics(*(torch.cat(values) for values in zip(*parts, strict=True)))
    result.outside, result.pruned_mass = outside, torch.zeros_like(result.entropy, requires_grad=False)
    return result


class _TokenStatistics(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, head_weight, token_ids, temperature, log_threshold, chunk_tokens, cap):
        # A statistic that the loss does not use then has no gradient (None), and its part of the work is skipped.
        ctx.set_materialize_grads(False)
        ctx.temperature, ctx.is_pruned, ctx.chunk_tokens = (temperature, log_threshold is not None, chunk_tokens)
        ctx.cap = cap
        # The types are chosen here; autocast would cast the results back and forth.
        with torch.autocast(hidden.device.type, enabled=False):
            results = _forward(hidden, head_weight, token_ids, temperature, log_threshold, chunk_tokens, cap)
        logprobs, entropy, sum_squared_probs, log_total, border, outside, pruned_mass = results
        ctx.save_for_backward(hidden, head_weight, token_ids, entropy, sum_squared_probs, log_total, border)
        ctx.mark_non_differentiable(outside, pruned_mass)
        return logprobs, entropy, sum_squared_probs, outside, pruned_mass

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_logprobs, grad_entropy, grad_sum_squared, *_):
        with torch.autocast(ctx.saved_tensors[0].device.type, enabled=False):
            grads = _backward(ctx, grad_logprobs, grad_entropy, grad_sum_squared)
        return *grads, None, None, None, None, None


def _forward(
    hidden: Tensor,
    head_weight: Tensor,
    token_ids: Tensor,
    temperature: float,
    log_threshold: float | None,
    chunk_tokens: int,
    cap: float | None,
) -> list[Tensor]:
    """Log-probability, entropy, sum of squares, log of the normaliser, border of S, outside and pruned mass: [tokens]
    each."""
    tokens, vocab = len(hidden), len(head_weight)
    precision = _precision(hidden)
    chunk = max(1, min(chunk_tokens, tokens))
    # Rows of one block; a chunk may be smaller.
    block = max(1, min(_block_elements(hidden) // vocab, chunk))
    logits = hidden.new_empty(chunk, vocab)
    kernels = _kernels(hidden) if cap is None else None
    # Allocated once and used for every block.
    scratch = torch.empty(0 if kernels else block, vocab, dtype=precision, device=hidden.device)
    results = [torch.empty(tokens, dtype=precision, device=hidden.device) for _ in range(5)]
    results += [torch.zeros(tokens, dtype=dtype, device=hidden.device) for dtype in (torch.bool, precision)]
    for start in range(0, tokens, chunk):
        stop = min(start + chunk, tokens)
        # The only place that stores logits: one chunk, overwritten by the next.
        _product(hidden[start:stop], head_weight, logits[: stop - start])
        if kernels is not None:
            kernels.row_statistics(
                logits[: stop - start],
                token_ids[start:stop],
                1 / temperature,
                log_threshold,
                BORDER_ROUNDINGS * torch.finfo(precision).eps,
                [result[start:stop] for result in results],
            )
            continue
        # Blocks of rows that fit into the cache: seven passes over a block cost less than two over a whole chunk.
        for first in range(start, stop, block):
            last = min(first + block, stop)
            rows = capped(logits[first - start : last - start].to(precision), cap)
            ids, weights = token_ids[first:last, None], scratch[: last - first]
            values = _row_statistics(rows, ids, temperature, log_threshold, weights)
            for result, value in zip(results, values, strict=True):
                result[first:last] = value[:, 0]
    return results


def _product(hidden: Tensor, head_weight: Tensor, logits: Tensor) -> None:
    """Computes logits = hidden @ head_weight.T; on a CPU by columns, so that their part of the head stays in the cache
    (15% faster)."""
    columns = len(head_weight) if hidden.is_cuda else PRODUCT_COLUMNS
    for low in range(0, len(head_weight), columns):
        part = head_weight[low : low + columns]
        torch.mm(hidden, part.t(), out=logits[:, low : low + columns])


def _row_statistics(
    logits: Tensor, token_ids: Tensor, temperature: float, log_threshold: float | None, weights: Tensor
) -> tuple[Tensor, ...]:
    """Returns the results of `_forward` for a block of rows, each (rows, 1). Overwrites `logits` and `weights`."""
    top = logits.amax(-1, keepdim=True)
    # Before the temperature divides, as the kernel does: see there.
    logits.sub_(top)
    if temperature != 1:
        logits.div_(temperature)
        top = top / temperature
    # Before exp2 overwrites them.
    chosen = logits.gather(-1, token_ids)
    is_unsafe = None if log_threshold is None else logits < log_threshold
    torch.exp2(logits.mul_(LOG2_E), out=weights)
    if is_unsafe is None:
        border, outside = torch.full_like(top, -torch.inf), torch.zeros_like(chosen, dtype=torch.bool)
        pruned = torch.zeros_like(top)
    else:
        # Relative to the logit, because its rounding grows with its size.
        slack = BORDER_ROUNDINGS * torch.finfo(top.dtype).eps * top.abs().clamp_min(1.0)
        border, outside = top + log_threshold - slack, chosen < log_threshold
        # Summed, because 1 - Z would lose the digits of a small rest. The sampled token always stays (deviation 1).
        pruned = weights.masked_fill(is_unsafe.logical_not().scatter_(-1, token_ids, True), 0.0).sum(-1, keepdim=True)
        weights.masked_fill_(is_unsafe, 0.0).scatter_(-1, token_ids, chosen.exp())
    total = weights.sum(-1, keepdim=True)
    log_total = total.log()
    sum_squared_probs = (torch.linalg.vector_norm(weights, dim=-1, keepdim=True) / total).square()
    # H = log Z - sum(p z), with z in units of log 2.
    entropy = log_total - logits.mul_(weights).sum(-1, keepdim=True) / (LOG2_E * total)
    mass = pruned / (pruned + total)
    return chosen - log_total, entropy, sum_squared_probs, top + log_total, border, outside, mass


class _Rows(NamedTuple):
    """Inputs of the backward pass for each position with a gradient; `slopes` are divided by the temperature."""

    hidden: Tensor  # (tokens, hidden)
    token_ids: Tensor  # (tokens,)
    entropy: Tensor
    sum_squared_probs: Tensor
    log_total: Tensor
    border: Tensor
    slope_logprob: Tensor
    slope_entropy: Tensor | None
    slope_sum_squared: Tensor | None

    def part(self, start: int, stop: int) -> "_Rows":
        return _Rows(*(None if column is None else column[start:stop] for column in self))

    def kept(self, index: Tensor) -> "_Rows":
        return _Rows(*(None if column is None else column[index] for column in self))


def _backward(ctx, grad_logprobs, grad_entropy, grad_sum_squared) -> tuple[Tensor | None, Tensor | None]:
    hidden, head_weight, token_ids, entropy, sum_squared_probs, log_total, border = ctx.saved_tensors
    # If only other statistics are used, a zero avoids a second code path below.
    if grad_logprobs is None:
        grad_logprobs = torch.zeros_like(entropy)
    slopes = [
        None if grad is None else grad / ctx.temperature for grad in (grad_logprobs, grad_entropy, grad_sum_squared)
    ]
    rows = _Rows(hidden, token_ids, entropy, sum_squared_probs, log_total, border, *slopes)
    # Deviation 2: in an RL batch many positions are padding or have no advantage.
    is_active = torch.stack([slope != 0 for slope in slopes if slope is not None]).any(0)
    active = is_active.nonzero()[:, 0]  # the one place where the host waits for a GPU: how many there are
    # The rows are not copied if all of them are active.
    if len(active) == len(is_active):
        active = None
    else:
        rows = rows.kept(active)
    wants_hidden, wants_head = ctx.needs_input_grad[:2]
    precision = _precision(hidden)
    grad_hidden = torch.zeros(rows.hidden.shape, dtype=precision, device=hidden.device) if wants_hidden else None
    grad_head = torch.empty_like(head_weight) if wants_head else None
    _accumulate(rows, head_weight, ctx, grad_hidden, grad_head)
    if grad_hidden is not None:
        grad_hidden = grad_hidden.to(hidden.dtype)
        if active is not None:
            grad_hidden = torch.zeros_like(hidden).index_copy_(0, active, grad_hidden)
    return grad_hidden, grad_head


def _accumulate(rows: _Rows, head_weight: Tensor, ctx, grad_hidden: Tensor | None, grad_head: Tensor | None) -> None:
    """Adds to `grad_hidden` and fills `grad_head`, vocabulary tile by vocabulary tile.

    The vocabulary is the outer loop: each tile of the head and of its gradient then passes through memory once.
    """
    tokens, (vocab, width) = len(rows.hidden), head_weight.shape
    # At most as many elements as in the forward pass.
    elements = min(_tile_elements(head_weight), ctx.chunk_tokens * vocab)
    tile_tokens = max(1, min(tokens, _tile_tokens(head_weight), elements))
    tile_vocab = max(1, min(vocab, elements // tile_tokens))
    precision = _precision(head_weight)
    is_exact = precision == head_weight.dtype
    kernels = _kernels(head_weight) if ctx.cap is None else None
    logits = head_weight.new_empty(tile_tokens * tile_vocab)
    # The gradient of a bfloat16 head is summed in float32 and rounded once.
    scratch = torch.empty(tile_vocab, width, dtype=precision, device=head_weight.device) if not is_exact else None
    for low in range(0, vocab, tile_vocab):
        high = min(low + tile_vocab, vocab)
        head = head_weight[low:high]
        if grad_head is not None:
            grad_tile = grad_head[low:high] if is_exact else scratch[: high - low]
            grad_tile.zero_()
        for start in range(0, tokens, tile_tokens):
            part = rows.part(start, min(start + tile_tokens, tokens))
            tile = logits[: len(part.hidden) * (high - low)].view(len(part.hidden), high - low)
            torch.mm(part.hidden, head.t(), out=tile)
            if kernels is not None:
                slope = kernels.logit_gradient_(
                    tile,
                    part.token_ids,
                    low,
                    1 / ctx.temperature,
                    part.border if ctx.is_pruned else None,
                    part.log_total,
                    part.entropy,
                    part.sum_squared_probs,
                    (part.slope_logprob, part.slope_entropy, part.slope_sum_squared),
                )
            else:
                values = capped(tile.to(precision), ctx.cap)
                bend = None if ctx.cap is None else 1 - (values / ctx.cap).square()
                slope = _logit_gradient(values, part, low, ctx.temperature, ctx.is_pruned)
                slope = slope if bend is None else slope.mul_(bend)
                slope = slope.to(head.dtype)
            if grad_hidden is not None:
                _add_product(grad_hidden[start : start + tile_tokens], slope, head)
            if grad_head is not None:
                _add_product(grad_tile, slope.t(), part.hidden)
        if grad_head is not None and not is_exact:
            grad_head[low:high] = grad_tile


def _logit_gradient(logits: Tensor, rows: _Rows, low: int, temperature: float, is_pruned: bool) -> Tensor:
    """Computes the gradient of the (capped) logits for the tile whose first vocabulary id is `low`, in place."""
    if temperature != 1:
        logits.div_(temperature)
    # The sampled token's column in this tile, if it is in this tile.
    column = rows.token_ids - low
    is_here = (column >= 0) & (column < logits.shape[1])
    column = column.clamp(0, logits.shape[1] - 1)[:, None]
    is_unsafe = None
    if is_pruned:
        is_unsafe = logits < rows.border[:, None]
        # The sampled token belongs to S at its position; elsewhere `column` is clamped and must change nothing.
        is_unsafe.scatter_(-1, column, is_unsafe.gather(-1, column) & ~is_here[:, None])
    logits.sub_(rows.log_total[:, None])  # log-probabilities
    factor = _factor(logits, rows)
    slope = logits.mul_(LOG2_E).exp2_()
    if is_unsafe is not None:
        slope.masked_fill_(is_unsafe, 0.0)
    here = rows.slope_logprob.masked_fill(~is_here, 0.0)[:, None]
    return slope.mul_(factor).scatter_add_(-1, column, here)


def _factor(logprobs: Tensor, rows: _Rows) -> Tensor:
    """Returns -g_logprob - g_entropy (log p + H) + 2 g_squares (p - Q): the gradient of a logit divided by its p."""
    factor = -rows.slope_logprob[:, None]
    if rows.slope_entropy is not None:
        factor = factor - rows.slope_entropy[:, None] * (logprobs + rows.entropy[:, None])
    if rows.slope_sum_squared is not None:
        # p - Q; the caller computes p again afterwards, in place.
        excess = (logprobs * LOG2_E).exp2() - rows.sum_squared_probs[:, None]
        factor = factor + 2 * rows.slope_sum_squared[:, None] * excess
    return factor


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Computes total += left @ right, in float32 even if the factors are narrower."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)


def capped(logits: Float[Tensor, "*batch vocab"], cap: float | None) -> Float[Tensor, "*batch vocab"]:
    """Returns cap tanh(logits / cap), the logits of a model with a soft cap; without a cap, the same tensor."""
    return logits if cap is None else cap * torch.tanh(logits / cap)


def _precision(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _kernels(tensor: Tensor) -> ModuleType | None:
    """Returns the fused passes on a GPU with Triton, else None; also None for float64, which only tests use."""
    if not tensor.is_cuda or tensor.dtype == torch.float64 or importlib.util.find_spec("triton") is None:
        return None
    from stages.algorithms import token_statistics_kernels

    return token_statistics_kernels


def _usual_chunk_tokens(hidden: Tensor, vocab: int) -> int:
    """Returns enough tokens that reading the head once per chunk costs little compared to the product, but never most
    of them."""
    # In float32: 1 GiB on a GPU, 128 MiB on a CPU.
    elements = 1 << 28 if hidden.is_cuda else 1 << 25
    return max(1, min(elements // vocab, max(64, len(hidden) // 8)))


def _block_elements(tensor: Tensor) -> int:
    """Returns the number of logits that stay in a CPU's cache during the passes of the softmax."""
    return 1 << 28 if tensor.is_cuda else 1 << 21


def _tile_elements(tensor: Tensor) -> int:
    """Returns the number of logits of a backward tile, which stay in the cache between the products."""
    return 1 << 27 if tensor.is_cuda else 1 << 20


def _tile_tokens(tensor: Tensor) -> int:
    """Returns the number of tokens of a backward tile; the rest of its size is its part of the vocabulary."""
    return 8192 if tensor.is_cuda else 1024


# ------------------------------------------------------------------------------------------ vocabulary pruning
def safe_vocabulary(logits: Float[Tensor, "*batch vocab"], log_threshold: float) -> Bool[Tensor, "*batch vocab"]:
    """Returns True for the tokens with z_v >= z_max + log_threshold; log_threshold = log rho <= 0, in nats.

    The likeliest token and its ties are always in it; -inf keeps everything. ValueError on a threshold above 0.
    """
    if not log_threshold <= 0:
        raise ValueError(f"log_threshold must be at most 0, not {log_threshold}: it is log(p / p_max)")
    return logits >= logits.amax(-1, keepdim=True) + log_threshold


def likeliest_tokens(logprobs: Float[Tensor, "tokens vocab"], count: int) -> Float[Tensor, "tokens columns"]:
    """Returns log-probs of the `count` likeliest tokens, then their ids, [tokens, 2 * count], float32.

    float32 holds every id below 2^24.
    """
    values, ids = logprobs.topk(count, dim=-1)
    return torch.cat([values.float(), ids.float()], dim=-1)


def pruned_logprobs(
    logits: Float[Tensor, "batch tokens vocab"], token_ids: Int[Tensor, "batch tokens"], log_threshold: float
) -> tuple[Float[Tensor, "batch tokens"], Bool[Tensor, "batch tokens"]]:
    """Returns log-probabilities of `token_ids` renormalised over the safe vocabulary, and which of them are outside it.

    Never -inf: a token outside S counts as a member at its position (deviation 1). Gradients flow only to the logits of
    members. The plain version of `token_statistics`, which does not store the logits.
    """
    chosen = token_ids[..., None]
    is_safe = safe_vocabulary(logits.detach(), log_threshold)
    outside = ~is_safe.gather(-1, chosen)[..., 0]
    # Gradients reach only the logits of members.
    kept = torch.where(is_safe.scatter(-1, chosen, True), logits, -torch.inf)
    return logits.gather(-1, chosen)[..., 0] - kept.logsumexp(-1), outside
