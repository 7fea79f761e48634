"""The program of `make repro [RECIPE=name] [VERBOSE=1]` after set-up: takes the recipe into use, runs `dvc repro`.

With a default DVC remote, existing results are pulled instead of computed, and new results are pushed
(docs/how-to/share-results.md). It shows the plan, then a line for each stage (pipelines/graph/console.py); with
`--verbose` it shows DVC's output. It ends with the scores, the gain, the time and the next commands.
Ctrl-C, SIGTERM or the end of this process also end DVC and its stage; the next call resumes.

    python -m pipelines.commands.repro [RECIPE] [--verbose]
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing
from pathlib import Path

from pipelines.graph.console import LOG, Console
from pipelines.graph.damaged_files import run_and_repair
from pipelines.graph.graph import repro_arguments, run_told_repro
from pipelines.graph.project_lock import project_lock
from pipelines.graph.recipes import recipe_in_use, remove_orphaned_outputs
from pipelines.graph.result import changes_from_recipe, read_result, summarize
from pipelines.graph.sharing import pull_before_run, push_after_run
from pipelines.records.committed_run import compare_with_committed
from pipelines.records.graph_run import record_graph_run
from pipelines.runtime.process_group import dvc, environment, run_in_group, terminated_as_interrupt
from stages.foundations.machine import PROJECT
from stages.observe.command import run_stage
from stages.observe.progress import LINE_SECONDS, say


def main() -> None:
    """Exits with the code of the stage that failed, or DVC's."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.commands.repro")
    parser.add_argument("recipe", nargs="?", default="", help="a name in pipelines/recipes/, without .yaml")
    parser.add_argument("--verbose", action="store_true", help="show all output of DVC and of the stages")
    chosen, started = parser.parse_args(), time.monotonic()
    # Every command takes the recipe's lock before the project's, which avoids deadlocks.
    with terminated_as_interrupt(), recipe_in_use(PROJECT, chosen.recipe, say), project_lock(PROJECT, say) as lock:
        remove_orphaned_outputs(PROJECT)
        code = run_and_repair(PROJECT, lambda: run_graph(lock, chosen.verbose), say)
        if code:
            sys.exit(code)
        # Still under the lock, because the next run would change the files to push.
        push_after_run(PROJECT)
    # After the locks are released: MLflow may be slow, and another run need not wait for it.
    record_graph_run(PROJECT)
    show_result(PROJECT, time.monotonic() - started)


def show_result(root: Path, seconds: float) -> None:
    """Prints the result of the run of the graph and its wall time; nothing if there is no report."""
    if result := read_result(root):
        beside = compare_with_committed(root)
        print("\n" + "\n".join(summarize(result, seconds, changes_from_recipe(root), beside)))


def run_graph(lock: int, is_verbose: bool) -> int:
    """Runs `dvc repro` under the project's lock and returns the exit code."""
    arguments = [*pull_before_run(PROJECT), *repro_arguments(PROJECT)]
    if is_verbose:
        return run_in_group(dvc("repro", *arguments), PROJECT, held=[lock])
    with (
        open(PROJECT / LOG, "w", encoding="utf-8", buffering=1) as log,
        closing(Console(PROJECT, sys.stdout, log)) as console,
    ):
        # On a terminal the last line is rewritten, so stages may report every second.
        env = {**environment(), **({LINE_SECONDS: "1"} if console.rewrites else {})}
        code = run_told_repro(PROJECT, arguments, console.hear, console.tell, env, [lock])
        if not code:
            console.end()
        return code


if __name__ == "__main__":
    run_stage(main)
