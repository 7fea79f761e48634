"""A policy as a model for trainers: its outputs are token statistics; it never returns logits.

`ReferencePolicy` is the policy that training stays close to: log-probs of given responses, without gradient.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from stages.engines.devices import pick_device
from stages.engines.policies.forward_probe import check_training_forward
from stages.engines.policies.packing import ResponseBatch, TokenSequence, pack
from stages.engines.policies.policy_folders import DTYPES, load_policy, model_without_weights, save_policy
from stages.engines.policies.statistics import PolicyStatistics, policy_statistics, use_varlen_attention
from stages.engines.policies.tokenizers import adopt_prompt, encode_response, load_tokenizer
from stages.engines.trainers.params import DeepspeedTrainerParams, TorchTrainerParams
from stages.engines.trainers.protocol import TrainedModel, Trainer
from stages.foundations.params import ChatPrompt, PlainPrompt

FILLER = pack([TokenSequence([0], [0])])
"""One token to learn, not zero: an empty batch would use no weight, but ranks reduce the gradients of all weights."""


def language_model(
    policy_folder: Path,
    params: TorchTrainerParams | DeepspeedTrainerParams,
    prompt: PlainPrompt | ChatPrompt | None = None,
) -> TrainedModel[ResponseBatch, PolicyStatistics]:
    """Returns the policy of a folder in float32, with gradient checkpointing and compiled layers if `params` says so.

    It is saved as a policy folder again, with its tokenizer. The folder also gets the template of `prompt` and the
    token that ends a response after it, so that other programs prompt and stop as in training. UserError when the
    folder is not a policy, or if training would compute wrong log-probs for it: see `forward_probe`. With many ranks,
    rank 0 measures for all.
    """
    model, tokenizer, device = load_to_train(policy_folder, params)
    if is_rank_0():
        check_training_forward(model, policy_folder, device)
    set_up_layers(model, params)
    if prompt:
        _adopt_prompt(model, tokenizer, prompt)

    def save(weights: Mapping[str, Tensor], folder: Path) -> None:
        save_policy(model, tokenizer, folder, weights)

    ends = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return TrainedModel(model, policy_statistics, save, FILLER, ends, pair_cost=_pair_cost(model))


def _adopt_prompt(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: PlainPrompt | ChatPrompt) -> None:
    adopt_prompt(tokenizer, prompt)
    settings, (*_, end) = model.generation_config, encode_response(tokenizer, "", prompt)
    if settings is None:
        return
    ends = settings.eos_token_id if isinstance(settings.eos_token_id, list) else [settings.eos_token_id]
    if end not in ends:
        settings.eos_token_id = [*(one for one in ends if one is not None), end]


def load_to_train(
    policy_folder: Path, params: TorchTrainerParams | DeepspeedTrainerParams
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, torch.device]:
    """Returns model and tokenizer of a folder, with the attention that training uses, and the trainer's device."""
    # A node holds the weights of a ZeRO 3 policy once, not once for each of its ranks.
    is_spread = isinstance(params, DeepspeedTrainerParams) and params.zero_stage == 3
    if is_spread and not is_rank_0():
        model = model_without_weights(policy_folder, DTYPES[params.dtype])
        tokenizer = load_tokenizer(policy_folder)
    else:
        model, tokenizer = load_policy(policy_folder, torch.float32)
    device = pick_device(getattr(params, "device", "auto"))
    # Before the probe, which must measure the attention that training uses.
    use_varlen_attention(model, device, DTYPES[params.dtype])
    return model, tokenizer, device


def set_up_layers(model: PreTrainedModel, params: TorchTrainerParams | DeepspeedTrainerParams) -> None:
    """Turns on gradient checkpointing and compilation of the layers, if `params` says so."""
    if params.gradient_checkpointing:
        # Reentrant checkpointing needs an input with a gradient, and token ids have none.
        model.gradient_checkpointing_enable({"use_reentrant": False})
    # Only the layers, in one graph: the head is used outside of them, and rows differ in width.
    if params.compile == "body":
        model.base_model.compile(dynamic=True, fullgraph=True)


def is_rank_0() -> bool:
    """Returns True if this process will be the trainer's rank 0."""
    # From the environment: the process group is joined later, when the trainer is built with this model.
    return os.environ.get("RANK", "0") == "0"


def _pair_cost(model: PreTrainedModel) -> float:
    """Returns the cost of a pair of tokens in attention, relative to the other cost of a token.

    Forward and backward pass: causal attention takes 6 x layers x width FLOPs for a pair, the rest 6 x parameters for a
    token. Scores and weighted values are products over the heads' width, for half of the pairs.
    """
    config = model.config.get_text_config()
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return config.num_hidden_layers * config.num_attention_heads * head_size / model.num_parameters()


REFERENCE = "reference.safetensors"


class ReferencePolicy:
    """A frozen policy: that of a folder, from which the round starts, until it takes later weights."""

    def __init__(self, model: PreTrainedModel, device: torch.device) -> None:
        self.device = device
        self.model = model.to(device).eval().requires_grad_(False)

    @classmethod
    def from_folder(cls, folder: Path, dtype: str, device: torch.device) -> ReferencePolicy:
        """Returns the policy in `folder` on `device`, in the dtype that a trainer with this `dtype` computes in."""
        model, _ = load_policy(folder, DTYPES[dtype])
        use_varlen_attention(model, device, model.dtype)
        return cls(model, device)

    @torch.no_grad()
    def logprobs(self, micro_batch: ResponseBatch) -> Tensor:
        """Returns log-probs [responses, tokens] on the CPU, at the batch's temperature; 0 where its mask is 0."""
        return policy_statistics(self.model, micro_batch.to(self.device)).logprobs.cpu()

    @torch.no_grad()
    def take(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copies a trainer's `named_weights`; their precision is already that of this policy."""
        own = self.model.state_dict()
        for name, weight in weights:
            own[name].copy_(weight)

    def save(self, folder: Path) -> None:
        """Writes the weights, tied ones once, so that `load` restores every bit."""
        save_file(dict(self.model.named_parameters()), folder / REFERENCE)

    def load(self, folder: Path) -> None:
        self.take(load_file(folder / REFERENCE).items())

    def close(self) -> None:
        del self.model


class PolicyUnderAdapters:
    """A trainer's policy with its adapters switched off: a reference that needs no second copy of the weights."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def logprobs(self, micro_batch: ResponseBatch) -> Tensor:
        with self.trainer.model.adapters.off():
            return self.trainer.evaluate(micro_batch).logprobs.cpu()

    def close(self) -> None:
        """Does nothing: the model belongs to the trainer."""
