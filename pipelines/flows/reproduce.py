"""The Prefect flow `reproduce`: one task per DVC stage, in graph order, with live logs.

DVC owns what runs, the flow owns clocks, logs, GPUs and the end of child processes. `dvc repro` alone gives the same
result.

    python -m pipelines.flows.reproduce            # once, on the server at PREFECT_API_URL or a passing one of its own

`make ui` has it as a deployment that is started from a form.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import pipelines.ui.prefect_home  # noqa: F401 (Prefect reads it when it is imported)

# isort: split
from prefect import flow, get_run_logger
from prefect.settings import PREFECT_API_URL
from pydantic import Field

from pipelines.flows.choices import AS_IT_IS, RecipeOrAsItIs
from pipelines.flows.stage_task import StageFailed, bring_up_to_date
from pipelines.graph.graph import stages_in_order
from pipelines.graph.params_lock import recipe_in_use
from pipelines.graph.recipes import clear_strays, parameters_changed
from pipelines.graph.sharing import pull_before_run, push_after_run
from pipelines.launching.resources import stage_hours
from pipelines.mirroring.mirror import mirror
from pipelines.runtime.process_group import TimedOut, terminated_as_interrupt
from pipelines.ui.temporary_server import passing_server
from stages.foundations.errors import UserError
from stages.foundations.scratch import PROJECT

Hours = Annotated[float, Field(ge=0, le=24 * 30)]


@flow(name="reproduce", flow_run_name="reproduce", log_prints=False, persist_result=False)
def reproduce(recipe: RecipeOrAsItIs = AS_IT_IS, hours_per_stage: Hours = 0.0, project: str = "") -> None:
    """Bring every stage up to date, from raw data to the report. What has not changed is not run again.

    Args:
        recipe: Which recipe to take into use first: params.yaml becomes its copy. The first choice changes nothing.
        hours_per_stage: A stage that runs longer is stopped, and the flow fails. 0 is what `launch.hours` says.
        project: Folder of another DVC project on the worker's machine. Empty is this project.
    """
    root = project_folder(project)
    with recipe_in_use(root, named(recipe), get_run_logger().info):
        run_stages(root, hours_per_stage)


def project_folder(project: str) -> Path:
    """The folder that a flow's parameter names, this project for none. UserError where no DVC project is."""
    root = Path(project).absolute() if project else PROJECT
    if not (root / "dvc.yaml").is_file():
        raise UserError(
            f"project {project!r} is no DVC project of this machine: {root / 'dvc.yaml'} is missing"
        )
    return root


def named(recipe: str) -> str:
    """The recipe that a form's choice names; "" for the first choice."""
    return "" if recipe == AS_IT_IS else recipe


def run_stages(
    root: Path, hours_per_stage: float, targets: tuple[str, ...] = (), env: Mapping[str, str] | None = None
) -> None:
    """Brings stages up to date, each as a task of the flow that runs: all, or `targets` and what they depend on.

    UserError before the first stage when params.yaml is wrong. The first failure raises. With a default DVC remote,
    what is there is pulled instead of computed, and results are pushed. In the end, failed or not, MLflow is brought up
    to date with what is on record. When remote or MLflow fail, the log says so and the flow has still succeeded.
    """
    tell = get_run_logger().info
    if parameters_changed(root):
        if (root / "pipelines" / "graph" / "schema.py").exists():
            from pipelines.graph.schema import check_params

            check_params(root / "params.yaml", root)
        clear_strays(root)
    try:
        flags, hours = pull_before_run(root, tell), stage_hours(root, hours_per_stage)
        for stage in stages_in_order(root, targets):
            bring_up_to_date.with_options(task_run_name=stage.name)(str(root), stage, hours, env, flags)
        push_after_run(root, tell)
    finally:
        _mirror(root, tell)


def _mirror(root: Path, tell: Callable[[str], None]) -> None:
    try:
        report = mirror(root, root / "state")
    except UserError as error:
        tell(f"warning: {error}")
        return
    for line in [report.told(), *(f"warning: {problem}" for problem in report.problems)]:
        tell(line)


def main(argv: list[str]) -> int:
    """Runs the flow once in this project or that of a folder; SIGTERM ends the stage with all its processes.

    0 done, 1 a stage failed, 2 a mistake of the caller, 130 interrupted.
    """
    try:
        folder = str(project_folder(argv[0])) if argv else ""
        with terminated_as_interrupt(), nullcontext() if PREFECT_API_URL.value() else passing_server():
            reproduce(project=folder)
    except (UserError, StageFailed, TimedOut) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        print("interrupted: nothing is left running; the next run goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
