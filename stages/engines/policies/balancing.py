"""Micro-batches of ranks that wait for each other after every pass: each pass costs all of them about the same.

Ranks meet in each forward and backward pass (ZeRO 3 gathers a layer's weights on all of them at once), so a pass lasts
as long as its costliest micro-batch. First the number of passes is chosen, the smallest that fits; then the passes are
filled one after the other, the costliest sequences first: up to the cost of the longest sequence left, or up to an
equal share of what is left where that is more. In the last pass each sequence goes to the rank with the least to do
(Graham, "Bounds on multiprocessing timing anomalies", 1969: longest processing time first).

What no partition can mend: a rank is never done before the longest sequence is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stages.engines.policies.packing import split_by_tokens
from stages.engines.trainers.protocol import Trainer

ROUNDING = 1 + 1e-9


def groups_of_rank(lengths: Sequence[int], max_tokens: int, trainer: Trainer) -> list[list[int]]:
    """Indices of the sequences in each of this rank's micro-batches, some of which may be empty.

    Every rank gets the same number of them, and none holds more than `max_tokens` unless it is one sequence.
    """
    if trainer.world_size == 1:
        return split_by_tokens(lengths, max_tokens)
    passes = balanced_passes(lengths, max_tokens, trainer.world_size, trainer.model.pair_cost)
    return [groups[trainer.rank] for groups in passes]


def balanced_passes(
    lengths: Sequence[int], max_tokens: int, ranks: int, pair_cost: float
) -> list[list[list[int]]]:
    """Indices by pass and rank; at least one pass. See the module.

    A sequence of t tokens costs t + `pair_cost` t^2: see `TrainedModel.pair_cost`.
    """
    count = max(1, math.ceil(sum(min(length, max_tokens) for length in lengths) / (max_tokens * ranks)))
    costs = [length + pair_cost * length**2 for length in lengths]
    order = sorted(range(len(lengths)), key=lambda index: (-costs[index], index))
    while (passes := _filled(order, lengths, costs, max_tokens, ranks, count)) is None:
        count += 1
    return passes


def _filled(
    left: list[int], lengths: Sequence[int], costs: Sequence[float], max_tokens: int, ranks: int, count: int
) -> list[list[list[int]]] | None:
    """So many passes, or None where they do not hold all; `left` has the costliest first."""
    passes: list[list[list[int]]] = []
    for number in range(count):
        most = math.inf
        if number < count - 1 and left:
            share = sum(costs[index] for index in left) / (ranks * (count - number))
            most = max(costs[left[0]], share) * ROUNDING
        groups: list[list[int]] = [[] for _ in range(ranks)]
        tokens, cost, rest = [0] * ranks, [0.0] * ranks, []
        for index in left:
            fitting = [
                rank
                for rank in range(ranks)
                if not groups[rank]
                or (tokens[rank] + lengths[index] <= max_tokens and cost[rank] + costs[index] <= most)
            ]
            if not fitting:
                rest.append(index)
                continue
            rank = min(fitting, key=cost.__getitem__)
            groups[rank].append(index)
            tokens[rank] += lengths[index]
            cost[rank] += costs[index]
        passes.append(groups)
        left = rest
    return None if left else passes
