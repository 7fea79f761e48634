"""The norm of each part's own gradient, beside that of their sum, which the trainer knows.

Adam hides the weight of a loss: what decides is how large the two gradients are beside each other.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn


class GradientNorms:
    """Listens to the gradients of a network. Holds a copy of them for each part, until `take`."""

    def __init__(self, network: nn.Module) -> None:
        self._part = ""
        self._sums: dict[str, dict[str, Tensor]] = {}
        for name, weight in network.named_parameters():
            if weight.requires_grad:
                weight.register_hook(self._listener(name))

    def listen_for(self, part: str) -> None:
        """What comes back from now on belongs to `part`."""
        self._part = part

    def _listener(self, name: str) -> Callable[[Tensor], None]:
        def listen(gradient: Tensor) -> None:
            held = self._sums.setdefault(self._part, {})
            held[name] = held[name] + gradient if name in held else gradient.detach().clone()

        return listen

    def take(self) -> dict[str, float]:
        """`optim/gradient_norm_<part>` since the last call, on this rank and before clipping."""
        norms = {
            f"optim/gradient_norm_{part}": float(nn.utils.get_total_norm(list(held.values())))
            for part, held in self._sums.items()
        }
        self._sums = {}
        return norms
