"""Versions of a policy's weights as files in a node's memory: one writer, any number of readers, no waiting.

    /dev/shm/retrace-<run>-<node>/00000012/manifest.json, 00000.safetensors, ...

A version is written under another name and then renamed: a reader sees all of it or nothing. A version that is removed
while a process reads it stays complete for that reader, because the kernel keeps a mapped file until it is released.

Only writing and reading tensors needs torch: a relay, which moves files, starts without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.foundations.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

MEMORY = Path("/dev/shm")
"""Where Linux keeps files in memory (tmpfs)."""
PREFIX = "retrace-"
MANIFEST = "manifest.json"
SHARD_BYTES = 256 << 20
"""Bytes of weights in one file: this bounds how much the writer holds twice."""
DTYPES = {
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
    "torch.int64": "I64",
    "torch.int32": "I32",
    "torch.int16": "I16",
    "torch.int8": "I8",
    "torch.uint8": "U8",
    "torch.bool": "BOOL",
}
SPARE_BYTES = 8 << 20
"""Bytes left free beside a version: for manifests, and for Ray's own files in the same place."""


class VersionGone(LookupError):
    """The version is not in the folder: already removed, or not yet written. Take a newer one."""


def weights_folder(run: str, node: str, memory: Path = MEMORY) -> Path:
    """Returns the folder of a run on a node. `run` separates runs on a machine, `node` the nodes on it (in tests)."""
    return memory / f"{PREFIX}{run}-{node}"


@dataclass(frozen=True)
class WeightsFile:
    """One shard of a version."""

    name: str
    size: int
    """Bytes."""
    checksums: list[int]
    """CRC-32 of each chunk: it detects damage in transit, not forgery."""


