"""Counts operations that make the host wait for a device, on a CPU, where such a wait has no cost to measure."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique", "item")


class HostWaits(TorchDispatchMode):
    """Counts (`count`) the operations that need a number of the device before the host can continue."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        by_mask = name.startswith("index") and any(
            isinstance(one, torch.Tensor) and one.dtype == torch.bool
            for arg in args[1:2]
            if isinstance(arg, list | tuple)
            for one in arg
        )
        self.count += name in WAITING or by_mask
        return function(*args, **(kwargs or {}))
