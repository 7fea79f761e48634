"""What `make repro [RECIPE=name]` runs after set-up: takes the recipe into use and runs `dvc repro`.

With a default DVC remote, what is there is pulled instead of computed, and results are pushed (docs/sharing.md).
It ends with the scores, the gain, the time and what to type next.
Ctrl-C, SIGTERM or the end of this process end DVC and its stage with it; the next call resumes.

    python -m pipelines.commands.repro [RECIPE]
"""

from __future__ import annotations

import sys
import time

from pipelines.graph.graph import what_to_repro
from pipelines.graph.params_lock import recipe_in_use
from pipelines.graph.project_lock import project_lock
from pipelines.graph.recipes import clear_strays
from pipelines.graph.result import changes_from_recipe, read_result, summarize
from pipelines.graph.sharing import pull_before_run, push_after_run
from pipelines.records.graph_run import record_graph_run
from pipelines.runtime.process_group import dvc, run_in_group, terminated_as_interrupt
from stages.foundations.scratch import PROJECT
from stages.observe.command import run_stage
from stages.observe.progress import say


def main() -> None:
    """Exits with DVC's code."""
    recipe, started = sys.argv[1] if sys.argv[1:] else "", time.monotonic()
    with terminated_as_interrupt(), recipe_in_use(PROJECT, recipe, say), project_lock(PROJECT, say) as lock:
        clear_strays(PROJECT)
        code = run_in_group(
            dvc("repro", *pull_before_run(PROJECT), *what_to_repro(PROJECT)), PROJECT, held=[lock]
        )
        if code:
            sys.exit(code)
        push_after_run(PROJECT)
    result = read_result(PROJECT)
    if result:
        record_graph_run(PROJECT)
        lines = summarize(result, time.monotonic() - started, changes_from_recipe(PROJECT))
        print("\n" + "\n".join(lines))


if __name__ == "__main__":
    run_stage(main)
