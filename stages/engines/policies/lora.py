"""LoRA with peft: the policy is frozen, and two thin matrices are learned for each target matrix of its layers.

The output of their product is added to the target's output. Trainers, optimizers and checkpoints have only the thin
matrices. Samplers and saved policies get the merged matrices under the policy's names, so no other module depends on
LoRA. Source: Hu et al. (arXiv 2106.09685); the scale of `rslora`: Kalajdzievski (arXiv 2312.03732).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from stages.engines.policies.language_model import is_rank_0
from stages.engines.trainers.params import LoraParams
from stages.engines.trainers.protocol import Adapters, TrainedModel
from stages.foundations.errors import UserError
from stages.foundations.packages import require_package

ADAPTER = "default"
"""peft's name for the only adapter."""


def with_lora(model: TrainedModel, params: LoraParams, seed: int) -> TrainedModel:
    """Adds LoRA to the model's module in place and returns the model; its outputs are the same until the first update.

    Equal seeds give equal weights on every rank. UserError when peft is not installed, for a target that the model does
    not have, and for a rank that is larger than a target's matrix.
    """
    require_package("peft", "adapter.kind: lora")
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.lora import LoraLayer

    module = model.module
    config = LoraConfig(
        r=params.rank,
        lora_alpha=params.alpha,
        use_rslora=params.rslora,
        lora_dropout=0.0,
        target_modules=_targets(module, params),
    )
    # peft uses torch's global random stream, which is restored afterwards.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, module, ADAPTER)
    layers = [part for part in module.modules() if isinstance(part, LoraLayer)]
    scale = layers[0].scaling[ADAPTER]
    # The loaded weights, because a trainer in mixed precision replaces them with rounded ones. Only rank 0 saves.
    exact = {name: weight.detach() for name, weight in _frozen(module)} if is_rank_0() else {}

    def merged_now() -> Iterator[tuple[str, Tensor]]:
        learned = {name: weight.detach() for name, weight in adapted.named_weights()}
        return merged(_frozen(module), learned, scale)

    @contextmanager
    def off() -> Iterator[None]:
        # Scaling the product by 0 switches the adapter off. peft's own switch would freeze weights of the optimizer.
        for layer in layers:
            layer.scaling[ADAPTER] = 0.0
        try:
            yield
        finally:
            for layer in layers:
                layer.scaling[ADAPTER] = scale

    def save(weights: Mapping[str, Tensor], folder: Path) -> None:
        model.save(dict(merged(exact.items(), weights, scale)), folder)

    adapted = replace(model, save=save, adapters=Adapters(merged_now, off))
    return adapted


def merged(
    frozen: Iterable[tuple[str, Tensor]], learned: Mapping[str, Tensor], scale: float
) -> Iterator[tuple[str, Tensor]]:
    """Yields the policy's weights by the policy's names, one at a time: W + scale * B A for a target, others unchanged.

    `frozen` and `learned` have peft's names. The sum is computed in float32 and rounded to the type of W.
    """
    for name, weight in frozen:
        target = name.removesuffix("base_layer.weight")
        if f"{target}lora_A.{ADAPTER}.weight" in learned:
            down, up = (
                learned[f"{target}lora_{factor}.{ADAPTER}.weight"].to(weight.device, torch.float32) for factor in "AB"
            )
            weight = (weight.float() + scale * (up @ down)).to(weight.dtype)
        yield name.replace(".base_layer.", "."), weight
    # Buffers of the policy are taken from `learned` unchanged.
    yield from ((name, buffer) for name, buffer in learned.items() if ".lora_" not in name)


def _frozen(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((name, weight.detach()) for name, weight in module.named_parameters() if not weight.requires_grad)


def _targets(model: PreTrainedModel, params: LoraParams) -> list[str]:
    """Returns the full names of LoRA's target matrices. The head is not one: the trainer multiplies with it itself."""
    head = model.get_output_embeddings()
    linear = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear) and part is not head}
    known = {name.rpartition(".")[2] for name in linear}
    wanted = known if params.targets == "all_linear" else set(params.targets)
    if not known:
        raise UserError(
            f"adapter.kind lora learns beside linear layers, and {type(model).__name__} has none: leave it out"
        )
    if wanted - known:
        raise UserError(
            f"adapter.targets: {type(model).__name__} has no linear layer {', '.join(sorted(wanted - known))}, it has "
            f"{', '.join(sorted(known))}: name some of these, or set targets: all_linear"
        )
    chosen = [name for name in linear if name.rpartition(".")[2] in wanted]
    smallest = min(chosen, key=lambda name: min(linear[name].weight.shape))
    if params.rank > (side := min(linear[smallest].weight.shape)):
        raise UserError(
            f"adapter.rank {params.rank} is larger than {smallest}, which has a side of {side}: set rank to at most "
            f"{side}, or leave that target out"
        )
    return chosen
