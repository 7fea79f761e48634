"""float32 weights behind a network that computes in bfloat16."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MasterWeights:
    """The weights in float32, which the optimizer changes, beside their bfloat16 copies in `module`.

    Below half a step of bfloat16, a 512th of a weight, an update of bfloat16 weights is rounded away: at a learning
    rate of 1e-6 nearly all are. So gradients of micro-batches are added up, and moments and updates are kept, in
    float32. The module holds plain bfloat16 parameters, so that it computes what a sampler in bfloat16 computes.
    """

    def __init__(self, module: nn.Module) -> None:
        self._weights: dict[nn.Parameter, nn.Parameter] = {}
        for weight in module.parameters():
            master = nn.Parameter(weight.detach().float().clone(), requires_grad=weight.requires_grad)
            self._weights[weight] = master
            weight.data = weight.detach().to(torch.bfloat16)
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(self._take_gradient)

    def of(self, weight: Tensor) -> Tensor:
        """The float32 master of a parameter of the module; any other tensor itself."""
        return self._weights.get(weight, weight)

    def _take_gradient(self, weight: Tensor) -> None:
        # At once, and not after the backward pass: only one bfloat16 gradient exists at a time.
        master = self._weights[weight]
        if master.grad is None:
            master.grad = weight.grad.float()
        else:
            master.grad += weight.grad
        weight.grad = None

    @torch.no_grad()
    def write_back(self) -> None:
        """Rounds the masters into the module."""
        for weight, master in self._weights.items():
            weight.copy_(master)
