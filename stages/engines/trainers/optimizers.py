"""The optimizers of a model: AdamW alone, or Muon on the matrices of its layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stages.engines.trainers.muon import Float32Muon
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
