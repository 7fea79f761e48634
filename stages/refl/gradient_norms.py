"""The norm of each part's own gradient, beside that of their sum, which the trainer knows.

Adam hides the weight of a loss: what decides is how large the two gradients are beside each other.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from stages.engines.trainers.protocol import Ranks


class GradientNorms:
    """Listens to the gradients of a network. Holds a copy of them for each part, until `take`."""

    def __init__(self, network: nn.Module) -> None:
        self._part = ""
        self._sums: dict[str, dict[str, Tensor]] = {}
        learnt = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
        self._names = list(learnt)
        for name, weight in learnt.items():
            weight.register_hook(self._listener(name))

    def listen_for(self, part: str) -> None:
        """What comes back from now on belongs to `part`."""
        self._part = part

    def _listener(self, name: str) -> Callable[[Tensor], None]:
        def listen(gradient: Tensor) -> None:
            held = self._sums.setdefault(self._part, {})
            held[name] = held[name] + gradient if name in held else gradient.detach().clone()

        return listen

    def take(self, ranks: Ranks) -> dict[str, float]:
        """`optim/gradient_norm_<part>` of all ranks' batch since the last call, before clipping; collective."""
        # A rank with an image less has heard zeros for another part or for none: it still has to be in every sum.
        parts = sorted({part for own in ranks.gather([*self._sums]) for part in own if part})
        norms = {f"optim/gradient_norm_{part}": self._norm(part, ranks) for part in parts}
        self._sums = {}
        return norms

    def _norm(self, part: str, ranks: Ranks) -> float:
        squares = []
        for name in self._names:
            heard = [own[name] for own in self._sums.values() if name in own]
            if not heard:
                continue  # no part has a gradient for it, on any rank
            own = self._sums.get(part, {}).get(name, torch.zeros_like(heard[0]))
            # What each of many ranks goes back through is its share of the loss times their number.
            whole = ranks.sum_over_ranks(own.float() / ranks.world_size)
            squares.append(whole.square().sum())
        return float(torch.stack(squares).sum().sqrt())
