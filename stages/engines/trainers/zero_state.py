"""Where DeepSpeed keeps a rank's part of the training state: the float32 weights and moments of its fragments.

ZeRO 1 and 2 cut a flat buffer of all weights into one part for each rank, so that a weight may be cut anywhere; ZeRO 3
cuts each weight; ZeRO 0 keeps all on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stages.engines.trainers.model import TrainedModel

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Fragment:
    """A part of a weight that this rank keeps the state of."""

    name: str
    start: int
    """Its first element in the flattened weight."""
    count: int
    flat: Tensor
    """What the optimizer steps: its state belongs to this, as a whole."""
    offset: int
    """Of the fragment in `flat`."""

    def of(self, tensor: Tensor) -> Tensor:
        """The fragment in a tensor that is shaped as `flat`."""
        return tensor.view(-1)[self.offset : self.offset + self.count]


def fragments(engine: Any, model: TrainedModel, zero_stage: int) -> Iterator[Fragment]:
    """The fragments that this rank is to write down; under ZeRO 0 every rank has all."""
    zero = engine.optimizer
    for name, weight in model.module.named_parameters():
        if not weight.requires_grad:
            continue
        if zero_stage == 0:
            yield Fragment(name, 0, weight.numel(), weight.data, 0)
        elif zero_stage == 3:
            number, offset, count = zero.grad_position[zero.get_param_id(weight)]
            start = count * torch.distributed.get_rank()
            count = min(count, weight.ds_numel - start)  # the last rank's is padded
            if count > 0:
                yield Fragment(name, start, count, zero.fp32_partitioned_groups_flat[number], offset)
        elif weight._hp_mapping is not None:
            place, own = weight._hp_mapping, weight._hp_mapping.hp_fragment_address
            flat = _flat_partitions(zero)[place.param_group_index]
            yield Fragment(name, place.lp_fragment_address.start, own.numel, flat, own.start)


def _flat_partitions(zero: Any) -> list[Tensor]:
    """Of ZeRO 1 and 2; DeepSpeed has another optimizer for ZeRO 1 in mixed precision."""
    partitions = getattr(zero, "single_partition_of_fp32_groups", None)
    return zero.fp32_groups_flat_partition if partitions is None else partitions


def optimizer_state(engine: Any, fragment: Fragment, model: TrainedModel, zero_stage: int) -> dict[str, Any]:
    """AdamW's state of what the fragment is a part of; made where no step has made it."""
    if zero_stage == 0:
        owner, states = dict(model.module.named_parameters())[fragment.name], engine.optimizer.state
    else:
        owner, states = fragment.flat, engine.optimizer.optimizer.state
    state = states[owner]
    for moment in MOMENTS:
        state.setdefault(moment, torch.zeros_like(fragment.flat))
    state.setdefault("step", torch.tensor(0.0))
    return state


def use_fragments(engine: Any, zero_stage: int) -> None:
    """Makes the weights that compute of the fragments that were changed; collective."""
    zero = engine.optimizer
    if zero_stage in (1, 2):
        zero.update_lp_params()
    elif zero_stage == 3:
        zero._partition_all_parameters()
        for number in range(len(zero.fp32_partitioned_groups_flat)):
            zero._reassign_or_swap_out_partitioned_parameters(number)
        if zero.persistent_parameters:  # too small to be spread
            zero.persistent_parameters[0].all_gather(zero.persistent_parameters)
