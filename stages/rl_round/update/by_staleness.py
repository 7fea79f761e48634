"""How much of the older trajectories is learned from: effective sample size and acceptance by staleness.

Staleness is the version of the weights at the start of the update minus the version that drew the response.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

OLDEST = 4
"""Responses this stale and staler ones are counted together."""
_PREFIX = "by_staleness/"


def shares_by_staleness(
    staleness: Tensor, weights: Tensor, before: Tensor, mask: Tensor | None
) -> dict[str, Tensor]:
    """A micro-batch's sums for each staleness, which add up over micro-batches, ranks and updates.

    staleness [responses]; importance weights and the masks before and after the trust region [responses, tokens], 0
    where no gradient is. `mask` None: nothing is masked by a trust region.
    """
    after = before if mask is None else mask
    exact = weights.double() * after
    of_response = {
        "weights": exact.sum(-1),
        "squared_weights": exact.square().sum(-1),
        "tokens": after.sum(-1),
    }
    if mask is not None:
        of_response |= {"responses": before.any(-1), "accepted": after.any(-1)}
    places = torch.arange(OLDEST + 1, device=staleness.device)[:, None] == staleness.clamp(0, OLDEST)
    return {
        f"{_PREFIX}{name}_{place}": (values * chosen).sum()
        for name, values in of_response.items()
        for place, chosen in enumerate(places)
    }


def rates_by_staleness(means: Mapping[str, float]) -> dict[str, float]:
    """The step's diagnostics with rates in the place of those sums; a staleness that the step lacks has none."""
    kept = {name: value for name, value in means.items() if not name.startswith(_PREFIX)}
    for place in range(OLDEST + 1):
        own = {name: means.get(f"{_PREFIX}{name}_{place}", 0.0) for name in _SUMS}
        spread, ending = own["tokens"] * own["squared_weights"], f"staleness_{place}"
        if spread:
            kept[f"importance/effective_sample_fraction_{ending}"] = own["weights"] ** 2 / spread
        if own["responses"]:
            kept[f"trust_region/acceptance_rate_{ending}"] = own["accepted"] / own["responses"]
    return kept


_SUMS = ("weights", "squared_weights", "tokens", "responses", "accepted")
