"""This machine: folders for the project's state and its mirror, features of the CPU, and environment variables.

Nothing here is part of a result, so params.yaml contains none of it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from stages.foundations.errors import UserError
from stages.foundations.files import dump_yaml, load_yaml

PROJECT = Path(__file__).resolve().parents[2]
MAKER_VARIABLE = "RETRACE_MAKER"
"""Environment variable with the address of the stage that runs (`respond@rl_1`): see stages/foundations/tables.py."""


def state_folder() -> Path:
    """Returns `$RETRACE_STATE`, else `state/` of the DVC project that runs this stage, else of this source tree.

    `$DVC_ROOT` counts because `dvc exp run --temp` runs a temporary copy of the tree. The folder is closed to
    other accounts of the machine: it contains prompts, databases and logins.
    """
    if os.environ.get("RETRACE_STATE"):
        folder = Path(os.environ["RETRACE_STATE"]).absolute()
    else:
        folder = Path(os.environ.get("DVC_ROOT") or PROJECT).absolute() / "state"
    _close_to_others(folder)
    return folder


@functools.cache
def _close_to_others(folder: Path) -> None:
    with suppress(OSError):  # the first use of the folder raises a better error
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = folder.stat().st_mode
        # If the group may write, the user shares the folder with it, or is its only member.
        allowed = 0o770 if mode & 0o020 else 0o700
        if mode & 0o777 & ~allowed:
            folder.chmod(mode & allowed)


FILE = "machine.yaml"
"""Beside params.yaml, left out of git: `mirror: /data/mirror`, a path from the project's root or an absolute one."""
MIRROR_VARIABLE = "RETRACE_MIRROR"
MIRROR_BESIDE = Path("../shared/data/mirror")


def mirror_folder(root: Path | None = None) -> Path | None:
    """Returns the folder in which files are named by sha256, searched before the network; None where there is none.

    `$RETRACE_MIRROR` comes first (empty: none), then `mirror` in machine.yaml, then `../shared/data/mirror`.
    `root` is the project of the machine.yaml, by default the one that runs this stage. UserError
    where the named one is not a folder, or machine.yaml has other content.
    """
    # Empty is not absent: a test or a user sets it to say that there is no mirror.
    named = os.environ.get(MIRROR_VARIABLE)
    if named is not None:
        return _folder(from_root(named), f"${MIRROR_VARIABLE}") if named else None
    root = root or from_root("")
    settings = root / FILE
    if settings.is_file():
        try:
            content = load_yaml(settings.read_text(encoding="utf-8")) or {}
        except ValueError as error:
            raise UserError(f"{settings} is no YAML ({error}): it holds one line, `mirror: FOLDER`") from None
        if not isinstance(content, dict) or not isinstance(content.get("mirror"), str) or len(content) > 1:
            raise UserError(f"{settings} holds {content!r}, but it may only hold `mirror: FOLDER`")
        # An absolute path stays as it is: `/` of pathlib drops what comes before one.
        return _folder(root / content["mirror"], f"`mirror` in {settings}")
    beside = root / MIRROR_BESIDE
    return beside.absolute() if beside.is_dir() else None


def _folder(folder: Path, setting: str) -> Path:
    if not folder.is_dir():
        raise UserError(f"{setting} names {folder}, which is no folder here: correct it, or remove it")
    return folder.absolute()


def share_mirror(root: Path, folder: Path) -> None:
    """Gives another checkout the mirror of the project at `root`. Files of a mirror are checked by their hash."""
    mirror = mirror_folder(root)
    if mirror is not None:
        (folder / FILE).write_text(dump_yaml({"mirror": str(mirror)}), encoding="utf-8")


def list_gpus(*variables: str) -> list[str]:
    """Returns the NVIDIA GPUs in the first of these variables with a value, else those of the machine: `0`, `1`, ..."""
    for name in variables:
        if name in os.environ:
            # CUDA reads an empty value and -1 as "no device".
            return [word.strip() for word in os.environ[name].split(",") if word.strip() not in ("", "-1")]
    # /dev needs no library, so `retrace` finds GPUs without torch. It also has nvidiactl and nvidia-uvm.
    numbers = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia*")]
    return sorted((number for number in numbers if number.isdecimal()), key=int)


def from_root(path: str | Path) -> Path:
    """Paths are relative to the project's root, even where DVC runs a copy of the tree."""
    return Path(os.environ.get("DVC_ROOT") or ".") / path


BFLOAT16_INSTRUCTIONS = {"avx512bw", "avx_ne_convert", "bf16"}
"""With any of these flags torch multiplies bfloat16 by oneDNN (bf16: ARM)."""
BFLOAT16_REMEDY = (
    "set trainer.dtype and sampler.dtype to float32 (other numbers, within the noise), or take a GPU, or a CPU with "
    "AMX or AVX-512"
)


def is_bfloat16_slow(cpu: Path = Path("/proc/cpuinfo")) -> bool:
    """True where products in bfloat16 take 10 to 40 times as long as in float32 (docs/evidence/measurements.md).

    False where `cpu` does not list the features.
    """
    try:
        lines = cpu.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    # Linux calls the list `flags` on x86 and `Features` on ARM. One core represents all.
    named = next((line for line in lines if line.lower().startswith(("flags", "features"))), None)
    return named is not None and not BFLOAT16_INSTRUCTIONS & set(named.partition(":")[2].split())


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets the variables for the block and restores the earlier values, even when the block raises."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
