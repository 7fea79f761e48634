"""What `make repro [RECIPE=name]` runs after set-up: takes the recipe into use and runs `dvc repro`.

With a default DVC remote, what is there is pulled instead of computed, and results are pushed (docs/sharing.md).
Ctrl-C, SIGTERM or the end of this process end DVC and its stage with it; the next call goes on.

    python -m pipelines.graph.repro [RECIPE]
"""

from __future__ import annotations

import sys

from pipelines.graph.graph import what_to_repro
from pipelines.graph.params_lock import recipe_in_use
from pipelines.graph.project_lock import project_lock
from pipelines.graph.recipes import clear_strays, parameters_changed
from pipelines.graph.schema import check_params
from pipelines.graph.sharing import pull_before_run, push_after_run
from pipelines.runtime.process_group import dvc, run_in_group, terminated_as_interrupt
from stages.foundations.scratch import PROJECT
from stages.observe.command import run_stage
from stages.observe.progress import say


def main() -> None:
    """Exits with DVC's code."""
    recipe = sys.argv[1] if sys.argv[1:] else ""
    with terminated_as_interrupt(), recipe_in_use(PROJECT, recipe, say), project_lock(PROJECT, say) as lock:
        if parameters_changed(PROJECT):
            check_params(PROJECT / "params.yaml")
        clear_strays(PROJECT)
        code = run_in_group(
            dvc("repro", *pull_before_run(PROJECT), *what_to_repro(PROJECT)), PROJECT, held=[lock]
        )
        if code:
            sys.exit(code)
        push_after_run(PROJECT)
    if (PROJECT / "reports" / "index.html").exists():
        print(f"report: {PROJECT / 'reports' / 'index.html'}")


if __name__ == "__main__":
    run_stage(main)