@dataclass(frozen=True)
class Manifest:
    version: int
    chunk_bytes: int
    files: list[WeightsFile]
    metadata: dict[str, Any]
    """The writer's addition, as JSON: for example, the log-probs that a sampler must compute after loading."""

    @property
    def digest(self) -> str:
        """Distinguishes two versions with one number."""
        return hashlib.sha256(self.to_bytes()).hexdigest()[:16]

    def to_bytes(self) -> bytes:
        """Returns the manifest as JSON; equal manifests are equal bytes."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        fields = json.loads(content)
        return cls(**fields | {"files": [WeightsFile(**file) for file in fields["files"]]})

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """Returns (file's place in `files`, chunk's place in the file) of every chunk."""
        return [(place, chunk) for place, file in enumerate(self.files) for chunk in range(len(file.checksums))]


class PublishedWeights:
    """The versions in one folder. Any process may open the same folder; only one of them writes a version."""

    def __init__(self, folder: Path, chunk_bytes: int = 64 << 20) -> None:
        self.folder, self.chunk_bytes = folder, chunk_bytes
        # Closed to other users, and checked below: every user may write in /dev/shm, under any name.
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise UserError(f"{folder} belongs to another user: remove it, or wait until that user's run has ended")
        self._remove_partial()

    def publish(
        self, version: int, named_tensors: Iterable[tuple[str, Tensor]], metadata: dict[str, Any] | None = None
    ) -> Manifest:
        """Writes a version. An equal version stays as it is; a different one with that number is replaced.

        UserError when the memory is too small, before a shard is written; existing files stay untouched.
        """
        beside = self.beside(version)
        beside.mkdir()
        try:
            files = [
                self._write(beside / f"{number:05d}.safetensors", shard)
                for number, shard in enumerate(in_shards(named_tensors, SHARD_BYTES))
            ]
            manifest = Manifest(version, self.chunk_bytes, files, metadata or {})
            (beside / MANIFEST).write_bytes(manifest.to_bytes())
            self.put_in_place(beside, manifest)
        finally:
            # Also after an error in the middle: half a version would occupy its memory until the run ends.
            shutil.rmtree(beside, ignore_errors=True)
        return manifest

    def beside(self, version: int) -> Path:
        """Returns the folder where this process may collect the files of a version until `put_in_place`."""
        return self.folder / f".{version:08d}.{os.getpid()}.partial"

    def put_in_place(self, beside: Path, manifest: Manifest) -> None:
        """Turns a complete folder into the version that readers see."""
        place = self.place(manifest.version)
        try:
            # A trainer that resumed publishes the same version again: processes that read it keep their files.
            if self.manifest(manifest.version) == manifest:
                return
            # Moved away first: a folder cannot be renamed onto one that is not empty.
            os.replace(place, beside.with_suffix(".old"))
        except VersionGone:
            pass
        os.replace(beside, place)
        shutil.rmtree(beside.with_suffix(".old"), ignore_errors=True)

    def versions(self) -> list[int]:
        """Returns the complete versions, oldest first."""
        # The name of a version that is being written or removed begins with a dot.
        return sorted(int(entry.name) for entry in os.scandir(self.folder) if entry.name.isdecimal())

    def newest(self) -> int | None:
        """Returns the largest version; None when there is none."""
        return max(self.versions(), default=None)

    def manifest(self, version: int) -> Manifest:
        """Returns the manifest of a version. VersionGone."""
        try:
            return Manifest.from_bytes((self.place(version) / MANIFEST).read_bytes())
        except FileNotFoundError:
            raise VersionGone(f"version {version} is not in {self.folder}, which has {self.versions()}") from None

    def load(self, version: int) -> tuple[dict[str, Any], Iterator[tuple[str, Tensor]]]:
        """Returns metadata and tensors of a version. VersionGone before the first tensor, never between two of them.

        The tensors are mapped files: copy tensors that must outlive the next version, and never write into one.
        """
        from safetensors import safe_open

        manifest = self.manifest(version)
        try:
            # All of them at once: from here on the version may be removed.
            shards = [safe_open(self.place(version) / file.name, framework="pt") for file in manifest.files]
        # torch raises the second one, when a file disappears while it is opened.
        except (FileNotFoundError, RuntimeError):
            if all((self.place(version) / file.name).exists() for file in manifest.files):
                raise
            raise VersionGone(f"version {version} was removed from {self.folder} a moment ago") from None
        tensors = ((name, shard.get_tensor(name)) for shard in shards for name in shard.keys())  # noqa: SIM118
        return manifest.metadata, tensors

    def prune(self, keep: int) -> list[int]:
        """Removes all but the newest `keep` versions and returns the removed ones; processes that read one keep it."""
        versions = self.versions()
        gone = versions[: max(0, len(versions) - keep)]
        for version in gone:
            # Renamed first: a reader must not find half of it. Another process may be pruning too.
            removed = self.beside(version).with_suffix(".old")
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.place(version), removed)
            shutil.rmtree(removed, ignore_errors=True)
        return gone

    def place(self, version: int) -> Path:
        """Returns where the files of a version are, if it is here."""
        return self.folder / f"{version:08d}"

    def _write(self, path: Path, shard: dict[str, Tensor]) -> WeightsFile:
        pieces = _safetensors(shard)
        size = sum(map(len, pieces))
        # Two steps for one purpose: the first reports the remedy, the second reserves the memory against other
        # programs.
        require_room(self.folder, size)
        set_aside(path, size)
        sums = _Checksums(self.chunk_bytes)
        with open(path, "r+b", buffering=0) as file:
            for piece in pieces:
                write_all(file, piece)
                sums.add(piece)
        return WeightsFile(path.name, size, sums.of_chunks)

    def _remove_partial(self) -> None:
        for path in self.folder.glob(".*"):
            writer = path.name.split(".")[2] if path.name.count(".") == 3 else ""
            # A living writer may be writing its version, in this process or in another.
            if writer.isdecimal() and not Path("/proc", writer).exists():
                shutil.rmtree(path, ignore_errors=True)


def require_room(folder: Path, size: int) -> None:
    """UserError when `size` more bytes do not fit the file system of `folder`."""
    free = shutil.disk_usage(folder).free - SPARE_BYTES
    if size > free:
        raise UserError(
            f"{folder} has no room for {_mib(size)} of weights ({_mib(max(0, free))} are free): lower "
            f"rl.loop.relay.keep, remove what other programs left in {folder.parent}, or give it more memory "
            f"(`mount -o remount,size=... {folder.parent}`; in a container `--shm-size`)"
        )


class _Checksums:
    """Computes the CRC-32 of each chunk of data that arrives in pieces of any size."""

    def __init__(self, chunk_bytes: int) -> None:
        self.of_chunks: list[int] = []
        self._chunk_bytes, self._room = chunk_bytes, 0

    def add(self, piece: memoryview) -> None:
        while piece:
            if not self._room:
                self.of_chunks.append(0)
                self._room = self._chunk_bytes
            part, piece = piece[: self._room], piece[self._room :]
            self.of_chunks[-1] = zlib.crc32(part, self.of_chunks[-1])
            self._room -= len(part)


def _safetensors(shard: dict[str, Tensor]) -> list[memoryview]:
    """Yields the bytes of a safetensors file: a header, then the tensors in place.

    The library's `save` copies them twice before the first byte is written: 29 of 50 ms for 25 MB, in which the
    trainer waits. Format: https://github.com/huggingface/safetensors#format
    """
    import torch

    # The widest types first: then every tensor begins at a multiple of its width.
    ordered = dict(sorted(shard.items(), key=lambda item: (-item[1].element_size(), item[0])))
    tensors = [memoryview(tensor.reshape(-1).view(torch.uint8).numpy()) for tensor in ordered.values() if tensor.nbytes]
    return [memoryview(safetensors_header(ordered)), *tensors]


def safetensors_header(tensors: Mapping[str, Tensor]) -> bytes:
    """Returns the beginning of a safetensors file, if these tensors follow in this order."""
    header, end = dict[str, Any](), 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        dtype = DTYPES[str(tensor.dtype)]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    # The format requires tensors to begin at a multiple of 8 bytes; blanks after the header are allowed.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_all(file: RawIOBase, content: memoryview) -> None:
    """Writes all bytes, in as many calls as the system needs (one call writes at most 2 GiB)."""
    while content:
        content = content[file.write(content) :]


def set_aside(path: Path, size: int) -> None:
    """Creates a file of `size` zeros with reserved memory: when that is full, the error comes now, not later."""
    with open(path, "wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, max(1, size))
        except OSError as error:
            raise UserError(f"{path.parent.parent} has no room for {_mib(size)} of weights ({error})") from error


def read_chunk(path: Path, place: int, chunk_bytes: int) -> bytes:
    """One piece of a file."""
    with open(path, "rb", buffering=0) as file:
        return os.pread(file.fileno(), chunk_bytes, place * chunk_bytes)


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"


def in_shards(named_tensors: Iterable[tuple[str, Tensor]], shard_bytes: int) -> Iterator[dict[str, Tensor]]:
    """Yields the tensors on the CPU, in parts of `shard_bytes` and at most one tensor more."""
    shard: dict[str, Tensor] = {}
    held = 0
    for name, tensor in named_tensors:
        # Contiguous, because a file stores no strides.
        shard[name] = tensor.detach().to("cpu").contiguous()
        held += tensor.nbytes
        if held >= shard_bytes:
            yield shard
            shard, held = {}, 0
    if shard:
        yield shard
