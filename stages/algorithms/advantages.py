"""Advantages from the rewards of a group: of whole responses (GRPO, Dr. GRPO, RLOO, OPO and others), or of tokens.

Advantages of tokens use a baseline for each token that lowers the variance of the gradient. It needs only the forward
pass.

Sources: DeepSeekMath (arXiv 2402.03300, section 4.1.2) for `group_normalized`; Dr. GRPO (arXiv 2503.20783) for the same
without the division; Lite PPO (arXiv 2508.08221) and ScaleRL (arXiv 2510.13786, section 3.2); MaxRL (arXiv 2602.02710);
RLOO (arXiv 2402.14740, equation 8); OPO (arXiv 2505.23585, equation 9); Optimal Token Baseline (arXiv 2602.07078). The
docstring of `distilled` names its source. Reference code: verl `trainer/ppo/core_algos.py` at 1dda039b.

The optimal token baseline, with s2 the squared norm of the gradient of log pi(a) with respect to the logits:
    W_{i,t} = sum_{j <= t} m_{i,j} s2_{i,j} w_{i,j}^2      B_t = sum_i m W G / (sum_i m W + 1e-8)
over the responses i of one group that are still alive at t. The caller's advantage is (G - B) * mask. W accumulates
because the score terms of a response are martingale differences: the squared norm of their sum is, in expectation, the
sum of their squared norms. B minimises this sum, not the variance itself. Exact variances for three tokens of a
vocabulary of three, with separate logits in each context: 0.273 with B, 0.281 with the plain mean, 0.268 with the best
baseline. With shared logits they are 0.166, 0.176 and 0.156. t counts tokens inside the mask, so the k-th token of a
policy is compared with the k-th of the others. Tokens that tools wrote in between do not count.

Deviations:
1. A group whose rewards are all equal has advantage exactly 0. Subtracting a rounded mean would leave about 1e-8,
   and dividing that by epsilon (1e-6) would turn it into a visible update.
2. Sums are in float64; the result has the floating type of the rewards or returns (float32 for integer rewards).
3. The tail, where only one response of the group is still alive, follows `lone_tail`; verl's default is "return" here.
4. A group of one is such a tail from its first token on. verl always gives it a baseline of 0, which is "return" here.
"""

import math

import torch
from jaxtyping import Bool, Float, Int, Real, Shaped
from torch import Tensor

# verl's value; it also keeps the quotient finite for groups whose rewards differ only by rounding.
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
    # Before the division: see deviation 1.
    centred = _beyond(mean[groups], values, groups, size)
    if divide_by_std:
        # Sample variance (N - 1), as torch.std has it; `clamp_min` is for groups of one, which the next line
        # overwrites.
        variance = _group_sum(centred.square(), groups, size) / (size - 1).clamp_min(1)
        std = torch.where(size == 1, 1.0, variance.sqrt())
        centred = centred / (std + STD_EPSILON)[groups]
    return centred.to(_result_type(rewards))


def batch_normalized(
    rewards: Real[Tensor, " batch"], group_ids: Int[Tensor, " batch"], deviation_of: str
) -> Float[Tensor, " batch"]:
    """Centres rewards in their group and divides by a sample standard deviation of the whole batch plus 1e-6.

    `deviation_of` "rewards" takes that of all rewards (Lite PPO), "advantages" that of the centred rewards (ScaleRL).
    A group with nearly equal rewards is then not blown up. A group of one: A = R over that deviation. A single response
    has no deviation, and its advantage is its reward.
    """
    centred = group_normalized(rewards, group_ids, divide_by_std=False)
    if len(rewards) < 2:
        return centred
    deviation = {"rewards": rewards, "advantages": centred}[deviation_of].double().std()
    return (centred.double() / (deviation + STD_EPSILON)).to(centred.dtype)


