"""The trainer for one process and one device, in plain torch. On CPU it is bit-exact for a fixed thread count.

After it: its optimizers (AdamW alone, or Muon on the matrices of the layers), Muon for a CPU, and the float32 weights
of a network that computes in bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from stages.engines.devices import pick_device, warn_of_slow_bfloat16
from stages.engines.trainers.one_rank import OneRank
from stages.engines.trainers.params import AdamwParams, MuonParams, TorchTrainerParams
from stages.engines.trainers.protocol import Batch, LossFunction, Outputs, TrainedModel, Update, add_up
from stages.engines.trainers.shards import require_written_by, write_tensors
from stages.foundations.errors import UserError

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
        self.masters = MasterWeights(model) if params.dtype == "mixed" else None
        if self.masters:
            warn_of_slow_bfloat16(self.device, "trainer.dtype: mixed")
        self.learned = {name: self._learned(weight) for name, weight in model.named_parameters()}
        ends = [self._learned(weight) for weight in model.ends]
        self.optimizers = build_optimizers(list(self.learned.values()), ends, optimizer)
        if self.device.type == "cuda":
            for opt in self.optimizers:
                allocate_state(opt)
        # Copies of the peak rates: `update` overwrites the rates of the groups with scheduled ones.
        self.peak_rates = [[group["lr"] for group in opt.param_groups] for opt in self.optimizers]

    def _learned(self, weight: Tensor) -> Tensor:
        """Returns the tensor that the optimizer changes: the float32 master in mixed precision, else `weight`."""
        return self.masters.of(weight) if self.masters else weight

    def update(
        self, micro_batches: Sequence[Batch], loss: LossFunction[Outputs, Batch], learning_rate_scale: float
    ) -> Update:
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
        # Read here, once per update: here the host waits for a GPU.
        norm = float(nn.utils.clip_grad_norm_(self.learned.values(), self.max_gradient_norm))
        # Checked before the optimizer steps: afterwards one NaN would be in every weight and moment.
        if not (math.isfinite(total) and math.isfinite(norm)):
            raise FloatingPointError(f"loss {total}, gradient norm {norm}: the weights were left as they were")
        for opt, rates in zip(self.optimizers, self.peak_rates, strict=True):
            for group, rate in zip(opt.param_groups, rates, strict=True):
                group["lr"] = rate * learning_rate_scale
            opt.step()
        if self.masters:
            self.masters.write_back()
        return Update(total, norm, diagnostics)

    @torch.no_grad()
    def evaluate(self, micro_batch: Batch) -> Outputs:
        self.model.set_mode(self.model.module, False)
        outputs = self.model.forward(self.model.module, micro_batch.to(self.device))
        self.model.set_mode(self.model.module, True)
        return outputs

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the live weights, tied tensors once."""
        adapters = self.model.adapters
        for name, weight in self.model.named_weights() if adapters is None else adapters.merged():
            yield name, weight.detach()

    def save_model(self, folder: Path) -> None:
        """Writes the model into `folder`, in float32."""
        self.model.save(dict(self.learned_weights()), folder)

    def learned_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the weights at the precision in which they are trained."""
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
        # The masters were restored: the network computes with their rounded copies.
        if self.masters:
            self.masters.write_back()
        for path, value in tensors.items():
            _, number, name_and_key = path.split("/", 2)
            name, key = name_and_key.rsplit("/", 1)
            self.optimizers[int(number)].state[self.learned[name]][key] = value

    def reset_optimizer(self) -> None:
        # Zeros are what the first step starts from, also for the counts of steps.
        for opt in self.optimizers:
            for state in opt.state.values():
                for value in state.values():
                    value.zero_()

    def close(self) -> None:
        # Each of these holds the weights: all must be deleted to free the memory.
        del self.model, self.optimizers, self.learned, self.masters


def build_optimizers(
    weights: Sequence[Tensor], ends: Sequence[Tensor], params: AdamwParams | MuonParams
) -> list[torch.optim.Optimizer]:
    """Returns AdamW alone, or Muon for the layers' matrices and AdamW for the network's `ends` and for non-matrices."""
    if isinstance(params, AdamwParams):
        return [_adamw(weights, params.learning_rate, params, params.weight_decay)]
    # Compared by identity: `in` would compare tensors elementwise.
    outer = {id(weight) for weight in ends}
    matrices = [weight for weight in weights if weight.ndim == 2 and id(weight) not in outer]
    # AdamW trains norms and biases, which are not matrices, and embeddings, which are looked up, not multiplied.
    rest = [weight for weight in weights if weight.ndim != 2 or id(weight) in outer]
    if not matrices:
        raise UserError("optimizer.kind is muon, but no layer of the model is a matrix: set `optimizer.kind: adamw`")
    kind = torch.optim.Muon if matrices[0].is_cuda else Float32Muon
    muon = kind(matrices, lr=params.learning_rate, weight_decay=params.weight_decay)
    return [muon, *([_adamw(rest, params.adamw_learning_rate, params, 0.0)] if rest else [])]


def _adamw(
    weights: Sequence[Tensor], rate: float, params: AdamwParams | MuonParams, weight_decay: float
) -> torch.optim.AdamW:
    # fused: one kernel on a GPU; foreach would need temporaries as large as the weights. A CPU keeps foreach's sums.
    is_fused = weights[0].is_cuda
    return torch.optim.AdamW(
        weights,
        lr=rate,
        betas=(params.beta1, params.beta2),
        weight_decay=weight_decay,
        fused=is_fused,
        foreach=not is_fused,
    )


def allocate_state(optimizer: torch.optim.Optimizer) -> None:
    """Creates the optimizer's initial state now.

    torch creates it in the first step: on a GPU, the sampler's cache may have taken that memory by then.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"] if weight.requires_grad]
    rates = [group["lr"] for group in optimizer.param_groups]
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    # With zero gradients at a rate of 0: the moments are zero and the weights unchanged.
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for weight in weights:
        weight.grad = None
        # Reset to 0: AdamW corrects its first moments by the number of steps.
        if "step" in optimizer.state[weight]:
            optimizer.state[weight]["step"].zero_()


