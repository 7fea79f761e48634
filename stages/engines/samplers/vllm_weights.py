"""Replaces weights inside vLLM's workers: the worker extension that `VllmSampler` installs.

On CPU, vLLM packs every linear layer for its matrix kernels and empties the originals. So the checkpoint loader has to
run through vLLM's reload, which repacks each layer into which it loads a tensor. A head tied to the embedding gets no
tensor. It would silently keep the packed copy of the old embedding, so it is packed again here (measured on a small
policy: log-probs off by up to 0.80).
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor, nn

OWNER_VARIABLE = "RETRACE_SAMPLER_OWNER"
"""Environment variable that tells vLLM's processes the id of the process that holds the sampler."""


class WeightReceiver:
    """Methods that vLLM mixes into its worker class and calls by name through `collective_rpc`."""

    def receive_tensors(self, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Replaces the weights by tensors of this process."""
        replace_weights(self.model_runner, named_tensors)

    def receive_files(self, paths: Sequence[str]) -> None:
        """Replaces the weights by those of safetensors files."""
        replace_weights(self.model_runner, _read(paths))


def replace_weights(model_runner: object, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Loads checkpoint-named tensors into a live model, whatever the weight layout of its platform."""
    from vllm.platforms import current_platform

    model = model_runner.model
    if current_platform.is_cpu():
        model_runner.reload_weights(weights_iterator=iter(named_tensors))
        repack_tied_head(model)
        repack_experts(model)
    else:
        model.load_weights(iter(named_tensors))


def repack_tied_head(model: nn.Module) -> None:
    """Packs heads again, because one may share the embedding's weights; heads with separate weights do not change."""
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    # By type: the config says untied if the files hold a tied head, and a model of several parts nests its head.
    for layer in model.modules():
        if isinstance(layer, ParallelLMHead):
            layer.quant_method.process_weights_after_loading(layer)


def repack_experts(model: nn.Module) -> None:
    """Packs the experts' matrices, which vLLM does only at its start: a reload leaves them unpacked."""
    for layer in model.modules():
        if kernel := getattr(getattr(layer, "quant_method", None), "moe_kernel", None):
            kernel.fused_experts.process_weights_after_loading(layer)


def _read(paths: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    from safetensors import safe_open

    for path in paths:
        with safe_open(path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (a safetensors handle is not iterable)
                yield name, tensors.get_tensor(name)


def die_with(owner: int) -> None:
    """Ends this worker and the engine process above it as soon as process `owner` is gone (Linux).

    vLLM's engine process does not notice that its parent was killed, and would keep the GPU memory.
    """
    parent = os.getppid()
    try:
        handle = os.pidfd_open(owner)
    except ProcessLookupError:
        _end(owner, parent)
    threading.Thread(target=_await_end, args=(handle, owner, parent), daemon=True).start()


def _await_end(handle: int, owner: int, parent: int) -> None:
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    waiting.poll()
    _end(owner, parent)


def _end(owner: int, parent: int) -> None:
    if parent not in (owner, 1) and parent == os.getppid():
        os.kill(parent, signal.SIGKILL)
    os._exit(1)


if OWNER_VARIABLE in os.environ and int(os.environ[OWNER_VARIABLE]) != os.getpid():
    die_with(int(os.environ[OWNER_VARIABLE]))
