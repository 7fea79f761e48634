"""Bit rot: one bit of a file flips, and its size, time, mode and inode stay."""

from __future__ import annotations

import os
import random
from pathlib import Path


def flip(file: Path, bit: int = 0) -> None:
    """Flips a bit, counted from the start of the file, under all names of the file."""
    before = file.stat()
    file.chmod(0o644)
    with open(file, "r+b") as opened:
        opened.seek(bit // 8)
        byte = opened.read(1)[0]
        opened.seek(bit // 8)
        opened.write(bytes([byte ^ 1 << bit % 8]))
    file.chmod(before.st_mode & 0o7777)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def random_bits(files: list[Path], count: int, seed: int) -> list[tuple[Path, int]]:
    """Returns bits of these files, each byte of all of them as likely as any other."""
    chooser = random.Random(seed)
    chosen = chooser.choices(files, [file.stat().st_size for file in files], k=count)
    return [(file, chooser.randrange(8 * file.stat().st_size)) for file in chosen]
