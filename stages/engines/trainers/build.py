"""The trainer that section `trainer` describes."""

from __future__ import annotations

from stages.engines.trainers.params import AdamwParams, DeepspeedTrainerParams, MuonParams, TorchTrainerParams
from stages.engines.trainers.protocol import TrainedModel, Trainer
from stages.foundations.params import chosen
from stages.observe.quick_imports import quick_imports


def build_trainer(
    params: TorchTrainerParams | DeepspeedTrainerParams,
    optimizer: AdamwParams | MuonParams,
    max_gradient_norm: float,
    model: TrainedModel,
) -> Trainer:
    """Returns the trainer that `params` describes, for `model`."""
    match chosen("trainer", params):
        case TorchTrainerParams():
            with quick_imports():
                from stages.engines.trainers.torch_trainer import TorchTrainer

            return TorchTrainer(params, optimizer, max_gradient_norm, model)
        case DeepspeedTrainerParams():
            from stages.engines.trainers.deepspeed_trainer import DeepspeedTrainer

            return DeepspeedTrainer(params, optimizer, max_gradient_norm, model)
