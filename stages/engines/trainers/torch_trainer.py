"""The trainer for one process and one device, in plain torch. On CPU it is bit-exact for a fixed thread count."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from stages.engines.policies.packing import ResponseBatch
from stages.engines.policies.policy_folders import DTYPES, load_policy, pick_device, save_policy
from stages.engines.policies.statistics import PolicyStatistics, policy_statistics, refuse_scaled_logits
from stages.engines.trainers.optimizers import build_optimizers
from stages.engines.trainers.params import AdamwParams, MuonParams, TorchTrainerParams
from stages.engines.trainers.protocol import Diagnostics, LossFunction, Update, add_diagnostics


class TorchTrainer:
    """See `stages.engines.trainers.protocol.Trainer`."""

    rank = 0
    world_size = 1

    def __init__(
        self,
        params: TorchTrainerParams,
        optimizer: AdamwParams | MuonParams,
        max_gradient_norm: float,
        policy_folder: Path,
    ) -> None:
        torch.set_num_threads(params.threads)
        self.device = pick_device(params.device)
        model, self.tokenizer = load_policy(policy_folder, DTYPES[params.dtype])
        refuse_scaled_logits(model)
        self.model = model.to(self.device).train()
        if params.gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.max_gradient_norm = max_gradient_norm
        self.optimizers = build_optimizers(self.model, optimizer)
        self.peak_rates = [[group["lr"] for group in opt.param_groups] for opt in self.optimizers]

    def update(
        self, micro_batches: Sequence[ResponseBatch], loss: LossFunction, learning_rate_scale: float
    ) -> Update:
        """One optimizer update; see the protocol."""
        self.model.zero_grad(set_to_none=True)
        total, diagnostics = 0.0, Diagnostics()
        for micro_batch in micro_batches:
            batch = micro_batch.to(self.device)
            share, shown = loss(policy_statistics(self.model, batch), batch)
            share.backward()
            total += float(share.detach())
            add_diagnostics(diagnostics, shown)
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self.max_gradient_norm))
        if not (math.isfinite(total) and math.isfinite(norm)):
            raise FloatingPointError(
                f"loss {total}, gradient norm {norm}: the weights were left as they were"
            )
        for opt, rates in zip(self.optimizers, self.peak_rates, strict=True):
            for group, rate in zip(opt.param_groups, rates, strict=True):
                group["lr"] = rate * learning_rate_scale
            opt.step()
        return Update(total, norm, diagnostics)

    @torch.no_grad()
    def evaluate(self, micro_batch: ResponseBatch) -> PolicyStatistics:
        """Token statistics without gradient."""
        return policy_statistics(self.model, micro_batch.to(self.device))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The live weights, tied tensors once."""
        for name, weight in self.model.named_parameters():
            yield name, weight.detach()

    def save_policy(self, folder: Path) -> None:
        """Writes the policy folder."""
        save_policy(self.model, self.tokenizer, folder)

    def save_checkpoint(self, folder: Path) -> None:
        """Writes weights and optimizer state as one safetensors file."""
        tensors = {f"weights/{name}": weight.contiguous() for name, weight in self.named_weights()}
        for number, opt in enumerate(self.optimizers):
            for name, weight in self.model.named_parameters():
                for key, value in opt.state.get(weight, {}).items():
                    tensors[f"optimizer/{number}/{name}/{key}"] = torch.as_tensor(value).contiguous()
        save_file(tensors, folder / "trainer.safetensors")

    def load_checkpoint(self, folder: Path) -> None:
        """Restores weights and optimizer state; KeyError when the file belongs to another model."""
        tensors = load_file(folder / "trainer.safetensors", device=str(self.device))
        parameters = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, weight in parameters.items():
                weight.copy_(tensors.pop(f"weights/{name}"))
        for path, value in tensors.items():
            _, number, name_and_key = path.split("/", 2)
            name, key = name_and_key.rsplit("/", 1)
            self.optimizers[int(number)].state[parameters[name]][key] = value

    def broadcast(self, value: Any) -> Any:
        """The value itself."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """The value alone."""
        return [value]

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """The values themselves."""
        return values

    def close(self) -> None:
        """Frees the model."""
        del self.model, self.optimizers
