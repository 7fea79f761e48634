"""Versions of a policy's weights as files in a node's memory: one writer, any number of readers, nobody waits.

    /dev/shm/retrace-<run>-<node>/00000012/manifest.json, 00000.safetensors, ...

A version is written under another name and then renamed: a reader sees all of it or nothing. A version that is removed
while somebody reads it stays whole for that reader, because the kernel keeps a mapped file until it is let go.

Needs torch only to write and to read tensors: a relay, which moves files, starts without it.
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
"""Weights in one file: bounds what the writer holds twice."""
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
"""Safetensors' names."""
SPARE_BYTES = 8 << 20
"""Left free beside a version: manifests, and what Ray itself keeps in the same place."""


class VersionGone(LookupError):
    """The version is not in the folder: removed since, or not there yet. Take a newer one."""


def weights_folder(run: str, node: str, memory: Path = MEMORY) -> Path:
    """The folder of a run on a node. `run` tells the runs of a machine apart, `node` the nodes on it (in tests)."""
    return memory / f"{PREFIX}{run}-{node}"


@dataclass(frozen=True)
class WeightsFile:
    """One shard of a version."""

    name: str
    size: int
    """Bytes."""
    checksums: list[int]
    """CRC-32 of each chunk: of a copy that may be damaged on its way, not of one that somebody forges."""


@dataclass(frozen=True)
class Manifest:
    """What belongs to a version."""

    version: int
    chunk_bytes: int
    files: list[WeightsFile]
    metadata: dict[str, Any]
    """What the writer adds: JSON, such as the log-probs that whoever loads the version must get."""

    @property
    def digest(self) -> str:
        """Tells two versions of one number apart."""
        return hashlib.sha256(self.to_bytes()).hexdigest()[:16]

    def to_bytes(self) -> bytes:
        """As JSON; equal manifests are equal bytes."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Manifest:
        """What `to_bytes` gave."""
        fields = json.loads(content)
        return cls(**fields | {"files": [WeightsFile(**file) for file in fields["files"]]})

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """(file's place in `files`, chunk's place in the file) of every chunk."""
        return [(place, chunk) for place, file in enumerate(self.files) for chunk in range(len(file.checksums))]


class PublishedWeights:
    """The versions in one folder. Any process may hold one for the same folder; only one of them writes a version."""

    def __init__(self, folder: Path, chunk_bytes: int = 64 << 20) -> None:
        self.folder, self.chunk_bytes = folder, chunk_bytes
        # Closed to others, and checked below: everybody may write in /dev/shm, under any name.
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise UserError(f"{folder} belongs to another user: remove it, or wait until that user's run has ended")
        self._remove_partial()

    def publish(
        self, version: int, named_tensors: Iterable[tuple[str, Tensor]], metadata: dict[str, Any] | None = None
    ) -> Manifest:
        """Writes a version. The same one again is left as it is; another one of that number takes its place.

        UserError when the memory has no room, before a shard is written; what was there before is untouched.
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
            # Also after an error in the middle: half a version would keep its memory until the run ends.
            shutil.rmtree(beside, ignore_errors=True)
        return manifest

    def beside(self, version: int) -> Path:
        """Where this process may gather the files of a version until `put_in_place`."""
        return self.folder / f".{version:08d}.{os.getpid()}.partial"

    def put_in_place(self, beside: Path, manifest: Manifest) -> None:
        """Makes a whole folder the version that readers see."""
        place = self.place(manifest.version)
        try:
            # A trainer that resumed publishes the same version again: whoever reads it keeps its files.
            if self.manifest(manifest.version) == manifest:
                return
            # Moved away first: a folder cannot be renamed onto one that is not empty.
            os.replace(place, beside.with_suffix(".old"))
        except VersionGone:
            pass
        os.replace(beside, place)
        shutil.rmtree(beside.with_suffix(".old"), ignore_errors=True)

    def versions(self) -> list[int]:
        """Those that are whole, oldest first."""
        # What is being written or removed has a name that begins with a dot.
        return sorted(int(entry.name) for entry in os.scandir(self.folder) if entry.name.isdecimal())

    def newest(self) -> int | None:
        """The largest version; None when there is none."""
        return max(self.versions(), default=None)

    def manifest(self, version: int) -> Manifest:
        """What belongs to a version. VersionGone."""
        try:
            return Manifest.from_bytes((self.place(version) / MANIFEST).read_bytes())
        except FileNotFoundError:
            raise VersionGone(f"version {version} is not in {self.folder}, which has {self.versions()}") from None

    def load(self, version: int) -> tuple[dict[str, Any], Iterator[tuple[str, Tensor]]]:
        """Metadata and tensors of a version. VersionGone before the first tensor, never between two of them.

        The tensors are mapped files: copy what must outlive the next version, and write into none.
        """
        from safetensors import safe_open

        manifest = self.manifest(version)
        try:
            # All of them at once: from here on it does not matter that somebody removes the version.
            shards = [safe_open(self.place(version) / file.name, framework="pt") for file in manifest.files]
        # The second comes from torch, when a file goes while it is opened.
        except (FileNotFoundError, RuntimeError):
            if all((self.place(version) / file.name).exists() for file in manifest.files):
                raise
            raise VersionGone(f"version {version} was removed from {self.folder} a moment ago") from None
        tensors = ((name, shard.get_tensor(name)) for shard in shards for name in shard.keys())  # noqa: SIM118
        return manifest.metadata, tensors

    def prune(self, keep: int) -> list[int]:
        """Removes all but the newest `keep` versions and returns those that it removed; a reader of one keeps it."""
        versions = self.versions()
        gone = versions[: max(0, len(versions) - keep)]
        for version in gone:
            # Renamed first: a reader must not find half of it. Somebody else may be pruning too.
            removed = self.beside(version).with_suffix(".old")
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.place(version), removed)
            shutil.rmtree(removed, ignore_errors=True)
        return gone

    def place(self, version: int) -> Path:
        """Where the files of a version lie, if it is here."""
        return self.folder / f"{version:08d}"

    def _write(self, path: Path, shard: dict[str, Tensor]) -> WeightsFile:
        pieces = _safetensors(shard)
        size = sum(map(len, pieces))
        # Two ways for one thing: the first gives the remedy, the second holds the memory against other programs.
        require_room(self.folder, size)
        set_aside(path, size)
        sums = _Checksums(self.chunk_bytes)
        with open(path, "r+b", buffering=0) as file:
            for piece in pieces:
                write_all(file, piece)
                sums.add(piece)
        return WeightsFile(path.name, size, sums.of_chunks)

    def _remove_partial(self) -> None:
        """What a writer that was killed has left."""
        for path in self.folder.glob(".*"):
            writer = path.name.split(".")[2] if path.name.count(".") == 3 else ""
            # A living writer may be in the middle of its version, in this process or in another.
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
    """CRC-32 of each chunk of what comes in pieces of any size."""

    def __init__(self, chunk_bytes: int) -> None:
        self.of_chunks: list[int] = []
        self._chunk_bytes, self._room = chunk_bytes, 0

    def add(self, piece: memoryview) -> None:
        """The next piece."""
        while piece:
            if not self._room:
                self.of_chunks.append(0)
                self._room = self._chunk_bytes
            part, piece = piece[: self._room], piece[self._room :]
            self.of_chunks[-1] = zlib.crc32(part, self.of_chunks[-1])
            self._room -= len(part)


