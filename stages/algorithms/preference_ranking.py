"""The pairwise loss of a reward model, and the pairs that a ranking with ties gives.

Source: ImageReward (arXiv 2304.05977, equation 1); `train/src/ImageReward.py` at c1392c6d writes the same loss as a
two-way cross entropy.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Real
from torch import Tensor


def pairwise_ranking_loss(
    better: Float[Tensor, " pairs"],
    worse: Float[Tensor, " pairs"],
    weights: Float[Tensor, " pairs"] | None = None,
) -> Float[Tensor, ""]:
    """Mean over pairs of -log sigmoid(better - worse), of the scores of the preferred and the other image.

    weights: of the pairs in that mean; None is 1 for each. log 2 for equal scores; 0 with a zero gradient without
    pairs. Finite for any finite difference.
    """
    losses = torch.nn.functional.softplus(worse - better)
    if weights is None:
        return losses.sum() / max(len(better), 1)
    total = float(weights.sum())
    return (losses * weights).sum() / (total or 1.0)


def pairs_from_ranking(ranks: Sequence[float] | Real[Tensor, " items"]) -> list[tuple[int, int]]:
    """(better index, worse index) for every two items whose ranks differ, sorted; rank 1 is best, ties give no pair."""
    values = ranks.tolist() if isinstance(ranks, Tensor) else list(ranks)
    return [
        (better, worse)
        for better in range(len(values))
        for worse in range(len(values))
        if values[better] < values[worse]
    ]
