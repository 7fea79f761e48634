"""The trainer for one or many ranks: DeepSpeed ZeRO, NCCL on GPUs and gloo on CPU.

Runs in one process as it is, and on every rank that `torchrun` starts. AdamW is torch's, so that updates agree with
`TorchTrainer` to rounding; nothing is compiled. DeepSpeed averages gradients over ranks and micro-batches are its
caller's to divide; the losses here are shares of one sum, so each is multiplied by the number of ranks.

Not bit-exact across numbers of ranks or ZeRO stages: the order of float additions differs. For a fixed number of
ranks on CPU, a run resumed from a checkpoint gives the same bits as one that was not interrupted.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import logging
import math
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stages.engines.policies.packing import ResponseBatch, TokenSequence, pack
from stages.engines.policies.policy_folders import DTYPES, load_policy
from stages.engines.policies.statistics import PolicyStatistics, policy_statistics, refuse_scaled_logits
from stages.engines.trainers.params import AdamwParams, DeepspeedTrainerParams, MuonParams
from stages.engines.trainers.protocol import Diagnostics, LossFunction, Update, add_diagnostics
from stages.foundations.errors import UserError

TAG = "deepspeed"
BUCKET_ELEMENTS = 100_000_000
"""Gradients reduced at once; DeepSpeed's own 500 million would take 2 GB beside a small policy."""
NO_RESPONSES = pack([TokenSequence([0], [0])])
"""Goes through the model in place of an empty micro-batch: ranks must take part in the same reductions."""
_group_numbers = itertools.count()