def _safetensors(shard: dict[str, Tensor]) -> list[memoryview]:
    """A safetensors file as the bytes that it is made of: a header, then the tensors where they lie.

    The library's own `save` copies them twice before the first byte is written: 29 of 50 ms for 25 MB, in which the
    trainer waits. Format: https://github.com/huggingface/safetensors#format
    """
    import torch

    # The widest numbers first: then every tensor begins at a multiple of its width.
    ordered = dict(sorted(shard.items(), key=lambda item: (-item[1].element_size(), item[0])))
    tensors = [memoryview(tensor.reshape(-1).view(torch.uint8).numpy()) for tensor in ordered.values() if tensor.nbytes]
    return [memoryview(safetensors_header(ordered)), *tensors]


def safetensors_header(tensors: Mapping[str, Tensor]) -> bytes:
    """What a safetensors file begins with, if these tensors follow in this order."""
    header, end = dict[str, Any](), 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        dtype = DTYPES[str(tensor.dtype)]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    # The format wants tensors to begin at a multiple of 8 bytes; blanks behind the header are allowed.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_all(file: RawIOBase, content: memoryview) -> None:
    """Writes all of it, in as many calls as the system wants (2 GiB is the most in one)."""
    while content:
        content = content[file.write(content) :]


def set_aside(path: Path, size: int) -> None:
    """A file of `size` zeros that has its memory: when that is full it is an error here and not half a file later."""
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
    """The tensors on the CPU, in parts of `shard_bytes` and at most one tensor more."""
    shard: dict[str, Tensor] = {}
    held = 0
    for name, tensor in named_tensors:
        # Contiguous, because a file holds no strides.
        shard[name] = tensor.detach().to("cpu").contiguous()
        held += tensor.nbytes
        if held >= shard_bytes:
            yield shard
            shard, held = {}, 0
    if shard:
        yield shard
