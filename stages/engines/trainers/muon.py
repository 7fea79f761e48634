"""Muon where bfloat16 is slow."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


class Float32Muon(torch.optim.Muon):
    """Muon for a CPU: torch's, with the Newton-Schulz iteration in the gradient's own type.

    torch's iteration is in bfloat16. A CPU without instructions for that takes 20 to 30 times as long as in float32
    (docs/measurements.md), and what it rounds to differs between CPUs. State and settings are torch's: a checkpoint of
    the one continues with the other. Source: K. Jordan, "Muon: An optimizer for hidden layers in neural networks".
    """

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(weight.grad)
                state["momentum_buffer"].lerp_(weight.grad, 1 - momentum)
                update = weight.grad.lerp(state["momentum_buffer"], momentum)  # Nesterov's
                rows, columns = weight.shape
                weight.mul_(1 - rate * group["weight_decay"])
                weight.add_(_orthogonal(update, group), alpha=-rate * math.sqrt(max(1, rows / columns)))


def _orthogonal(update: Tensor, group: dict[str, Any]) -> Tensor:
    """U S' V^T of an update U S V^T [rows, columns], S' near 1: what Newton-Schulz steps make of S / |S|."""
    a, b, c = group["ns_coefficients"]
    is_tall = update.shape[0] > update.shape[1]
    state = update.T if is_tall else update  # its products with itself are the smaller ones
    state = state / state.norm().clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = state @ state.T
        state = torch.addmm(state, torch.addmm(gram, gram, gram, beta=b, alpha=c), state, beta=a)
    return state.T if is_tall else state
