"""Runs the Prefect flow `reproduce` once, by hand.

Prefect takes seconds to start, and so does a temporary server. So this module first lets DVC check the stages, and
starts neither when no stage has to run. With PREFECT_API_URL the flow always runs, so that the server has a record.

    python -m pipelines.flows.reproduce [PROJECT]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from pipelines.commands.repro import show_result
from pipelines.graph.damaged_files import remove_damage
from pipelines.graph.graph import count_unchanged, project_folder, stages_in_order
from pipelines.graph.project_lock import project_lock
from pipelines.graph.recipes import remove_orphaned_outputs
from pipelines.graph.sharing import push_after_run
from pipelines.records.graph_run import record_graph_run
from stages.foundations.errors import UserError
from stages.observe.progress import say
from stages.observe.quick_imports import quick_imports


def main(argv: list[str]) -> int:
    """Returns 0 done, 1 a stage failed, 2 a mistake of the caller, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.flows.reproduce",
        description="Runs the Prefect flow `reproduce` once: a task for each stage that has to run, with live logs. "
        "Set PREFECT_API_URL to show it on a server that runs; otherwise a temporary server is used.",
    )
    parser.add_argument("project", nargs="?", default="", help="folder of a DVC project (default: this project)")
    given, started = parser.parse_args(argv), time.monotonic()
    try:
        root = project_folder(given.project)
        # With a server the flow runs anyway: users look there for a record of the run.
        if not os.environ.get("PREFECT_API_URL") and is_up_to_date(root):
            push_after_run(root)
            record_graph_run(root)
            code = 0
        else:
            with quick_imports():
                from pipelines.flows.whole_graph import run_by_hand

            code = run_by_hand(given.project and str(root))
        if code == 0:
            show_result(root, time.monotonic() - started)
        return code
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: no process is left; the next run resumes here", file=sys.stderr)
        return 130


def is_up_to_date(root: Path) -> bool:
    """True where DVC would run no stage; it is reported. Data that exist only in a remote count as missing."""
    with project_lock(root, say):
        remove_orphaned_outputs(root)
        remove_damage(root, say)
        stages = stages_in_order(root)
        if count_unchanged(root, stages) < len(stages):
            return False
    say(f"everything is up to date: {len(stages)} stages")
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
