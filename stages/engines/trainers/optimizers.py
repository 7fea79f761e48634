"""The optimizers of a model: AdamW alone, or Muon on the matrices of its layers."""

from __future__ import annotations

import torch
from torch import Tensor

from stages.engines.trainers.model import TrainedModel
from stages.engines.trainers.params import AdamwParams, MuonParams
from stages.foundations.errors import UserError


def build_optimizers(model: TrainedModel, params: AdamwParams | MuonParams) -> list[torch.optim.Optimizer]:
    """AdamW alone, or Muon on the layers' matrices beside AdamW on the network's ends and what is no matrix."""
    weights = list(model.module.parameters())
    if isinstance(params, AdamwParams):
        return [_adamw(weights, params.learning_rate, params, params.weight_decay)]
    ends = {id(weight) for weight in model.ends}
    matrices = [weight for weight in weights if weight.ndim == 2 and id(weight) not in ends]
    rest = [weight for weight in weights if weight.ndim != 2 or id(weight) in ends]
    if not matrices:
        raise UserError(
            "optimizer.kind is muon, but no layer of the model is a matrix: set `optimizer.kind: adamw`"
        )
    muon = torch.optim.Muon(matrices, lr=params.learning_rate, weight_decay=params.weight_decay)
    return [muon, *([_adamw(rest, params.adamw_learning_rate, params, 0.0)] if rest else [])]


def _adamw(
    weights: list[Tensor], rate: float, params: AdamwParams | MuonParams, weight_decay: float
) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        weights, lr=rate, betas=(params.beta1, params.beta2), weight_decay=weight_decay, foreach=True
    )