class DeepspeedTrainer:
    """See `stages.engines.trainers.protocol.Trainer`."""

    def __init__(
        self,
        params: DeepspeedTrainerParams,
        optimizer: AdamwParams | MuonParams,
        max_gradient_norm: float,
        policy_folder: Path,
    ) -> None:
        adamw = _check_params(params, optimizer)
        torch.set_num_threads(params.threads)
        self._has_gpu = torch.cuda.is_available()
        os.environ["DS_ACCELERATOR"] = "cuda" if self._has_gpu else "cpu"
        self._owns_process_group = _join_process_group(self._has_gpu)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.params, self.max_gradient_norm, self.peak_rate = params, max_gradient_norm, adamw.learning_rate
        model, self.tokenizer = load_policy(policy_folder, DTYPES[params.dtype])
        refuse_scaled_logits(model)
        self.model = model.train()
        if params.gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self._engine = self._build_engine(adamw)
        self.device = self._engine.device

    def _build_engine(self, adamw: AdamwParams) -> Any:
        # One line per reduction otherwise: DeepSpeed calls collectives by names that torch has deprecated.
        warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
        import deepspeed

        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        # Its own CPU all-reduce would be compiled on first use: minutes, and a C++ compiler needed.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(dist_backend="nccl" if self._has_gpu else "gloo", verbose=False)
        module = _StatisticsModule(self.model)
        engine, *_ = deepspeed.initialize(
            model=module,
            optimizer=torch.optim.AdamW(
                module.parameters(),
                lr=adamw.learning_rate,
                betas=(adamw.beta1, adamw.beta2),
                weight_decay=adamw.weight_decay,
                foreach=True,
            ),
            config=_engine_config(self.params, self.max_gradient_norm),
            dist_init_required=False,
        )
        if self.params.zero_stage == 3:
            # The head is used outside its own module, so ZeRO 3 has to be told to gather it.
            deepspeed.zero.register_external_parameter(module, self.model.get_output_embeddings().weight)
        return engine

    def update(
        self, micro_batches: Sequence[ResponseBatch], loss: LossFunction, learning_rate_scale: float
    ) -> Update:
        """One optimizer update; see the protocol. ValueError when ranks bring different numbers of micro-batches."""
        self._check_counts(len(micro_batches))
        for group in self._engine.optimizer.param_groups:
            group["lr"] = self.peak_rate * learning_rate_scale
        total, diagnostics = 0.0, {}
        for number, micro_batch in enumerate(micro_batches, start=1):
            is_last = number == len(micro_batches)
            self._engine.set_gradient_accumulation_boundary(is_last)
            share = self._share(micro_batch, loss, diagnostics)
            total += float(share.detach())
            if is_last:
                total, diagnostics = self._sum_over_ranks(total, diagnostics)
                if not math.isfinite(total):
                    share = share * math.nan  # DeepSpeed clears a broken gradient and takes no step
            self._engine.backward(share * self.world_size)
        norm = self._step()
        if not (math.isfinite(total) and math.isfinite(norm)):
            raise FloatingPointError(
                f"loss {total}, gradient norm {norm}: the weights were left as they were"
            )
        return Update(total, norm, diagnostics)

    def _share(self, micro_batch: ResponseBatch, loss: LossFunction, diagnostics: Diagnostics) -> Tensor:
        """The micro-batch's loss; adds its diagnostics. Always hangs on the weights, by a zero if need be."""
        if not micro_batch.response_mask.any():
            return self._engine(NO_RESPONSES.to(self.device)).logprobs.sum() * 0.0
        batch = micro_batch.to(self.device)
        statistics = self._statistics(batch)
        share, shown = loss(statistics, batch)
        add_diagnostics(diagnostics, shown)
        return share if share.requires_grad else share + statistics.logprobs.sum() * 0.0

    def _step(self) -> float:
        """Takes the optimizer step unless the gradient is not finite; the norm before clipping."""
        if self.params.zero_stage == 0:
            norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self.max_gradient_norm))
            if math.isfinite(norm):
                self._engine.step()
            else:
                self._engine.zero_grad()
            return norm
        self._engine.step()
        return float(self._engine.get_global_grad_norm()) if self._engine.was_step_applied() else math.inf

    def _check_counts(self, count: int) -> None:
        extremes = torch.tensor([count, -count], device=self.device)
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX)
        most, least = int(extremes[0]), -int(extremes[1])
        if most != least or most == 0:
            raise ValueError(
                f"ranks bring {least} to {most} micro-batches: they must bring the same, at least 1"
            )

    def _sum_over_ranks(self, total: float, diagnostics: Diagnostics) -> tuple[float, Diagnostics]:
        shares = self.gather((total, diagnostics))
        summed: Diagnostics = {}
        for _, shown in shares:
            add_diagnostics(summed, shown)
        return sum(share for share, _ in shares), summed

    @torch.no_grad()
    def evaluate(self, micro_batch: ResponseBatch) -> PolicyStatistics:
        """Token statistics without gradient; under ZeRO 3 every rank must call it the same number of times."""
        return self._statistics(micro_batch.to(self.device))

    def _statistics(self, batch: ResponseBatch) -> PolicyStatistics:
        statistics, module = self._engine(batch), self._engine.module
        # ZeRO 3 rebuilds the tuple, without what hangs on it.
        statistics.outside, statistics.divergence = module.outside, module.divergence
        return statistics

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The live weights, tied tensors once; under ZeRO 3 one at a time, gathered on every rank."""
        import deepspeed

        for name, weight in self.model.named_parameters():
            if self.params.zero_stage == 3:
                with deepspeed.zero.GatheredParameters([weight]):
                    gathered = weight.detach().clone()
                yield name, gathered
            else:
                yield name, weight.detach()

    def save_policy(self, folder: Path) -> None:
        """Writes the policy folder on rank 0."""
        weights = {}
        for name, weight in self.named_weights():
            if self.rank == 0:
                weights[name] = weight.cpu().clone()  # ZeRO keeps all weights in one buffer
        if self.rank == 0:
            self.model.save_pretrained(folder, state_dict=weights, safe_serialization=True)
            self.tokenizer.save_pretrained(folder)
        dist.barrier()

    def save_checkpoint(self, folder: Path) -> None:
        """Writes each rank's share into `folder`, which must be the same on all ranks."""
        self._engine.save_checkpoint(str(folder), tag=TAG, save_latest=False)
        if self.rank == 0:
            (folder / "trainer.json").write_text(json.dumps(self._checkpoint_layout()))
        dist.barrier()

    def load_checkpoint(self, folder: Path) -> None:
        """Restores what `save_checkpoint` wrote; UserError when other ranks or another ZeRO stage wrote it."""
        written = json.loads((folder / "trainer.json").read_text())
        if written != self._checkpoint_layout():
            raise UserError(
                f"the checkpoint in {folder} was written by {written}, this run is {self._checkpoint_layout()}: "
                "resume with the same ranks and trainer, or delete the checkpoint to start the stage again"
            )
        self._engine.load_checkpoint(str(folder), tag=TAG)

    def _checkpoint_layout(self) -> dict[str, int | str]:
        return {"ranks": self.world_size, "zero_stage": self.params.zero_stage, "dtype": self.params.dtype}

    def broadcast(self, value: Any) -> Any:
        """Rank 0's `value` on every rank."""
        held = [value]
        dist.broadcast_object_list(held, src=0)
        return held[0]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's `value`, by rank."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """Elementwise sum over the ranks, on the CPU."""
        summed = values.to(self.device, copy=True)
        dist.all_reduce(summed)
        return summed.cpu()

    def close(self) -> None:
        """Frees the engine; leaves the process group unless somebody else had set it up.

        A sampler in the same process that was made later is to be closed before.
        """
        import deepspeed

        self._engine.destroy()
        del self._engine, self.model
        if self._owns_process_group:
            deepspeed.comm.destroy_process_group()


