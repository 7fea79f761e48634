"""Separate file systems for tests of full and read-only disks."""

import subprocess

import pytest


def mount(*arguments) -> None:
    """Runs `mount`; skips the test if this user may not mount, because it cannot fill a disk otherwise."""
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this user may not mount file systems: {done.stderr.strip()}")


def mount_small(folder, size_bytes: int) -> None:
    """Mounts a file system in memory of that size on the folder, which must exist."""
    mount("-t", "tmpfs", "-o", f"size={size_bytes}", "none", folder)


def fill(folder, block_bytes: int = 4096) -> None:
    """Writes the file `filler` until the disk is full."""
    with open(folder / "filler", "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(b"0" * block_bytes)
        except OSError:
            return
