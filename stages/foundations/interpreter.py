"""Ends a process that another Python than that of `.venv` runs. It is the first import of what DVC runs.

`dvc repro` takes the first `python` of PATH. Where DVC is installed elsewhere, or is called as `.venv/bin/dvc`, the
stages would end in a traceback about a missing package. Standard library only.
"""

import sys
from pathlib import Path

ENVIRONMENT = Path(__file__).resolve().parents[2] / ".venv"
ACTIVATE = "run `source .venv/bin/activate` and the same command again"

try:
    import psutil  # noqa: F401
    import pydantic  # noqa: F401
    import yaml  # noqa: F401
except ModuleNotFoundError as error:
    if Path(sys.prefix) == ENVIRONMENT:
        raise
    print(
        f"error: {sys.executable} has no package {error.name}, and is not the Python of {ENVIRONMENT}: "
        f"{ACTIVATE if ENVIRONMENT.exists() else 'run `make repro`'}",
        file=sys.stderr,
    )
    sys.exit(2)
