"""What the machine offers: Python and packages, GPU, memory, disk, ports and the servers behind them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from pathlib import Path

import psutil

from pipelines.doctor.finding import Finding, ok, problem, warning
from pipelines.environment import CUDA_GIB, STAMP, has_nvidia_gpu, lock_group, read_lock
from pipelines.ui.guard import HOST
from pipelines.ui.servers import port_number
from stages.engines.workers.sandbox import lacking

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
GIB = 2**30
LITTLE_DISK, TOO_LITTLE_DISK = 10 * GIB, 2 * GIB
LITTLE_MEMORY = 2 * GIB
NEEDED_GROUPS = ("core",)
SHOWN = 5
SERVERS = {"Prefect": ("PREFECT_PORT", 4200, "/api/health"), "MLflow": ("MLFLOW_PORT", 5000, "/health")}


def check_python(root: Path, version: tuple[int, int] | None = None) -> Iterator[Finding]:
    """The version, and whether it is the project's own environment."""
    version = version or sys.version_info[:2]
    text = ".".join(map(str, version))
    if version < OLDEST_PYTHON:
        yield problem(
            "python", f"{text}", "install Python 3.11, 3.12 or 3.13, then `make PYTHON=python3.12 set-up`"
        )
    elif version > NEWEST_PYTHON:
        yield warning("python", f"{text}, which nobody tried", "Python 3.11 to 3.13 are supported")
    elif Path(sys.prefix).resolve() != (root / ".venv").resolve():
        yield warning(
            "python", f"{text} of {sys.prefix}, not of .venv", "`source .venv/bin/activate`, or `make set-up`"
        )
    else:
        yield ok("python", f"{text} in .venv")


