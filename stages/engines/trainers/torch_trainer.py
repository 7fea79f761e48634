"""The trainer for one process and one device, in plain torch. On CPU it is bit-exact for a fixed thread count."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Generic

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from stages.engines.devices import pick_device, tell_slow_bfloat16
from stages.engines.trainers.mixed_precision import MasterWeights
from stages.engines.trainers.model import Batch, Outputs, TrainedModel
from stages.engines.trainers.one_rank import OneRank
from stages.engines.trainers.optimizers import allocate_state, build_optimizers
from stages.engines.trainers.params import AdamwParams, MuonParams, TorchTrainerParams
from stages.engines.trainers.protocol import LossFunction, Update, add_up
from stages.engines.trainers.shards import require_written_by, write_tensors

FILE = "trainer.safetensors"


class TorchTrainer(OneRank, Generic[Batch, Outputs]):
    """See `stages.engines.trainers.protocol.Trainer`."""

    def __init__(
        self,
        params: TorchTrainerParams,
        optimizer: AdamwParams | MuonParams,
        max_gradient_norm: float,
        model: TrainedModel[Batch, Outputs],
    ) -> None:
        torch.set_num_threads(params.threads)
        self.device = pick_device(params.device)
        self.model = model
        self.model.module.to(self.device)
        self.model.set_mode(self.model.module, True)
        self.max_gradient_norm = max_gradient_norm
        self.masters = MasterWeights(model.module) if params.dtype == "mixed" else None
        if self.masters:
            tell_slow_bfloat16(self.device, "trainer.dtype: mixed")
        self.learned = {name: self._learned(weight) for name, weight in model.module.named_parameters()}
        ends = [self._learned(weight) for weight in model.ends]
        self.optimizers = build_optimizers(list(self.learned.values()), ends, optimizer)
        if self.device.type == "cuda":
            for opt in self.optimizers:
                allocate_state(opt)
        self.peak_rates = [[group["lr"] for group in opt.param_groups] for opt in self.optimizers]

    def _learned(self, weight: Tensor) -> Tensor:
        """What the optimizer changes in place of `weight`: its float32 master in mixed precision, else itself."""
        return self.masters.of(weight) if self.masters else weight

    def update(
        self, micro_batches: Sequence[Batch], loss: LossFunction[Outputs, Batch], learning_rate_scale: float
    ) -> Update:
        """One optimizer update; see the protocol."""
        for weight in self.learned.values():
            weight.grad = None
        shares: list[Tensor] = []
        shown: list[Mapping[str, Tensor | float]] = []
        for micro_batch in micro_batches:
            if micro_batch.is_empty:
                continue
            batch = micro_batch.to(self.device)
            share, of_batch = loss(self.model.forward(self.model.module, batch), batch)
            share.backward()
            shares.append(share.detach())
            shown.append(of_batch)
        total, diagnostics = add_up(shares, shown)
        norm = float(nn.utils.clip_grad_norm_(self.learned.values(), self.max_gradient_norm))
        if not (math.isfinite(total) and math.isfinite(norm)):
            raise FloatingPointError(
                f"loss {total}, gradient norm {norm}: the weights were left as they were"
            )
        for opt, rates in zip(self.optimizers, self.peak_rates, strict=True):
            for group, rate in zip(opt.param_groups, rates, strict=True):
                group["lr"] = rate * learning_rate_scale
            opt.step()
        if self.masters:
            self.masters.write_back()
        return Update(total, norm, diagnostics)

    @torch.no_grad()
    def evaluate(self, micro_batch: Batch) -> Outputs:
        """The model's outputs without gradient."""
        self.model.set_mode(self.model.module, False)
        outputs = self.model.forward(self.model.module, micro_batch.to(self.device))
        self.model.set_mode(self.model.module, True)
        return outputs

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The live weights, tied tensors once."""
        for name, weight in self.model.named_weights():
            yield name, weight.detach()

    def save_model(self, folder: Path) -> None:
        """Writes the model into `folder`, in float32."""
        self.model.save(dict(self.learned_weights()), folder)

    def learned_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The weights at the precision in which they are learned."""
        for name, weight in self.model.named_weights():
            yield name, self._learned(weight).detach()

    def save_checkpoint(self, folder: Path) -> dict[str, str]:
        """Writes weights and optimizer state as one safetensors file; see the protocol."""
        tensors = {f"weights/{name}": weight.contiguous() for name, weight in self.learned_weights()}
        for number, opt in enumerate(self.optimizers):
            for name, weight in self.learned.items():
                for key, value in opt.state.get(weight, {}).items():
                    tensors[f"optimizer/{number}/{name}/{key}"] = torch.as_tensor(value).contiguous()
        return {FILE: write_tensors(folder / FILE, tensors)}

    def load_checkpoint(self, folder: Path) -> None:
        """Restores weights and optimizer state; KeyError when the file belongs to another model."""
        require_written_by("torch", folder, FILE)
        tensors = load_file(folder / FILE, device=str(self.device))
        for name, weight in self.learned_weights():
            weight.copy_(tensors.pop(f"weights/{name}"))
        if self.masters:
            self.masters.write_back()
        for path, value in tensors.items():
            _, number, name_and_key = path.split("/", 2)
            name, key = name_and_key.rsplit("/", 1)
            self.optimizers[int(number)].state[self.learned[name]][key] = value

    def close(self) -> None:
        """Frees the model."""
        del self.model, self.optimizers, self.learned, self.masters