class _StatisticsModule(nn.Module):
    """The policy as DeepSpeed sees it: its output is token statistics, and logits never leave it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.outside: Tensor | None = None
        """`outside` of the last statistics."""
        self.divergence: Tensor | None = None

    def forward(self, batch: ResponseBatch) -> PolicyStatistics:
        statistics = policy_statistics(self.model, batch)
        self.outside, self.divergence = statistics.outside, statistics.divergence
        return statistics


def _check_params(params: DeepspeedTrainerParams, optimizer: AdamwParams | MuonParams) -> AdamwParams:
    """The optimizer's params; UserError for combinations that DeepSpeed does not do as asked."""
    if importlib.util.find_spec("deepspeed") is None:
        raise UserError(
            "trainer.kind is deepspeed, but DeepSpeed is not installed: `make repro RECIPE=NAME` installs it "
            "for recipes that name it; or set `trainer.kind: torch`"
        )
    if isinstance(optimizer, MuonParams):
        raise UserError(
            "optimizer.kind is muon, which DeepSpeed does differently from torch: set `optimizer.kind: adamw`, "
            "or train with `trainer.kind: torch`"
        )
    if params.zero_stage == 0 and params.dtype != "float32":
        raise UserError(
            "trainer.zero_stage 0 keeps no float32 master weights: set zero_stage: 1 for bfloat16"
        )
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
        "zero_force_ds_cpu_optimizer": False,  # the CPU optimizer of DeepSpeed's own needs a compiler
        "gradient_clipping": max_gradient_norm if params.zero_stage else 0.0,  # ZeRO 0 is clipped in `_step`
        "steps_per_print": sys.maxsize,
    }
    if params.dtype == "bfloat16":
        config["bf16"] = {"enabled": True}
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    return config


def _join_process_group(has_gpu: bool) -> bool:
    """Joins the ranks of `torchrun`, or makes a group of one; False when there is a group already."""
    if has_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if dist.is_initialized():
        return False
    backend = "nccl" if has_gpu else "gloo"
    if "RANK" in os.environ:
        # torchrun's store outlives a group: a second trainer would meet the addresses that the first one left.
        store, rank, world_size = next(dist.rendezvous("env://"))
        own_keys = dist.PrefixStore(f"trainer-{next(_group_numbers)}", store)
        dist.init_process_group(backend, store=own_keys, rank=rank, world_size=world_size)
    else:
        os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed asserts that a launcher has set it
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return True
