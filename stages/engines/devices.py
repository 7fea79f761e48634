"""The device that a params section names."""

from __future__ import annotations

import torch

from stages.foundations.errors import UserError


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU when there is one; UserError when `cuda` is asked for and absent."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device: cuda, but torch sees no GPU: use device: auto, or install the CUDA build of torch"
        )
    return torch.device(name)
