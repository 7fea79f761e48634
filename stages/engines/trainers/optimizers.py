"""The optimizers of a model: AdamW alone, or Muon on the matrices of its layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stages.engines.trainers.params import AdamwParams, MuonParams


def build_optimizers(model: nn.Module, params: AdamwParams | MuonParams) -> list[torch.optim.Optimizer]:
    """AdamW alone, or Muon on the layers' matrices beside AdamW on embeddings, head and vectors."""
    named = list(model.named_parameters())
    if isinstance(params, AdamwParams):
        return [_adamw([weight for _, weight in named], params.learning_rate, params, params.weight_decay)]
    outside = {id(module.weight) for module in (model.get_input_embeddings(), model.get_output_embeddings())}
    matrices = [weight for _, weight in named if weight.ndim == 2 and id(weight) not in outside]
    chosen = {id(weight) for weight in matrices}
    rest = [weight for _, weight in named if id(weight) not in chosen]
    muon = torch.optim.Muon(matrices, lr=params.learning_rate, weight_decay=params.weight_decay)
    return [muon, _adamw(rest, params.adamw_learning_rate, params, 0.0)]


def _adamw(
    weights: list[Tensor], rate: float, params: AdamwParams | MuonParams, weight_decay: float
) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        weights, lr=rate, betas=(params.beta1, params.beta2), weight_decay=weight_decay, foreach=True
    )
