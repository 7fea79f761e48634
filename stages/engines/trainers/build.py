"""The trainer that section `trainer` describes."""

from __future__ import annotations

from pathlib import Path

from stages.engines.trainers.params import AdamwParams, DeepspeedTrainerParams, MuonParams, TorchTrainerParams
from stages.engines.trainers.protocol import Trainer
from stages.foundations.params import chosen


def build_trainer(
    params: TorchTrainerParams | DeepspeedTrainerParams,
    optimizer: AdamwParams | MuonParams,
    max_gradient_norm: float,
    policy_folder: Path,
) -> Trainer:
    """The trainer that `params` describes, holding the policy of `policy_folder`."""
    match chosen("trainer", params):
        case TorchTrainerParams():
            from stages.engines.trainers.torch_trainer import TorchTrainer

            return TorchTrainer(params, optimizer, max_gradient_norm, policy_folder)
        case DeepspeedTrainerParams():
            from stages.engines.trainers.deepspeed_trainer import DeepspeedTrainer

            return DeepspeedTrainer(params, optimizer, max_gradient_norm, policy_folder)
