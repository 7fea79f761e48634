"""The shards of a checkpoint: each rank writes its part, and any number of ranks can read the parts that they need.

A shard is a safetensors file. Its tensors are flat pieces of whole tensors; the name `<key>/<name>/<start>` gives the
tensor and the position of the piece. A rank with the same pieces as before reads only its own shard.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from stages.engines.relays.published_weights import safetensors_header
from stages.foundations.errors import UserError


def shard_of(rank: int) -> str:
    """Returns the file name of a rank's shard: see `stages.engines.trainers.checkpoints`."""
    return f"rank-{rank:05d}.safetensors"


def require_written_by(kind: str, folder: Path, file: str) -> None:
    """Raises UserError when a checkpoint lacks the file of this trainer kind, so another kind wrote it."""
    if not (folder / file).exists():
        others = len(list(folder.glob("rank-*.safetensors")))
        writer = f"trainer.kind deepspeed on {others} rank(s)" if others else "trainer.kind torch"
        raise UserError(
            f"{folder} was written by {writer}, but trainer.kind {kind} cannot resume from it: set that kind again, or "
            f"remove the folder to start over"
        )


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Writes a safetensors file, one tensor after the other by way of the CPU, and returns its SHA-256."""
    # Not with the library, which needs all tensors on the CPU at once: too much memory for a large policy.
    digest = hashlib.sha256()
    with open(path, "wb") as file:

        def write(content: bytes | memoryview) -> None:
            digest.update(content)
            file.write(content)

        write(safetensors_header(tensors))
        for tensor in tensors.values():
            plain = tensor.detach().to("cpu").contiguous().flatten().view(torch.uint8)
            write(memoryview(plain.numpy()))
    return digest.hexdigest()


class ShardReader:
    """The pieces in all shards of a folder, or in one of them. A context manager closes the files."""

    def __init__(self, folder: Path, shard: str = "rank-*.safetensors") -> None:
        self._files = {path.name: safe_open(path, framework="pt") for path in sorted(folder.glob(shard))}
        self._pieces: dict[str, list[tuple[int, int, str, str]]] = {}
        """Start, end, file and name in the file, for each tensor's pieces."""
        for file, handle in self._files.items():
            for name in handle.keys():  # noqa: SIM118 (a safetensors handle is not iterable)
                whole, start = name.rsplit("/", 1)
                (length,) = handle.get_slice(name).get_shape()
                self._pieces.setdefault(whole, []).append((int(start), int(start) + length, file, name))

    def read(self, whole: str, start: int, target: Tensor) -> None:
        """Fills the flat `target` from element `start` of a tensor on; KeyError when the shards lack a part."""
        end, filled = start + len(target), 0
        for first, last, file, name in self._pieces.get(whole, ()):
            low, high = max(start, first), min(end, last)
            # If the number of ranks has changed, a piece may be spread over two shards. Tensors that every rank has
            # written, such as buffers, exist several times: the first one, rank 0's, is enough.
            if low < high and filled < len(target):
                target[low - start : high - start] = self._files[file].get_slice(name)[low - first : high - first]
                filled += high - low
        if filled < len(target):
            raise KeyError(f"the checkpoint lacks elements {start} to {end} of {whole}")

    def first(self, whole: str) -> float:
        """Returns the first element of the first piece of a tensor; KeyError when no shard has one."""
        *_, file, name = self._pieces[whole][0]
        return float(self._files[file].get_slice(name)[:1])

    def __enter__(self) -> ShardReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.clear()
