"""Advantages of whole responses from the rewards of their group: GRPO, Dr. GRPO, RLOO and OPO.

Sources: DeepSeekMath (arXiv 2402.03300, section 4.1.2) for `group_normalized`; Dr. GRPO (arXiv 2503.20783) for
the same without the division; RLOO (arXiv 2402.14740, equation 8); OPO (arXiv 2505.23585, equation 9).
Reference code: verl `trainer/ppo/core_algos.py` at 1dda039b.

Deviations:
1. A group whose rewards are all equal has advantage exactly 0. Subtracting a rounded mean leaves about 1e-8,
   which the division by epsilon alone (1e-6) would blow up to a visible update.
2. Sums are in float64; the result has the floating type of the rewards (float32 for integer rewards).
"""

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

STD_EPSILON = 1e-6


def group_normalized(
    rewards: Real[Tensor, " batch"], group_ids: Int[Tensor, " batch"], divide_by_std: bool = True
) -> Float[Tensor, " batch"]:
    """Centres rewards in their group and divides by the group's sample standard deviation (N - 1) plus 1e-6.

    A_i = (R_i - mean) / (std + 1e-6), GRPO; `divide_by_std=False` gives R_i - mean, Dr. GRPO.
    Group ids may be any integers in any order. A group of one has no baseline: mean 0 and std 1, so A = R.
    """
    groups, size = _groups(group_ids)
    values = rewards.double()
    mean = _group_sum(values, groups, size) / size
    centred = _without_rounding(values - mean[groups], values, groups, size)
    lone = size == 1
    centred = torch.where(lone[groups], values, centred)
    if divide_by_std:
        variance = _group_sum(centred.square(), groups, size) / (size - 1).clamp_min(1)
        std = torch.where(lone, torch.ones_like(variance), variance.sqrt())
        centred = centred / (std + STD_EPSILON)[groups]
    return centred.to(_result_type(rewards))


def leave_one_out(
    rewards: Real[Tensor, " batch"], group_ids: Int[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Subtracts from each reward the mean of the other rewards of its group (RLOO).

    A_i = R_i - mean_{j != i} R_j = N / (N - 1) * (R_i - mean). A group of one has baseline 0, so A = R.
    """
    groups, size = _groups(group_ids)
    values = rewards.double()
    others = (_group_sum(values, groups, size)[groups] - values) / (size - 1).clamp_min(1)[groups]
    advantages = _without_rounding(values - others, values, groups, size)
    return torch.where((size == 1)[groups], values, advantages).to(_result_type(rewards))


def length_weighted(
    rewards: Real[Tensor, " batch"], lengths: Real[Tensor, " batch"], group_ids: Int[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Subtracts the group's mean reward weighted by response length in tokens (OPO).

    A_i = R_i - sum_j L_j R_j / sum_j L_j. A group of one has baseline 0, so A = R (as verl has it; the formula
    alone would give 0). A group whose lengths are all 0 falls back to the plain mean.
    ValueError on a negative length.
    """
    if bool((lengths < 0).any()):
        raise ValueError(f"lengths are token counts and cannot be negative: {lengths.min().item()}")
    groups, size = _groups(group_ids)
    values = rewards.double()
    weights = lengths.double()
    is_empty = _group_sum(weights, groups, size) == 0
    weights = torch.where(is_empty[groups], torch.ones_like(weights), weights)
    baseline = _group_sum(weights * values, groups, size) / _group_sum(weights, groups, size)
    advantages = _without_rounding(values - baseline[groups], values, groups, size)
    return torch.where((size == 1)[groups], values, advantages).to(_result_type(rewards))


def _groups(group_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Index of each response's group, 0 to the number of groups, and the size of each group."""
    _, groups, size = torch.unique(group_ids, return_inverse=True, return_counts=True)
    return groups, size


def _group_sum(values: Tensor, groups: Tensor, size: Tensor) -> Tensor:
    return torch.zeros(size.shape, dtype=values.dtype, device=values.device).index_add_(0, groups, values)


def _without_rounding(advantages: Tensor, values: Tensor, groups: Tensor, size: Tensor) -> Tensor:
    """Advantages with exact zeros for the groups whose rewards are all equal."""
    lowest = torch.full(size.shape, torch.inf, dtype=values.dtype, device=values.device)
    lowest = lowest.scatter_reduce(0, groups, values, "amin")
    highest = (-torch.full_like(lowest, torch.inf)).scatter_reduce(0, groups, values, "amax")
    return torch.where((lowest == highest)[groups], torch.zeros_like(advantages), advantages)


def _result_type(rewards: Tensor) -> torch.dtype:
    return rewards.dtype if rewards.is_floating_point() else torch.float32
