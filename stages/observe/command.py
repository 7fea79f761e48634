"""The shell of every stage command: exit codes, dying with DVC, and failure after an edit of the stage's inputs.

Exit codes: 0 done; 2 a mistake of the user (a flag, a parameter, a missing file), explained in one sentence; 1 any
other failure.
"""

from __future__ import annotations

import atexit
import errno
import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

from stages.foundations.errors import UserError, gpu_failure
from stages.foundations.packages import missing_package
from stages.observe.lifetime import DVC_STAGE, die_with_dvc

# Threads that wait by spinning take the core from the process they wait for. With another job beside it on two cores,
# sft took 5 times the CPU time (107 s instead of 20 s). Read when torch loads, which is after this module. It saves
# time and changes no sum.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def run_stage(main: Callable[[], None]) -> None:
    """`run_command` for a stage: inside `dvc repro` it fails when its inputs change while it runs.

    Only the main process compares (stages/observe/unchanged.py), not the other ranks.
    """
    run_command(lambda: run_unchanged(main))


def run_unchanged(main: Callable[[], None]) -> None:
    """Runs `main`. Inside `dvc repro`, UserError when the stage's parameters, code or dependencies change meanwhile."""
    address = os.environ.get(DVC_STAGE)
    if not address or os.environ.get("RANK", "0") != "0":
        main()
        return
    from stages.observe.unchanged import unchanged_inputs  # here: set-up runs before pydantic is installed

    with unchanged_inputs(address):
        try:
            main()
        # A stage that exits with 0 has succeeded, and is compared like one that returns.
        except SystemExit as end:
            if end.code:
                raise


def run_command(main: Callable[[], None]) -> None:
    """Runs `main` and ends this process with the code of the table above."""
    code: int | str | None = 1
    # Registered first, so it runs last: Python calls such functions in reverse.
    atexit.register(lambda: end_soon(code if isinstance(code, int) else int(code is not None)))
    die_with_dvc()
    try:
        main()
        code = 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except SystemExit as end:
        code = end.code
        raise
    except Exception as error:
        missing = missing_package(error)
        failure = missing or storage_failure(error) or gpu_failure(error)
        if not failure:
            raise
        print(f"error: {failure}", file=sys.stderr)
        code = 2 if missing else 1
    except KeyboardInterrupt:
        print("interrupted: the next run resumes from the last checkpoint", file=sys.stderr)
        # Shells report this for a program that Ctrl-C has ended: 128 plus the number of SIGINT.
        code = 130
    sys.exit(code)


def end_soon(code: int) -> None:
    """Ends the process when threads have ended and other functions at exit have run: saves 1.2 s of CPU time.

    With torch loaded, Python would free half a million objects, and Triton's library would print those that are left.
    Without it, only the last garbage collection is skipped.
    """
    if "torch" in sys.modules or "triton" in sys.modules:
        end_at_once(code)
    gc.freeze()


def end_at_once(code: int) -> None:
    """Ends this process without Python's teardown. Raises where a stream cannot be flushed."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    os._exit(code)


def storage_failure(error: BaseException) -> str:
    """Returns what is wrong with the disk and what to do, when the error says so; else empty.

    Libraries in other languages (safetensors, tokenizers) raise separate error classes with the system's words in them.
    """
    where = getattr(error, "filename", None) or os.getcwd()
    code, text = getattr(error, "errno", None), str(error)
    if code in (errno.ENOSPC, errno.EDQUOT) or os.strerror(errno.ENOSPC) in text:
        return f"no disk space left at {where}: free some and run again, finished work is kept"
    if code == errno.EFBIG or os.strerror(errno.EFBIG) in text:
        return f"a file at {where} has reached the size limit: raise the limit (`ulimit -f`) and run again"
    if code == errno.EROFS or os.strerror(errno.EROFS) in text:
        return f"{where} is on a read-only file system: mount it for writing, or run in a copy of the project"
    if code in (errno.EACCES, errno.EPERM) and isinstance(error, OSError):
        return f"{where} may not be written or read by this user: change its permissions (chmod, chown)"
    if code in (errno.EEXIST, errno.ENOTDIR) and isinstance(error, OSError):
        # The error names the folder that was to be created, not the file above it that blocks it.
        standing = next((one for one in (Path(where), *Path(where).parents) if os.path.lexists(one)), Path("/"))
        # A folder in its place is a mistake of this code: that keeps its traceback.
        if standing.is_dir():
            return ""
        return f"{standing} is a file, and a folder is needed there: move it away, or name another folder"
    return ""
