"""Brings .venv up to date before a make target: python3 pipelines/set_up.py repro [RECIPE] | test | ui | bench

Runs with the system's Python and the standard library only. This file must parse on any Python, so that an old one
is refused in one line; the work is in environment.py.
"""

import os
import sys

if sys.version_info < (3, 11):
    sys.exit(
        "error: Retrace needs Python 3.11 or newer and %s is %d.%d.%d: install one, "
        "or name it: make PYTHON=python3.12 ..." % ((sys.executable,) + sys.version_info[:3])
    )

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from pipelines.environment import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
