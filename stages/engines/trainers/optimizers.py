"""The optimizers of a model: AdamW alone, or Muon on the matrices of its layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stages.engines.trainers.params import AdamwParams, MuonParams
from stages.foundations.errors import UserError


def build_optimizers(
    weights: Sequence[Tensor], ends: Sequence[Tensor], params: AdamwParams | MuonParams
) -> list[torch.optim.Optimizer]:
    """AdamW alone, or Muon on the layers' matrices beside AdamW on the network's `ends` and what is no matrix."""
    if isinstance(params, AdamwParams):
        return [_adamw(weights, params.learning_rate, params, params.weight_decay)]
    outer = {id(weight) for weight in ends}
    matrices = [weight for weight in weights if weight.ndim == 2 and id(weight) not in outer]
    rest = [weight for weight in weights if weight.ndim != 2 or id(weight) in outer]
    if not matrices:
        raise UserError(
            "optimizer.kind is muon, but no layer of the model is a matrix: set `optimizer.kind: adamw`"
        )
    kind = torch.optim.Muon if matrices[0].is_cuda else Float32Muon
    muon = kind(matrices, lr=params.learning_rate, weight_decay=params.weight_decay)
    return [muon, *([_adamw(rest, params.adamw_learning_rate, params, 0.0)] if rest else [])]


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


def _adamw(
    weights: Sequence[Tensor], rate: float, params: AdamwParams | MuonParams, weight_decay: float
) -> torch.optim.AdamW:
    # fused: one kernel on a GPU, where foreach needs temporaries as large as the weights. On a CPU foreach's sums stay.
    is_fused = weights[0].is_cuda
    return torch.optim.AdamW(
        weights,
        lr=rate,
        betas=(params.beta1, params.beta2),
        weight_decay=weight_decay,
        fused=is_fused,
        foreach=not is_fused,
    )


def allocate_state(optimizer: torch.optim.Optimizer) -> None:
    """Makes the optimizer's state now, as it is before the first update.

    torch makes it in the first step: on a GPU the sampler's cache may have taken that memory by then.
    """
    weights = [
        weight for group in optimizer.param_groups for weight in group["params"] if weight.requires_grad
    ]
    rates = [group["lr"] for group in optimizer.param_groups]
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()  # of zero gradients at a rate of 0: moments of zero, and the weights as they were
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for weight in weights:
        weight.grad = None
        if "step" in optimizer.state[weight]:
            optimizer.state[weight]["step"].zero_()
