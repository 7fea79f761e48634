"""Brings .venv up to date before a make target: python3 pipelines/set_up.py repro [RECIPE]

Other targets: test, ui, docs, bench, and add GROUP... for optional packages (add lora).

Runs with the system's Python and only the standard library. This file must parse on any Python, so that an
unsupported version is rejected in one line; the work is in environment.py.
"""

import os
import platform
import sys

if not (3, 11) <= sys.version_info[:2] <= (3, 13):
    sys.exit(
        "error: Retrace needs Python 3.11, 3.12 or 3.13 and %s is %d.%d.%d: install one of them, "
        "then name it: make PYTHON=python3.12 ..." % ((sys.executable,) + sys.version_info[:3])
    )
if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
    sys.exit(
        "error: Retrace needs Linux on x86-64 or aarch64 and this is %s on %s: use such a machine or a container"
        % (sys.platform, platform.machine())
    )

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from pipelines.environment import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
