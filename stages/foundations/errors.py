"""Messages in place of tracebacks: `UserError`, and GPU failures in one sentence with what to do.

GPU failures are recognised by the libraries' words, because no type distinguishes them. Sources of the words:
- torch 2.13: c10/cuda/CUDACachingAllocator.cpp, c10/cuda/CUDAFunctions.cpp, ProcessGroupNCCL.cpp, TCPStore.cpp;
- NCCL: the names of its results;
- vLLM 0.26 to 0.32: v1/worker/utils.py, v1/core/kv_cache_utils.py, v1/worker/gpu_worker.py.

Standard library only: every process of the project imports this module first.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator


class UserError(Exception):
    """A mistake or condition that the user can fix: the message names the value and the remedy (exit code 2)."""


_SMALLER = "lower trainer.micro_batch_tokens or sampler.memory_fraction (`retrace plan` says what fits)"
_ALONE = "end other processes on the card (`nvidia-smi` lists them), or give each run other GPUs (CUDA_VISIBLE_DEVICES)"
# The first that matches counts. NCCL also reports `NCCL error` where two ranks share one GPU, so that case comes first.
_FAILURES = (
    (
        r"Duplicate GPU detected",
        "two ranks were given one GPU: set launch.gpus_per_node to the number of GPUs (`nvidia-smi -L`), and "
        "check that CUDA_VISIBLE_DEVICES is the same for all ranks of a node",
    ),
    (
        r"NCCL error|ncclSystemError|ncclRemoteError|ncclInternalError|connectFullMesh failed",
        "the ranks cannot reach each other: name the network between the nodes in NCCL_SOCKET_IFNAME and "
        "GLOO_SOCKET_IFNAME (`ip addr`), and open it for the nodes. NCCL_DEBUG=INFO shows details",
    ),
    (
        r"client socket has timed out|waiting for clients",
        "not all ranks found the first one: check that every node has started and reaches that address "
        "(launch.command.port)",
    ),
    (
        r"on startup is less than desired GPU memory utilization|Error in memory profiling",
        f"vLLM does not get its share of the card: {_ALONE}, or lower sampler.memory_fraction",
    ),
    (
        r"No available memory for the cache blocks|larger than the available KV cache",
        "the card has no room for the key-value cache: raise sampler.memory_fraction, or lower "
        "sampler.max_model_tokens",
    ),
)
# From here on torch and vLLM advise their own settings, which a user of this project cannot reach.
_ADVICE = r"[. ]*(?:\n| (?:Process \d|Including|Of the allocated|Please|See|Decrease|Try|This happens))"


def gpu_failure(error: BaseException) -> str:
    """Returns the fault of a GPU or between GPUs, and the remedy, if the error or its cause names one; else empty."""
    for text in _texts(error):
        advice = _too_old(text) or _out_of_memory(text)
        advice = advice or next((remedy for words, remedy in _FAILURES if re.search(words, text)), "")
        if advice:
            return f"{advice} ({_first_line(text)})"
    return ""


def _texts(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield str(error)
        # Engines wrap the errors of libraries: the words that identify the failure are in the inner one.
        error = error.__cause__ or error.__context__


def _first_line(text: str) -> str:
    """Returns the library's message, without its additions for developers."""
    line = re.split(_ADVICE, text.strip(), maxsplit=1)[0]
    last = re.search(r"Last error:\s*(.+)", text)
    return f"{line}: {last[1]}" if last else line


def _too_old(text: str) -> str:
    match = re.search(r"NVIDIA driver on your system is too old \(found version (\d+)\)", text)
    if not match:
        return ""
    # Not imported: a process without torch must not spend seconds to phrase an error.
    torch = sys.modules.get("torch")
    build = f" for CUDA {torch.version.cuda}" if torch else ""
    # CUDA writes 12.8 as 12080: 1000 times the major version and 10 times the minor one.
    known = f"{int(match[1]) // 1000}.{int(match[1]) % 1000 // 10}"
    return (
        f"the NVIDIA driver supports CUDA up to {known}, but torch is a build{build}: update the driver, or "
        f"delete .venv and `make set-up` with an index that has builds for CUDA {known}"
    )


def _out_of_memory(text: str) -> str:
    # A bare `out of memory` may mean the machine's memory, which no GPU setting relieves.
    if "out of memory" not in text or not re.search(r"CUDA|HIP|GPU", text):
        return ""
    others = re.findall(r"Process (\d+) has (\S+ \w+) memory in use", text)
    if others:
        held = " and ".join(f"process {number} holds {size}" for number, size in others)
        return f"the card is shared, {held} of it: {_ALONE}"
    return f"the card's memory is full: {_SMALLER}"


# Up to the last `@` of the word: a password may contain one.
_ACCOUNT = re.compile(r"(\w[\w+.-]*://[^\s:/@'\"]*):[^\s'\"]*@")
# As in postgresql://host/db?password=..., and in the signed addresses of object stores.
_QUERY = re.compile(r"([?&][\w.-]*(?:pass|pwd|secret|token|key|sig|credential)[\w.-]*=)[^\s&#'\"]*", re.IGNORECASE)


def without_password(text: str) -> str:
    """Returns `scheme://user:password@host/path?token=...` without its secrets; other text unchanged.

    Takes an address, or a message with addresses in it. Where a path has an `@`, it may remove more than the password.
    """
    return _QUERY.sub(r"\1", _ACCOUNT.sub(r"\1@", text))
