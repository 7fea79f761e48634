"""Runs a stage in a process in which every function of `stages.observe` does nothing.

    python -m tests.fakes.unobserved sft --params params.yaml ...

Prints which code of the project the stage has run: a line `module name` for each definition.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import runpy
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]


class Run:
    """A run that records nothing."""

    def log(self, values: Any, step: int) -> None:
        pass

    def summary(self, values: Any) -> None:
        pass

    def phase(self, name: str) -> nullcontext[None]:
        return nullcontext()


@contextmanager
def track(attempt: Any) -> Iterator[Run]:
    yield Run()


STAND_INS = {
    "command": {"run_stage": lambda main: main()},
    "lifetime": {"die_with_parent": lambda: None},
    "progress": {
        "progress": lambda iterable, *_, **__: iterable,
        "say": lambda line: None,
        "say_warnings": lambda *_: None,
    },
    "quick_imports": {"quick_imports": nullcontext},
    "tracking": {"track": track, "Run": Run},
}


def main(arguments: list[str]) -> None:
    for name, functions in {"": {}, **STAND_INS}.items():
        full = f"stages.observe.{name}".rstrip(".")
        sys.modules[full] = module = ModuleType(full)
        module.__dict__.update(functions)
    sys.modules["stages.observe"].__path__ = []  # a package without modules
    sys.argv = ["stages", *arguments]
    # Most of the calls until a stage begins are those of libraries, and their imports: nobody asks about them.
    gc.disable()
    for library in ("torch._dynamo", "transformers.generation", "pandas", "pyarrow.parquet"):
        importlib.import_module(library)
    gc.freeze()
    gc.enable()
    ran = set()

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            ran.add(frame.f_code)

    threading.setprofile(called)
    sys.setprofile(called)
    runpy.run_module("stages", run_name="__main__", alter_sys=True)
    sys.setprofile(None)
    for code in ran:
        name, file = code.co_qualname.partition(".")[0], code.co_filename
        is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)  # not the body of a class or a module
        if is_function and file.startswith(f"{PROJECT}/stages/") and not name.startswith("<"):
            print(".".join(Path(file).relative_to(PROJECT).with_suffix("").parts), name)
    sys.stdout.flush()
    os._exit(0)  # tearing down all imports takes longer than the stage


if __name__ == "__main__":
    main(sys.argv[1:])
