"""Rewards that shape the length of a response, and discounted sums of rewards per token.

Sources: DAPO (arXiv 2503.14476, equation 13) for the soft overlong punishment; Demystifying Long CoT
(arXiv 2502.03373, sections 4.2 to 4.4) for the cosine reward, the repetition penalty and a discount for each reward
stream; its code at eddycmu/demystify-long-cot e90cf9b3, `openrlhf/reward/{cosine,repetition}.py`.

Deviations:
1. The punishment stops at -1 past `max_tokens` as in the paper; DAPO's code lets it fall further.
2. The cosine reward runs from r0 at length 0 to rL at `max_tokens`, as in the code and as intended. The paper's
   CosFn(t, T, min, max), taken literally, swaps the two.
3. A response counts as exceeded at `tokens >= max_tokens`; the paper's code already does so 16 tokens earlier.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Float, Int, Real, Shaped
    from torch import Tensor


def soft_overlong_punishment(tokens: int, max_tokens: int, buffer_tokens: int) -> float:
    """Punishment in [-1, 0] added to the reward of a response of `tokens` tokens (DAPO).

    0 up to max_tokens - buffer_tokens, then linear to -1 at max_tokens, then -1. A buffer of 0 gives a step after
    max_tokens. ValueError when the buffer is negative or larger than max_tokens.
    """
    if not 0 <= buffer_tokens <= max_tokens:
        raise ValueError(f"buffer_tokens must be in 0..max_tokens, not {buffer_tokens} with max_tokens {max_tokens}")
    if tokens > max_tokens:
        return -1.0
    # Tokens inside the buffer, negative before it.
    over = tokens - (max_tokens - buffer_tokens)
    return -over / buffer_tokens if over > 0 else 0.0


def cosine_length_reward(
    is_correct: bool,
    tokens: int,
    max_tokens: int,
    r0_correct: float = 2.0,
    rL_correct: float = 1.0,
    r0_wrong: float = -10.0,
    rL_wrong: float = 0.0,
    exceeded: float = -10.0,
) -> float:
    """Reward that falls with length when correct and rises with it when wrong, on half a cosine (Demystify).

    r(L) = rL + 0.5 (r0 - rL) (1 + cos(pi L / max_tokens)); `exceeded` from max_tokens on, for any verdict. The defaults
    are the paper's. ValueError on negative tokens or a max_tokens that is not positive.
    """
    if tokens < 0 or max_tokens <= 0:
        raise ValueError(f"tokens must be >= 0 and max_tokens > 0, not {tokens} and {max_tokens}")
    if tokens >= max_tokens:
        return float(exceeded)
    # A correct answer should be short; a wrong one should have more thinking. So the defaults fall from 2 to 1 and rise
    # from -10 to 0.
    at_zero, at_limit = (r0_correct, rL_correct) if is_correct else (r0_wrong, rL_wrong)
    return at_limit + 0.5 * (at_zero - at_limit) * (1 + math.cos(math.pi * tokens / max_tokens))


def ngram_repetition_penalty(
    token_ids: Int[Tensor, " tokens"] | Sequence[int], n: int = 40, penalty: float = -0.05
) -> Float[Tensor, " tokens"]:
    """Reward per token: `penalty` on each token of every n-gram that occurred earlier in the response, else 0.

    The penalty is set, not added, where repeated n-grams overlap. The first occurrence is free. A response shorter
    than n + 1 tokens has none. float32, on the CPU. ValueError when n < 1.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")
    import torch  # imported here: the hub of an asynchronous round gives outcome rewards without torch

    ids = array("q", token_ids.tolist() if isinstance(token_ids, torch.Tensor) else token_ids)
    text = ids.tobytes()  # equal byte slices are equal n-grams, and hash faster than tuples
    width = ids.itemsize
    rewards = torch.zeros(len(ids), dtype=torch.float32)
    seen: set[bytes] = set()
    for start in range(len(ids) - n + 1):
        ngram = text[start * width : (start + n) * width]
        if ngram in seen:
            # Set, not added: a token in forty repeated n-grams is still penalised once.
            rewards[start : start + n] = penalty
        seen.add(ngram)
    return rewards


def discounted_to_go(
    rewards: Real[Tensor, "batch tokens"], response_mask: Shaped[Tensor, "batch tokens"], gamma: float
) -> Float[Tensor, "batch tokens"]:
    """Discounted sum of the rewards from each token to the end of its response, 0 outside the mask.

    G_t = r_t + gamma * G_{t'}, t' the next token inside the mask: tokens outside it (padding, tool output) carry no
    reward and cost no discount. One call computes one stream; the caller adds streams with other gammas. Sums are in
    float64; the result has the type of the rewards (float32 for integers). ValueError when gamma is not in [0, 1].
    """
    import torch

    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must be in [0, 1], not {gamma}")
    mask = response_mask.bool()
    # float64: with gamma near 1 thousands of terms are added.
    total = torch.where(mask, rewards.double(), 0.0)
    # 1 outside the mask, so that padding and tool output pass a return on unchanged.
    discount = torch.ones_like(total).masked_fill_(mask, gamma)
    reach = 1
    # Doubling: after each turn `total[t]` covers `2 * reach` positions, and `discount[t]` applies to those after them.
    while reach < total.shape[1]:
        total[:, :-reach] += discount[:, :-reach] * total[:, reach:]
        discount = torch.cat([discount[:, :-reach] * discount[:, reach:], discount[:, -reach:]], dim=1)
        reach *= 2
    result_type = rewards.dtype if rewards.is_floating_point() else torch.float32
    return torch.where(mask, total, 0.0).to(result_type)
