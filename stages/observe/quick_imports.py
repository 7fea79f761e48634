"""Imports of torch and transformers in two thirds of their time.

    with quick_imports():
        from stages.sft.stage import run_sft

A stage is a process of its own, and a small one spends more time on imports than on work.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

UNUSED = ("sklearn", "scipy")
"""What transformers loads where it is installed, for assisted generation and the detection of objects: 2 s of CPU time.
"""


@contextmanager
def quick_imports() -> Iterator[None]:
    """Inside, no garbage is collected, and the packages in `UNUSED` seem not to be installed unless they are loaded.

    Nothing is hidden once transformers is loaded: it has looked what is installed, and would miss it.
    Imports make half a million objects that stay; to look through them for garbage again and again takes 1.5 s. What
    was so before is so afterwards, also when an import fails.
    """
    was_collecting = gc.isenabled()
    hidden = [name for name in UNUSED if name not in sys.modules and "transformers" not in sys.modules]
    gc.disable()
    sys.modules.update(dict.fromkeys(hidden))  # None: importing it raises ImportError
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
        if was_collecting:
            gc.enable()
