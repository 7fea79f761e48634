"""The device that a params section names."""

from __future__ import annotations

import os

import torch

from stages.foundations.errors import UserError, gpu_failure
from stages.foundations.machine import BFLOAT16_REMEDY, is_bfloat16_slow
from stages.observe.progress import say


def pick_device(name: str) -> torch.device:
    """Returns the device of that name; `auto` is the GPU when there is one. UserError when `cuda` is absent or cannot
    be used."""
    if name == "cpu" or torch.cuda.is_available():
        return torch.device("cuda" if name == "auto" else name)
    # Also for `auto`: a run that silently took the CPU of a GPU machine would last days.
    if reason := _why_cuda_fails():
        raise UserError(f"device: {name}, but {reason}; device: cpu computes without it")
    if name == "cuda":
        raise UserError("device: cuda, but torch sees no GPU: use device: auto, or install the CUDA build of torch")
    return torch.device("cpu")


def _why_cuda_fails() -> str:
    """Returns why CUDA does not start although the GPU is not hidden; empty where there is none."""
    # torch.cuda.is_available() only warns and says no; initialising raises the driver's reason.
    if torch.version.cuda is None or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return ""
    try:
        torch.cuda.init()
    except RuntimeError as error:
        return gpu_failure(error)
    return ""


def warn_of_slow_bfloat16(device: torch.device, setting: str) -> None:
    """Says so where `setting` makes a CPU without instructions for bfloat16 compute in it: hours become days."""
    if device.type == "cpu" and is_bfloat16_slow():
        say(f"slow: {setting}, and this CPU has no instructions for bfloat16: {BFLOAT16_REMEDY}")
