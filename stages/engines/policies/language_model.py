"""A policy as a model that trainers learn: its outputs are token statistics, and logits never leave it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from stages.engines.policies.packing import ResponseBatch, TokenSequence, pack
from stages.engines.policies.policy_folders import load_policy, save_policy
from stages.engines.policies.statistics import PolicyStatistics, policy_statistics, refuse_scaled_logits
from stages.engines.trainers.model import TrainedModel
from stages.engines.trainers.params import DeepspeedTrainerParams, TorchTrainerParams


def language_model(
    policy_folder: Path, params: TorchTrainerParams | DeepspeedTrainerParams
) -> TrainedModel[ResponseBatch, PolicyStatistics]:
    """The policy of a folder in float32, with gradient checkpointing where `params` asks for it.

    It is saved as a policy folder again, with its tokenizer. UserError when the folder is not a policy, or one whose
    logits are not head times hidden state.
    """
    model, tokenizer = load_policy(policy_folder, torch.float32)
    refuse_scaled_logits(model)
    if params.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})

    def save(weights: Mapping[str, Tensor], folder: Path) -> None:
        save_policy(model, tokenizer, folder, weights)

    ends = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return TrainedModel(model, policy_statistics, save, pack([TokenSequence([0], [0])]), ends)
