"""A critic as a model for trainers: the body of a policy and a head that gives the value of each token.

It starts with the policy's weights and a head of 0, so every value is 0 at first; it shares no parameter with the
policy. The language model's head is left out. verl and OpenRLHF draw the head at random; 0 needs no random number.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from stages.engines.policies.language_model import FILLER, load_to_train, set_up_layers
from stages.engines.policies.packing import ResponseBatch
from stages.engines.policies.statistics import hidden_states, spread
from stages.engines.trainers.params import DeepspeedTrainerParams, TorchTrainerParams
from stages.engines.trainers.protocol import TrainedModel


class ValueHead(nn.Module):
    """One value for each hidden state, in float32: in bfloat16 values would differ by 1 in 256."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, dtype=dtype))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden.float() @ self.weight.float()


class ValueModel(nn.Module):
    """The parts of a critic. A separate module for each, because ZeRO 3 gathers the weights of one when it runs."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.body = model.base_model
        self.head = ValueHead(model.config.get_text_config().hidden_size, model.dtype)


def value_model(
    policy_folder: Path, params: TorchTrainerParams | DeepspeedTrainerParams
) -> TrainedModel[ResponseBatch, Tensor]:
    """Returns the critic that starts from the policy of a folder; its outputs are values [responses, tokens].

    Values are 0 where the batch's mask is 0. UserError when the folder is not a policy.
    """
    model, _, _ = load_to_train(policy_folder, params)
    set_up_layers(model, params)
    module = ValueModel(model)
    ends = (model.get_input_embeddings().weight,)
    return TrainedModel(module, _values, _save, FILLER, ends)


def _values(module: ValueModel, batch: ResponseBatch) -> Tensor:
    return spread(module.head(hidden_states(module.body, batch)), batch)


def _save(weights: Mapping[str, Tensor], folder: Path) -> None:
    save_file(dict(weights), folder / "critic.safetensors")