def mean_normalized(rewards: Real[Tensor, " batch"], group_ids: Int[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """Centres rewards in their group and divides by the group's mean (MaxRL): rare successes weigh more.

    A_i = (R_i - mean) / mean, 0 for a group whose mean is not positive. With rewards 1 and 0 its gradient is that of
    the log-likelihood of a correct response. A group of one has advantage 0.
    """
    groups, size = _groups(group_ids)
    values = rewards.double()
    mean = (_group_sum(values, groups, size) / size)[groups]
    centred = _without_rounding(values - mean, values, groups, size)
    return torch.where(mean > 0, centred / mean.clamp_min(1e-30), 0.0).to(_result_type(rewards))


def pass_at_k(is_correct: Bool[Tensor, " batch"], group_ids: Int[Tensor, " batch"], k: int) -> Float[Tensor, " batch"]:
    """Advantages for the reward "one of k responses is correct", over all subsets of k of the group.

    With n responses of which w are wrong, the mean is m = 1 - C(w, k) / C(n, k) and the deviation s = sqrt(m (1 - m)).
    A correct response gets (1 - m) / s, a wrong one (1 - m - C(w - 1, k - 1) / C(n - 1, k - 1)) / s. 0 where s is 0. A
    group of fewer than k responses counts as a whole: k = n. Source: "Pass@k Training"
    (arXiv 2508.10751, equations 14 and 15).
    """
    groups, size = _groups(group_ids)
    wrong = _group_sum((~is_correct).double(), groups, size)
    values = []
    for n, w in zip(size.int().tolist(), wrong.int().tolist(), strict=True):
        chosen = min(k, n)
        mean = 1 - math.comb(w, chosen) / math.comb(n, chosen)
        deviation = math.sqrt(mean * (1 - mean))
        missed = math.comb(w - 1, chosen - 1) / math.comb(n - 1, chosen - 1) if w else 0.0
        values.append([(1 - mean) / deviation, (1 - mean - missed) / deviation] if deviation else [0.0, 0.0])
    of_group = torch.tensor(values, dtype=torch.float64)[groups]
    return torch.where(is_correct, of_group[:, 0], of_group[:, 1]).float()


def leave_one_out(rewards: Real[Tensor, " batch"], group_ids: Int[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """Subtracts from each reward the mean of the other rewards of its group (RLOO).

    A_i = R_i - mean_{j != i} R_j = N / (N - 1) * (R_i - mean). A group of one has baseline 0, so A = R.
    """
    groups, size = _groups(group_ids)
    values = rewards.double()
    # The mean of the others without a loop: the group's sum minus the reward itself, over N - 1.
    others = (_group_sum(values, groups, size)[groups] - values) / (size - 1).clamp_min(1)[groups]
    return _beyond(others, values, groups, size).to(_result_type(rewards))


def length_weighted(
    rewards: Real[Tensor, " batch"], lengths: Real[Tensor, " batch"], group_ids: Int[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Subtracts the group's mean reward weighted by response length in tokens (OPO).

    A_i = R_i - sum_j L_j R_j / sum_j L_j. A group of one has baseline 0, so A = R (as verl has it; the formula
    alone would give 0). A group whose lengths are all 0 falls back to the plain mean.
    """
    groups, size = _groups(group_ids)
    values = rewards.double()
    weights = lengths.double()
    # Lengths that are all 0 would divide by 0.
    is_empty = _group_sum(weights, groups, size) == 0
    weights = torch.where(is_empty[groups], 1.0, weights)
    baseline = _group_sum(weights * values, groups, size) / _group_sum(weights, groups, size)
    return _beyond(baseline[groups], values, groups, size).to(_result_type(rewards))


def _groups(group_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Index of each response's group, 0 to the number of groups, and the size of each group."""
    _, groups, size = torch.unique(group_ids, return_inverse=True, return_counts=True)
    return groups, size


def _group_sum(values: Tensor, groups: Tensor, size: Tensor) -> Tensor:
    return torch.zeros(size.shape, dtype=values.dtype, device=values.device).index_add_(0, groups, values)


def _beyond(baselines: Tensor, values: Tensor, groups: Tensor, size: Tensor) -> Tensor:
    """Rewards minus their baselines; a group of one has nothing to compare with, and keeps its reward."""
    centred = _without_rounding(values - baselines, values, groups, size)
    return torch.where((size == 1)[groups], values, centred)


def _without_rounding(advantages: Tensor, values: Tensor, groups: Tensor, size: Tensor) -> Tensor:
    """Advantages with exact zeros for the groups whose rewards are all equal."""
    lowest = torch.full(size.shape, torch.inf, dtype=values.dtype, device=values.device)
    lowest = lowest.scatter_reduce(0, groups, values, "amin")
    highest = (-torch.full_like(lowest, torch.inf)).scatter_reduce(0, groups, values, "amax")
    return torch.where((lowest == highest)[groups], torch.zeros_like(advantages), advantages)


def _result_type(rewards: Tensor) -> torch.dtype:
    return rewards.dtype if rewards.is_floating_point() else torch.float32


# ---------------------------------------------------------------------------------- the optimal token baseline
PerToken = Float[Tensor, "batch tokens"]
# The epsilon of the formula above: where no token has weight, the baseline is 0.
WEIGHT_EPSILON = 1e-8


def logit_gradient_proxy(logprobs: PerToken, sum_squared_probs: PerToken) -> PerToken:
    """Squared norm of the gradient of log pi(a) with respect to the logits: |e_a - pi|^2 = 1 - 2 p + sum p^2.

    In [0, 2]; negative values from rounding are set to 0. Compute both inputs from the distribution that was sampled
    from, including its temperature. Carries no gradient.
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
    return is part of its baseline (a bias of order 1/N). `lone_tail` applies where only one response of the group is
    alive: "return" makes its advantage the full return (baseline 0), "zero" makes it 0 (baseline = return).
    The baseline is 0 where W = 0: every alive response was certain of all its tokens so far. Outside the mask the
    result is 0, and values there have no influence.
    """
    mask = response_mask.bool()
    alive = torch.arange(mask.shape[1], device=mask.device) < mask.sum(-1, keepdim=True)
    if not torch.equal(alive, mask):
        # With tokens of a tool in between: without them first, then the baselines back to their places.
        parts = [
            part if part is None else torch.zeros_like(part).masked_scatter_(alive, part[mask])
            for part in (returns, proxy, importance_weights)
        ]
        baseline = optimal_token_baseline(parts[0], alive, parts[1], group_ids, parts[2], lone_tail)
        return torch.zeros_like(returns).masked_scatter_(mask, baseline[alive])
    energy = proxy.detach().double()
    if importance_weights is not None:
        # The weight enters the gradient linearly, so its square enters the variance.
        energy = energy * importance_weights.detach().double().square()
    # The inner `where` keeps padding out of the sum; the outer one sets the result at padding to 0.
    weight = torch.where(mask, torch.where(mask, energy, 0.0).cumsum(-1), 0.0)  # (batch, tokens)
    value = torch.where(mask, returns.detach().double(), 0.0)
    _, groups = torch.unique(group_ids, return_inverse=True)
    baseline = _sum_of_responses(weight * value, groups) / (_sum_of_responses(weight, groups) + WEIGHT_EPSILON)
    # Longer than all others of its group: from here on its only comparison is itself.
    is_lone = _sum_of_responses(mask.double(), groups) == 1
    baseline = torch.where(is_lone, value if lone_tail == "zero" else torch.zeros_like(value), baseline)
    return torch.where(mask, baseline, 0.0).to(returns.dtype)


def distilled(
    policy_logprobs: PerToken,
    teacher_logprobs: PerToken,
    response_mask: Shaped[Tensor, "batch tokens"],
    coefficient: float,
) -> PerToken:
    """On-policy distillation: coefficient * (log p_teacher - log p_policy) at each sampled token, 0 outside the mask.

    Its mean over samples of the policy is minus the reverse KL of the next token, KL(policy || teacher). So it has no
    baseline, and later tokens do not count (discount 0). Source: "On-Policy Distillation" (Thinking Machines Lab, 2025)
    and `incorporate_kl_penalty` of tinker-cookbook's distillation; GKD (arXiv 2306.13649) takes the gradient over the
    whole vocabulary instead. Deviation: under `rl.proximal: recompute` the policy's log-probs are the trainer's, not
    the sampler's.
    """
    # `where`, because a product with 0 would keep a NaN outside the mask.
    return torch.where(response_mask.bool(), coefficient * (teacher_logprobs - policy_logprobs), 0.0)


def _sum_of_responses(values: Tensor, groups: Tensor) -> Tensor:
    """Returns the sum over each group's responses, repeated for each response: (batch, tokens)."""
    count = int(groups.max()) + 1 if len(groups) else 0
    return values.new_zeros(count, values.shape[1]).index_add_(0, groups, values)[groups]
