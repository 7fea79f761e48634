"""The trainer for one or many ranks: DeepSpeed ZeRO.

Runs in a single process, or on every rank that `torchrun` starts. AdamW is torch's, so that updates agree with
`TorchTrainer` up to rounding; nothing is compiled. DeepSpeed averages gradients over ranks but leaves micro-batches to
the caller. The losses here are shares of one sum, so each is multiplied by the number of ranks.

Not bit-exact across numbers of ranks or ZeRO stages: the order of float additions differs. For a fixed number of
ranks on CPU, a run resumed from a checkpoint gives the same bits as an uninterrupted one. A checkpoint can be loaded
with any number of ranks and any ZeRO stage.

The last part locates DeepSpeed's float32 weights and moments of this rank, as `Fragment`s of weights:
- ZeRO 0 keeps all on every rank.
- ZeRO 1 and 2 cut a flat buffer of all weights into one part for each rank, so a weight may be cut anywhere.
- ZeRO 3 cuts each weight.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import torch
from torch import Tensor, nn

from stages.engines.trainers.params import BUCKET_ELEMENTS, AdamwParams, DeepspeedTrainerParams, MuonParams
from stages.engines.trainers.process_group import ProcessGroup
from stages.engines.trainers.protocol import (
    Batch,
    Diagnostics,
    LossFunction,
    Outputs,
    TrainedModel,
    Update,
    add_diagnostics,
    add_up,
)
from stages.engines.trainers.shards import ShardReader, require_written_by, shard_of, write_tensors
from stages.foundations.errors import UserError
from stages.foundations.packages import require_package

LINEAR = torch.nn.functional.linear


class DeepspeedTrainer(Generic[Batch, Outputs]):
    """See `stages.engines.trainers.protocol.Trainer`."""

    def __init__(
        self,
        params: DeepspeedTrainerParams,
        optimizer: AdamwParams | MuonParams,
        max_gradient_norm: float,
        model: TrainedModel[Batch, Outputs],
    ) -> None:
        adamw = _check_params(params, optimizer)
        torch.set_num_threads(params.threads)
        self._group = group = ProcessGroup()
        self.rank, self.world_size = group.rank, group.world_size
        self.broadcast, self.scatter, self.sum_over_ranks = (group.broadcast, group.scatter, group.sum_over_ranks)
        self.gather, self.gather_to_first = group.gather, group.gather_to_first
        self.params, self.max_gradient_norm, self.peak_rate = params, max_gradient_norm, adamw.learning_rate
        self.model = model
        self.model.set_mode(self.model.module, True)
        self._engine = self._build_engine(adamw)
        self.device = self._engine.device

    def _build_engine(self, adamw: AdamwParams) -> Any:
        # Otherwise one line per reduction: DeepSpeed calls collectives by names that torch has deprecated.
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
        os.environ["DS_ACCELERATOR"] = "cuda" if self._group.backend == "nccl" else "cpu"
        import deepspeed

        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        # DeepSpeed's CPU all-reduce would be compiled on first use, which takes minutes and a C++ compiler.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(dist_backend=self._group.backend, verbose=False)
        module = _Pass(self.model)
        is_mixed = self.params.dtype == "mixed"
        exact = {}
        if is_mixed and self.rank == 0:
            # Not copied, because DeepSpeed replaces them with rounded weights.
            exact = {name: weight.detach() for name, weight in self.model.named_parameters()}
        config = _engine_config(self.params, self.max_gradient_norm)
        if self.params.zero_stage == 3:
            _spread(module, config, is_mixed)
        engine, *_ = deepspeed.initialize(
            model=module,
            optimizer=torch.optim.AdamW(
                # With adapters only their weights: DeepSpeed has no state for frozen weights.
                [weight for _, weight in self.model.named_parameters()],
                lr=adamw.learning_rate,
                betas=(adamw.beta1, adamw.beta2),
                weight_decay=adamw.weight_decay,
                foreach=True,
            ),
            config=config,
            dist_init_required=False,
        )
        if is_mixed:
            self._take_exact(engine, exact)
        return engine

    @torch.no_grad()
    def _take_exact(self, engine: Any, exact: dict[str, Tensor]) -> None:
        """Sets the float32 masters, made from rounded weights, to rank 0's `exact` weights, and empties `exact`."""
        shapes = {name: getattr(weight, "ds_shape", weight.shape) for name, weight in self.model.named_parameters()}
        mine = {one.name: one for one in fragments(engine, self.model, self.params.zero_stage)}
        for name, shape in shapes.items():
            weight = torch.empty(shape, device=engine.device)
            if self.rank == 0:
                weight.copy_(exact.pop(name))
            torch.distributed.broadcast(weight, 0)
            if name in mine:
                fragment = mine[name]
                fragment.of(fragment.flat).copy_(weight.flatten()[fragment.start :][: fragment.count])

    def update(
        self, micro_batches: Sequence[Batch], loss: LossFunction[Outputs, Batch], learning_rate_scale: float
    ) -> Update:
        """Makes one optimizer update; see the protocol. ValueError when ranks differ in the number of micro-batches."""
        self._check_counts(len(micro_batches))
        for group in self._engine.optimizer.param_groups:
            group["lr"] = self.peak_rate * learning_rate_scale
        shares: list[Tensor] = []
        shown: list[Mapping[str, Tensor | float]] = []
        for number, micro_batch in enumerate(micro_batches, start=1):
            is_last = number == len(micro_batches)
            self._engine.set_gradient_accumulation_boundary(is_last)
            share, zero = self._share(micro_batch, loss, shown)
            shares.append(share.detach())
            if is_last:
                total, diagnostics = self._sum_over_ranks(*add_up(shares, shown))
                # On every rank, even if its share is finite: DeepSpeed would clear the gradient and skip the step.
                if not math.isfinite(total):
                    share = share + zero * math.nan
            self._engine.backward(share * self.world_size)
        norm = self._step()
        if not (math.isfinite(total) and math.isfinite(norm)):
            raise FloatingPointError(f"loss {total}, gradient norm {norm}: the weights were left as they were")
        return Update(total, norm, diagnostics)

    def _share(
        self, micro_batch: Batch, loss: LossFunction[Outputs, Batch], shown: list[Mapping[str, Tensor | float]]
    ) -> tuple[Tensor, Tensor]:
        """Returns the micro-batch's loss and a zero, both of which depend on the weights; appends its diagnostics."""
        batch = (self.model.filler if micro_batch.is_empty else micro_batch).to(self.device)

        def of_outputs(outputs: Outputs) -> tuple[Tensor, Tensor]:
            tensors = [outputs] if isinstance(outputs, Tensor) else outputs
            zero = sum(tensor.sum() * 0.0 for tensor in tensors if tensor.requires_grad)
            if micro_batch.is_empty:
                return zero, zero
            share, of_batch = loss(outputs, batch)
            shown.append(of_batch)
            return share if share.requires_grad else share + zero, zero

        return self._engine(batch, of_outputs)

    def _step(self) -> float:
        """Takes the optimizer step if the gradient is finite; returns its norm before clipping."""
        if self.params.zero_stage == 0:
            norm = float(nn.utils.clip_grad_norm_(self.model.module.parameters(), self.max_gradient_norm))
            if math.isfinite(norm):
                self._engine.step()
            else:
                self._engine.zero_grad()
            return norm
        self._engine.step()
        return float(self._engine.get_global_grad_norm()) if self._engine.was_step_applied() else math.inf

    def _check_counts(self, count: int) -> None:
        least, most = self._group.extremes(count)
        if most != least or most == 0:
            raise ValueError(f"ranks bring {least} to {most} micro-batches: they must bring the same, at least 1")

    def _sum_over_ranks(self, total: float, diagnostics: Diagnostics) -> tuple[float, Diagnostics]:
        shares = self.gather((total, diagnostics))
        summed: Diagnostics = {}
        for _, shown in shares:
            add_diagnostics(summed, shown)
        return sum(share for share, _ in shares), summed

    @torch.no_grad()
    def evaluate(self, micro_batch: Batch) -> Outputs:
        """Returns the model's outputs without gradient; under ZeRO 3 every rank must call it equally often."""
        # Through a callback, as in `_share`: DeepSpeed would take returned outputs apart.
        outputs: list[Outputs] = []
        self.model.set_mode(self.model.module, False)
        self._engine(micro_batch.to(self.device), outputs.append)
        self.model.set_mode(self.model.module, True)
        return outputs[0]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the live weights, tied tensors once; under ZeRO 3 one at a time, gathered on every rank."""
        yield from self._live_weights() if self.model.adapters is None else self.model.adapters.merged()

    def _live_weights(self) -> Iterator[tuple[str, Tensor]]:
        import deepspeed

        for name, weight in self.model.named_weights():
            # Only a parameter that ZeRO 3 spreads over the ranks has this.
            if hasattr(weight, "ds_id"):
                with deepspeed.zero.GatheredParameters([weight]):
                    gathered = weight.detach().clone()
                yield name, gathered
            else:
                yield name, weight.detach()

    def learned_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the weights at the precision in which they are learned; collective, one at a time."""
        from deepspeed.utils import safe_get_full_fp32_param

        learned = dict(self.model.named_weights())
        for name, weight in self._live_weights():
            master = safe_get_full_fp32_param(learned[name]) if self.params.dtype == "mixed" else None
            yield name, weight if master is None else master.view(weight.shape)

    def save_model(self, folder: Path) -> None:
        """Writes the model in float32 on rank 0."""
        weights = {}
        for name, weight in self.learned_weights():
            if self.rank == 0:
                # A copy: ZeRO keeps all weights in one buffer.
                weights[name] = weight.to("cpu", torch.float32, copy=True)
        if self.rank == 0:
            self.model.save(weights, folder)
        self._group.wait_for_all()

    def save_checkpoint(self, folder: Path) -> dict[str, str]:
        """Writes this rank's fragments into `folder`, which must be the same on all ranks; see the protocol."""
        zero_stage, tensors = self.params.zero_stage, dict[str, Tensor]()
        for name, buffer in self._buffers():
            tensors[f"buffer/{name}/0"] = buffer.flatten()
        if zero_stage or self.rank == 0:
            for one in fragments(self._engine, self.model, zero_stage):
                state = optimizer_state(self._engine, one, self.model, zero_stage)
                tensors[f"weight/{one.name}/{one.start}"] = one.of(one.flat)
                tensors |= {f"{key}/{one.name}/{one.start}": one.of(state[key]) for key in MOMENTS}
                tensors[f"step/{one.name}/{one.start}"] = state["step"].reshape(1)
        name = shard_of(self.rank)
        digest = write_tensors(folder / name, tensors)
        if self.rank == 0:
            (folder / "trainer.json").write_text(json.dumps(self._checkpoint_layout()))
        self._group.wait_for_all()
        return {name: digest}

    @torch.no_grad()
    def load_checkpoint(self, folder: Path) -> None:
        """Restores what any number of ranks wrote at any ZeRO stage; see the protocol."""
        require_written_by("deepspeed", folder, "trainer.json")
        written = json.loads((folder / "trainer.json").read_text())
        is_same = written == self._checkpoint_layout()
        zero_stage = self.params.zero_stage
        # With the same layout, this rank's shard has all it needs. ZeRO 0 has written one shard for all.
        pattern = shard_of(self.rank) if is_same and zero_stage else "rank-*.safetensors"
        with ShardReader(folder, pattern) as shards:
            for name, buffer in self._buffers():
                shards.read(f"buffer/{name}", 0, buffer.view(-1))
            for one in fragments(self._engine, self.model, zero_stage):
                state = optimizer_state(self._engine, one, self.model, zero_stage)
                shards.read(f"weight/{one.name}", one.start, one.of(one.flat))
                for key in MOMENTS:
                    shards.read(f"{key}/{one.name}", one.start, one.of(state[key]))
                state["step"].fill_(shards.first(f"step/{one.name}"))
        use_fragments(self._engine, zero_stage)

    @torch.no_grad()
    def reset_optimizer(self) -> None:
        """Sets the state of this rank's fragments to zero; see the protocol."""
        for one in fragments(self._engine, self.model, self.params.zero_stage):
            state = optimizer_state(self._engine, one, self.model, self.params.zero_stage)
            for key in MOMENTS:
                one.of(state[key]).zero_()
            state["step"].zero_()

    def _buffers(self) -> Iterator[tuple[str, Tensor]]:
        parameters = {name for name, _ in self.model.module.named_parameters()}
        return ((name, buffer) for name, buffer in self.model.named_weights() if name not in parameters)

    def _checkpoint_layout(self) -> dict[str, int | str]:
        return {"ranks": self.world_size, "zero_stage": self.params.zero_stage}

    def close(self) -> None:
        """Frees the engine; leaves the process group if this trainer set it up.

        Close a sampler that was made later in the same process first.
        """
        self._engine.destroy()
        # ZeRO 3 has replaced this function, for every model of this process, with one that rounds differently.
        torch.nn.functional.linear = LINEAR
        del self._engine, self.model
        self._group.leave()