def check_packages(root: Path, installed: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """Installed versions against requirements.lock: those of complete groups must be there, others must agree."""
    lock = root / "requirements.lock"
    if not lock.exists():
        yield problem("packages", f"{lock} is missing", "`git checkout requirements.lock`")
        return
    groups = read_lock(lock.read_text(encoding="utf-8"))
    installed = installed if installed is not None else _installed()
    done = _complete_groups(root)
    needed = {lock_group(group) for group in (*NEEDED_GROUPS, *done)}
    other_vllm = {"vllm-cpu", "vllm-cuda"} - {lock_group("vllm")}
    missing, other, count = [], [], 0
    for group, pins in groups.items():
        for name, pinned in (
            _pin(pin) for pin in pins if group not in other_vllm and not _is_conditional(pin)
        ):
            found = installed.get(_normal(name))
            if found is None and group in needed:
                missing.append(name)
            elif found is not None:
                count += 1
                if found.partition("+")[0] != pinned:
                    other.append(f"{name} {found} instead of {pinned}")
    if missing:
        yield problem("packages", f"missing: {_some(missing)}", "`make set-up`")
    if other:
        yield problem(
            "packages", f"other versions than locked: {_some(other)}", f"delete .venv/{STAMP}, `make set-up`"
        )
    if not missing and not other:
        yield ok("packages", f"{count} as locked" + (f"; groups {', '.join(sorted(done))}" if done else ""))


def _pin(line: str) -> tuple[str, str]:
    """Name and version of `name==version ; marker --hash=...`."""
    name, _, rest = line.partition("==")
    return name, rest.split()[0].rstrip(";")


def _is_conditional(line: str) -> bool:
    """Whether the package is for some Pythons or machines only."""
    return " ; " in line


def _installed() -> dict[str, str]:
    return {
        _normal(found.metadata["Name"]): found.version
        for found in importlib.metadata.distributions()
        if found.metadata["Name"]
    }


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _complete_groups(root: Path) -> list[str]:
    try:
        return json.loads((root / ".venv" / STAMP).read_text())["groups"]
    except (OSError, ValueError, KeyError):
        return []


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def check_gpu() -> Iterator[Finding]:
    """Driver, torch's build, and whether torch sees what the driver shows."""
    import torch

    build = torch.version.cuda
    if not has_nvidia_gpu():
        if build:
            yield warning(
                "gpu", f"none, and torch is a build for CUDA {build}", "it works, and takes more disk"
            )
        else:
            yield ok("gpu", f"none: everything runs on the CPU ({os.cpu_count()} cores)")
        return
    shown = _nvidia_smi()
    if shown is None:
        yield problem(
            "gpu", "there is a GPU, and nvidia-smi does not answer", "install or reload the NVIDIA driver"
        )
        return
    if not build:
        remedy = (
            f"delete .venv and `make set-up` with an index that has CUDA builds (about {CUDA_GIB:.0f} GiB)"
        )
        yield problem("gpu", f"{'; '.join(shown)}; torch {torch.__version__} is a CPU build", remedy)
    elif not torch.cuda.is_available():
        yield problem(
            "gpu",
            f"torch for CUDA {build} cannot use it",
            "update the driver, or look at CUDA_VISIBLE_DEVICES",
        )
    else:
        yield ok("gpu", f"{'; '.join(shown)}; torch for CUDA {build}")
    yield from _used_gpus(shown)


def _nvidia_smi() -> list[str] | None:
    """`name, driver, used MiB, total MiB` of each GPU."""
    command = [
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.used,memory.total",
        "--format=csv,noheader,nounits",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().splitlines() if done.returncode == 0 and done.stdout.strip() else None


def _used_gpus(shown: list[str]) -> Iterator[Finding]:
    for number, line in enumerate(shown):
        used, total = (float(part) for part in line.split(",")[2:4])
        if used > 0.2 * total:
            text = f"GPU {number}: {used:,.0f} of {total:,.0f} MiB are in use"
            yield warning("gpu memory", text, "`nvidia-smi` names the processes; end what you started")


def check_memory() -> Iterator[Finding]:
    memory = psutil.virtual_memory()
    text = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    if memory.available < LITTLE_MEMORY:
        yield warning("memory", text, "the laptop recipe takes 1.6 GiB: end other programs")
    else:
        yield ok("memory", text)


def check_disk(places: Mapping[str, Path]) -> Iterator[Finding]:
    """Free space and writability where the project, its cache and its state lie; a file system once."""
    seen: dict[int, str] = {}
    for name, place in places.items():
        there = next(folder for folder in (place, *place.parents) if folder.exists())
        device = there.stat().st_dev
        if not os.access(there, os.W_OK):
            yield problem(
                "disk",
                f"{name} {there} cannot be written",
                "check its owner and whether it is mounted read-only",
            )
        if device in seen:
            continue
        seen[device] = name
        free = shutil.disk_usage(there).free
        text = f"{free / GIB:.1f} GiB free for {name} ({there})"
        if free < TOO_LITTLE_DISK:
            yield problem(
                "disk",
                text,
                "free some: `dvc gc --workspace` drops old results, state/scratch old checkpoints",
            )
        elif free < LITTLE_DISK:
            yield warning("disk", text, "`dvc gc --workspace` drops the cache of old results")
        else:
            yield ok("disk", text)


def check_sandbox() -> Iterator[Finding]:
    """Whether the kernel can confine the workers that read web pages, images and model output."""
    if missing := lacking():
        remedy = "use Linux 5.13 or newer on x86-64 or aarch64, or read no untrusted data: docs/security.md"
        yield warning("workers", f"not confined here: {'; '.join(missing)}", remedy)
    else:
        yield ok("workers", "confined: no network, no new processes, no writing, no files of the user")


def check_servers() -> Iterator[Finding]:
    """Whether the ports of `make ui` are free, or our servers answer there."""
    for name, (variable, usual, path) in SERVERS.items():
        text = os.environ.get(variable) or str(usual)
        port = port_number(text)
        if port is None:
            yield problem(name, f"{variable}={text} is no port number", f"`unset {variable}`, or give one")
        elif _is_free(port):
            yield ok(name, f"not running; port {port} is free for `make ui`")
        elif _answers(f"http://{HOST}:{port}{path}"):
            yield ok(name, f"running at http://{HOST}:{port}")
        else:
            text = f"something else listens on port {port}"
            yield warning(name, text, f"end it, or choose another port: `make ui {variable}={port + 1}`")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=3) as answer:
            return answer.status == 200
    except (OSError, HTTPException):  # the second from what listens there and speaks no HTTP
        return False
