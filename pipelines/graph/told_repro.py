"""`dvc repro` that reports each stage as data: DVC by itself has only English sentences, which change with its version.

A report is a line with a mark that no other line has, then JSON (`StageReport` in graph.py). It stands between the
lines of the stages, where it belongs. DVC's own messages below a warning are left out.

    python -P told_repro.py MARK [--single-item] [--pull] [--allow-missing] [STAGE...]

Only the standard library and DVC are imported: `retrace verify` runs this file in the checkout of another commit.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import subprocess
import sys
import traceback
from typing import Any

from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.repo.reproduce import _reproduce_stage
from dvc.stage.cache import RunCacheNotFoundError, StageCache

FAILED = 255
"""Exit code of `dvc` where no stage has one."""


class ToldRepo(Repo):
    """DVC's project in the current folder, which waits for another DVC and prints the reports."""

    def __init__(self, mark: str) -> None:
        super().__init__(_wait_for_lock=True)
        self.mark, self.code, self.stage_cache = mark, FAILED, ToldCache(self)
        self.now: Any = None
        """The stage that is looked at."""

    def tell(self, what: str, code: int | None = None, reason: str = "") -> None:
        report = {"stage": self.now.addressing, "what": what, "code": code, "reason": reason}
        print(f"{self.mark}{json.dumps(report)}", flush=True)

    def pull(self, *given: Any, **named: Any) -> Any:
        self.tell("pulls")
        return super().pull(*given, **named)

    def reproduce_stage(self, stage: Any, **named: Any) -> Any:
        """What DVC does for each stage, with its reports."""
        self.now, self.stage_cache.is_restored = stage, False
        self.tell("begins")
        try:
            # Private, but DVC's argument `repro_fn` replaces just this, and it has no public function for one stage.
            made = _reproduce_stage(stage, **named)
        except Exception as error:
            code = exit_code(error)
            self.code = code if code and code > 0 else FAILED
            self.tell("failed", code, str(error))
            raise
        self.tell("restored" if made and self.stage_cache.is_restored else "ran" if made else "unchanged")
        return made


class ToldCache(StageCache):
    """DVC's cache of earlier runs: a stage runs where it has none."""

    is_restored = False

    def restore(self, stage: Any, *given: Any, **named: Any) -> None:
        try:
            super().restore(stage, *given, **named)
        except RunCacheNotFoundError:
            self.repo.tell("runs", reason=str(stage.cmd))
            raise
        self.is_restored = True


def exit_code(error: Exception) -> int | None:
    """Returns the exit code of the command that failed, negative for a signal; None where no command has run.

    DVC's error has it in words only. Its traceback still holds the process. A shell that does not become the command
    (dash) reports a signal as 128 more than its number.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            if isinstance(value, subprocess.Popen):
                code = value.returncode
                return 128 - code if code - 128 in set(signal.Signals) else code
    return None


def main(argv: list[str]) -> int:
    """Returns 0, the exit code of the stage that failed, or DVC's."""
    mark, *arguments = argv
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*")
    for flag in ("--single-item", "--pull", "--allow-missing"):
        parser.add_argument(flag, action="store_true")
    given = vars(parser.parse_args(arguments))
    # DVC's advice after a stage (`git add`, `dvc push`) is for a person at a terminal, and wrong within a run.
    for name in ("dvc", "dvc_objects", "dvc_data"):
        logging.getLogger(name).setLevel(logging.WARNING)
    repo = None
    try:
        with ToldRepo(mark) as repo:
            repo.reproduce(repro_fn=repo.reproduce_stage, **given)
    except DvcException:
        # For the log. Without a failed stage, such as for a broken dvc.yaml, it is all that the user gets.
        logging.getLogger("dvc").exception("")
        return repo.code if repo else FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