class _Pass(nn.Module):
    """The model as DeepSpeed sees it: forward pass and loss in one.

    DeepSpeed takes apart the outputs of a module to attach hooks. So the loss is computed in here, from whole outputs.
    """

    def __init__(self, model: TrainedModel) -> None:
        super().__init__()
        self.module, self._forward = model.module, model.forward

    def forward(self, batch: Batch, of_outputs: Callable[[Outputs], Any]) -> Any:
        return of_outputs(self._forward(self.module, batch))


def _spread(module: nn.Module, config: Mapping[str, Any], is_mixed: bool) -> None:
    """Gives each rank its part of one weight after the other.

    `deepspeed.initialize` would first move the whole model to every GPU: 65 GB for 32 billion parameters in bfloat16.
    Here a GPU holds its parts and the one weight that is being split.
    """
    import deepspeed

    if is_mixed:
        for weight in module.parameters():
            weight.data = weight.data.to(torch.bfloat16)
    device = deepspeed.zero.Init(module=module, config_dict_or_path=dict(config)).local_device
    # Buffers are not split, and nothing moves them after this.
    for buffer in module.buffers():
        buffer.data = buffer.data.to(device)


def _check_params(params: DeepspeedTrainerParams, optimizer: AdamwParams | MuonParams) -> AdamwParams:
    """Returns the optimizer's params; UserError for combinations that DeepSpeed does not support."""
    require_package("deepspeed", "trainer.kind: deepspeed")
    if isinstance(optimizer, MuonParams):
        raise UserError(
            "optimizer.kind is muon, which DeepSpeed does differently from torch: set `optimizer.kind: adamw`, "
            "or train with `trainer.kind: torch`"
        )
    if params.zero_stage == 0 and params.dtype != "float32":
        raise UserError("trainer.zero_stage 0 keeps no float32 master weights: set zero_stage: 1 for dtype: mixed")
    if params.zero_stage == 0 and params.offload_optimizer:
        raise UserError("trainer.offload_optimizer needs ZeRO: set zero_stage to 1, 2 or 3")
    return optimizer


