"""The process of one program of the tool `python`: it confines itself, then runs its input.

Its output is the program's output and nothing else, so a program can forge no message of this project.

    python -m stages.engines.environments.program_guest PARENT MEMORY_MIB SEED < PROGRAM
"""

from __future__ import annotations

import builtins
import os
import random
import sys
import traceback
from contextlib import suppress

from stages.engines.workers.sandbox import confine
from stages.engines.workers.worker import limit
from stages.observe.lifetime import die_with_parent


def main(parent: str, memory_mib: str, seed: str) -> None:
    """Exits with 1 after an exception, whose last line it prints behind a NUL."""
    die_with_parent(int(parent))
    program = sys.stdin.buffer.read().decode()
    limit(int(memory_mib), may_write_files=False)
    confine([])
    # The same program prints the same, in a resumed run too.
    random.seed(int(seed))
    # Python starts without `site`, which makes these two.
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    try:
        exec(compile(program, "program", "exec"), {"__name__": "__main__"})
    except SystemExit:
        raise
    except BaseException as error:
        # A program may have replaced `print` and `sys.stdout`.
        with suppress(BaseException):
            sys.stdout.flush()
        os.write(1, f"\0{traceback.format_exception_only(error)[-1].strip()}".encode("utf-8", "replace"))
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