class Float32Muon(torch.optim.Muon):
    """Muon for a CPU: torch's, with the Newton-Schulz iteration in the gradient's own type.

    torch's iteration is in bfloat16. A CPU without bfloat16 instructions takes 20 to 30 times as long as in float32
    (docs/evidence/measurements.md), and its rounding differs between CPUs. State and settings are torch's: a checkpoint
    of one can continue with the other. Source: K. Jordan, "Muon: An optimizer for hidden layers in neural networks".
    """

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(weight.grad)
                state["momentum_buffer"].lerp_(weight.grad, 1 - momentum)
                # Nesterov's momentum.
                update = weight.grad.lerp(state["momentum_buffer"], momentum)
                rows, columns = weight.shape
                weight.mul_(1 - rate * group["weight_decay"])
                # A tall matrix gets a larger step, so that its outputs change by the same root mean square as those of
                # a square matrix.
                weight.add_(_orthogonal(update, group), alpha=-rate * math.sqrt(max(1, rows / columns)))


def _orthogonal(update: Tensor, group: dict[str, Any]) -> Tensor:
    """Returns U S' V^T of an update U S V^T [rows, columns], with S' near 1 by Newton-Schulz steps from S / |S|."""
    a, b, c = group["ns_coefficients"]
    is_tall = update.shape[0] > update.shape[1]
    # The wide form, because its product with its transpose is the smaller one.
    state = update.T if is_tall else update
    # The largest singular value is now at most 1, as the iteration needs.
    state = state / state.norm().clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = state @ state.T
        state = torch.addmm(state, torch.addmm(gram, gram, gram, beta=b, alpha=c), state, beta=a)
    return state.T if is_tall else state


class MasterWeights:
    """The float32 weights that the optimizer changes, and their bfloat16 copies in the module.

    An update of bfloat16 weights below half a step, a 512th of a weight, is rounded away: at a learning rate of 1e-6
    nearly all are. So gradients of micro-batches are summed, and moments and updates are kept, in float32. The module
    holds plain bfloat16 parameters, so that it computes the same as a sampler in bfloat16.
    """

    def __init__(self, model: TrainedModel) -> None:
        self._weights: dict[nn.Parameter, nn.Parameter] = {}
        for _, weight in model.named_parameters():
            master = nn.Parameter(weight.detach().float().clone(), requires_grad=weight.requires_grad)
            self._weights[weight] = master
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(self._take_gradient)
        # Includes frozen weights that have adapters: they need no master.
        for weight in model.module.parameters():
            weight.data = weight.detach().to(torch.bfloat16)

    def of(self, weight: Tensor) -> Tensor:
        """Returns the float32 master of a parameter of the module; any other tensor unchanged."""
        return self._weights.get(weight, weight)

    def _take_gradient(self, weight: Tensor) -> None:
        # Immediately, not after the backward pass: only one bfloat16 gradient exists at a time.
        master = self._weights[weight]
        if master.grad is None:
            master.grad = weight.grad.float()
        else:
            master.grad += weight.grad
        weight.grad = None

    @torch.no_grad()
    def write_back(self) -> None:
        """Rounds the masters into the module."""
        for weight, master in self._weights.items():
            weight.copy_(master)