def _engine_config(params: DeepspeedTrainerParams, max_gradient_norm: float) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": params.zero_stage,
        "reduce_bucket_size": BUCKET_ELEMENTS,
        "allgather_bucket_size": BUCKET_ELEMENTS,
    }
    if params.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        # DeepSpeed's CPU optimizer needs a compiler.
        "zero_force_ds_cpu_optimizer": False,
        # ZeRO 0 is clipped in `_step`.
        "gradient_clipping": max_gradient_norm if params.zero_stage else 0.0,
        # Never: progress is printed by the stage.
        "steps_per_print": sys.maxsize,
    }
    if params.dtype == "mixed":
        config["bf16"] = {"enabled": True}
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    return config


MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's moments, by torch's names."""


@dataclass(frozen=True)
class Fragment:
    """A part of a weight whose state this rank keeps."""

    name: str
    start: int
    """Its first element in the flattened weight."""
    count: int
    flat: Tensor
    """The tensor that the optimizer updates: its state belongs to the whole of it."""
    offset: int
    """Start of the fragment in `flat`."""

    def of(self, tensor: Tensor) -> Tensor:
        """Returns the fragment in a tensor with the shape of `flat`."""
        return tensor.view(-1)[self.offset : self.offset + self.count]


def fragments(engine: Any, model: TrainedModel, zero_stage: int) -> Iterator[Fragment]:
    """Yields the fragments that this rank must write; under ZeRO 0 every rank has all."""
    zero = engine.optimizer
    for name, weight in model.module.named_parameters():
        if not weight.requires_grad:
            continue
        if zero_stage == 0:
            yield Fragment(name, 0, weight.numel(), weight.data, 0)
        elif zero_stage == 3:
            number, offset, count = zero.grad_position[zero.get_param_id(weight)]
            start = count * torch.distributed.get_rank()
            # The last rank's part is padded, and for a small weight some ranks have only padding.
            count = min(count, weight.ds_numel - start)
            if count > 0:
                yield Fragment(name, start, count, zero.fp32_partitioned_groups_flat[number], offset)
        elif weight._hp_mapping is not None:
            place, address = weight._hp_mapping, weight._hp_mapping.hp_fragment_address
            flat = _flat_partitions(zero)[place.param_group_index]
            yield Fragment(name, place.lp_fragment_address.start, address.numel, flat, address.start)


def _flat_partitions(zero: Any) -> list[Tensor]:
    """Returns the partitions of ZeRO 1 and 2; DeepSpeed has another optimizer for ZeRO 1 in mixed precision."""
    partitions = getattr(zero, "single_partition_of_fp32_groups", None)
    return zero.fp32_groups_flat_partition if partitions is None else partitions


def optimizer_state(engine: Any, fragment: Fragment, model: TrainedModel, zero_stage: int) -> dict[str, Any]:
    """Returns AdamW's state of the tensor that contains the fragment, and creates it if no step has."""
    if zero_stage == 0:
        owner, states = dict(model.module.named_parameters())[fragment.name], engine.optimizer.state
    else:
        owner, states = fragment.flat, engine.optimizer.optimizer.state
    state = states[owner]
    # Before the first step AdamW has no state, but checkpoints must be written and read.
    for moment in MOMENTS:
        state.setdefault(moment, torch.zeros_like(fragment.flat))
    state.setdefault("step", torch.tensor(0.0))
    return state


def use_fragments(engine: Any, zero_stage: int) -> None:
    """Updates the computing weights from the changed fragments; collective."""
    zero = engine.optimizer
    if zero_stage in (1, 2):
        zero.update_lp_params()
    elif zero_stage == 3:
        zero._partition_all_parameters()
        for number in range(len(zero.fp32_partitioned_groups_flat)):
            zero._reassign_or_swap_out_partitioned_parameters(number)
        # These weights are too small to be spread: each rank has a whole copy, made from the parts.
        if zero.persistent_parameters:
            zero.persistent_parameters[0].all_gather(zero.persistent_parameters)
