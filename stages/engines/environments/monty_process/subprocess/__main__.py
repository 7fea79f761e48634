"""Becomes pydantic-monty's interpreter, confined: no network, no files, no other process.

The library starts `BINARY subprocess` without any environment variable. With Python as the binary and
`monty_process/` as the working folder, that runs this folder.
"""

import os
import resource
import shutil
import sys
import sysconfig
from pathlib import Path

ADDRESS_SPACE = 4 << 30
"""Bytes. The interpreter has the tool's limit for its heap; this one is for a fault in the interpreter."""


def main() -> None:
    # The library passes no PYTHONPATH.
    sys.path[0] = str(Path(__file__).resolve().parents[5])
    from stages.engines.workers.sandbox import confine
    from stages.observe.lifetime import die_with_parent

    die_with_parent()
    program = shutil.which("monty", path=sysconfig.get_path("scripts")) or sys.exit("there is no program `monty`")
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    confine([], os.path.realpath(program))
    os.execv(program, ["monty", "subprocess"])


if __name__ == "__main__":
    main()
