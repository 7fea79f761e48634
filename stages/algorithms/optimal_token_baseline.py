"""A baseline for each token that minimises the variance of the gradient, from the forward pass alone.

Source: Optimal Token Baseline (arXiv 2602.07078); verl `trainer/ppo/core_algos.py::compute_optimal_token_baseline_
advantage` at 1dda039b. With s2 the squared norm of the gradient of log pi(a) with respect to the logits,
    W_{i,t} = sum_{j <= t} m_{i,j} s2_{i,j} w_{i,j}^2      B_t = sum_i m W G / (sum_i m W + 1e-8)
over the responses i of one group that are still alive at t; the caller's advantage is (G - B) * mask. W accumulates
because the score terms of a response are martingale differences: the squared norm of their sum is, in expectation, the
sum of their squared norms.

Deviations:
1. The tail where one response alone is alive follows `lone_tail`; verl's default is what is "return" here.
2. A group of one is such a tail from its first token on. verl gives it a baseline of 0 whatever the setting, which is
   "return" here.
3. Sums are in float64; the result has the type of `returns`.
"""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

PerToken = Float[Tensor, "batch tokens"]

WEIGHT_EPSILON = 1e-8


def logit_gradient_proxy(logprobs: PerToken, sum_squared_probs: PerToken) -> PerToken:
    """Squared norm of the gradient of log pi(a) with respect to the logits: |e_a - pi|^2 = 1 - 2 p + sum p^2.

    In [0, 2]; values that rounding makes negative are set to 0. Both inputs must come from the distribution that was
    sampled from, the temperature included. Carries no gradient.
    """
    return (1 - 2 * logprobs.detach().exp() + sum_squared_probs.detach()).clamp_min(0.0)


def optimal_token_baseline(
    returns: PerToken,
    response_mask: Shaped[Tensor, "batch tokens"],
    proxy: PerToken,
    group_ids: Int[Tensor, " batch"],
    importance_weights: PerToken | None = None,
    lone_tail: str = "zero",
) -> PerToken:
    """Baseline of each token: the mean return at its position over its group, weighted by accumulated gradient energy.

    `returns` are rewards to go. `importance_weights` are the truncated rollout weights (None: 1). A response's own
    return is part of its baseline (a bias of order 1/N). `lone_tail` rules where one response of the group alone is
    alive: "return" makes its advantage the full return (baseline 0), "zero" makes it 0 (baseline = return). Where
    every alive response was certain of all its tokens so far (W = 0), the baseline is 0. 0 outside the mask; what lies
    there has no influence. ValueError on another `lone_tail`.
    """
    if lone_tail not in ("zero", "return"):
        raise ValueError(f"lone_tail must be 'zero' or 'return', not {lone_tail!r}")
    mask = response_mask.bool()
    energy = proxy.detach().double()
    if importance_weights is not None:
        energy = energy * importance_weights.detach().double().square()
    weight = torch.where(mask, torch.where(mask, energy, 0.0).cumsum(-1), 0.0)  # (batch, tokens)
    value = torch.where(mask, returns.detach().double(), 0.0)
    _, groups = torch.unique(group_ids, return_inverse=True)
    baseline = _group_sum(weight * value, groups) / (_group_sum(weight, groups) + WEIGHT_EPSILON)
    is_lone = _group_sum(mask.double(), groups) == 1
    baseline = torch.where(is_lone, value if lone_tail == "zero" else torch.zeros_like(value), baseline)
    return torch.where(mask, baseline, 0.0).to(returns.dtype)


def _group_sum(values: Tensor, groups: Tensor) -> Tensor:
    """Sum over the responses of each group, given back to each of them: (batch, tokens)."""
    count = int(groups.max()) + 1 if len(groups) else 0
    return values.new_zeros(count, values.shape[1]).index_add_(0, groups, values)[groups]
