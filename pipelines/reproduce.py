"""The Prefect flow `reproduce`: one task per DVC stage, in graph order, with live logs.

DVC owns what runs, the flow owns clocks, logs, GPUs and the end of child processes. `dvc repro` alone gives the same
result.

    python -m pipelines.reproduce            # once, on the server at PREFECT_API_URL or a passing one of its own

`make ui` has it as a deployment that is started from a form.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import pipelines.prefect_home  # noqa: F401 (Prefect reads it when it is imported)

# isort: split
from prefect import flow, get_run_logger
from pydantic import Field

from pipelines.choices import AS_IT_IS, RecipeOrAsItIs
from pipelines.graph import stages_in_order
from pipelines.mirroring.mirror import mirror
from pipelines.process_group import terminated_as_interrupt
from pipelines.recipes import clear_strays, parameters_changed, use_recipe
from pipelines.sharing import pull_before_run, push_after_run
from pipelines.stage_task import bring_up_to_date
from stages.foundations.errors import UserError
from stages.foundations.scratch import PROJECT

Hours = Annotated[float, Field(gt=0, le=24 * 30)]


@flow(name="reproduce", flow_run_name="reproduce", log_prints=False, persist_result=False)
def reproduce(recipe: RecipeOrAsItIs = AS_IT_IS, hours_per_stage: Hours = 48.0, project: str = "") -> None:
    """Bring every stage up to date, from raw data to the report. What has not changed is not run again.

    Args:
        recipe: Which recipe to take into use first: params.yaml becomes its copy. The first choice changes nothing.
        hours_per_stage: A stage that runs longer is stopped, and the flow fails.
        project: Folder of another DVC project on the worker's machine. Empty is this project.
    """
    root = Path(project) if project else PROJECT
    if recipe != AS_IT_IS:
        use_recipe(root, recipe)
    run_stages(root, hours_per_stage)


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
        if (root / "pipelines" / "schema.py").exists():
            from pipelines.schema import check_params

            check_params(root / "params.yaml")
        clear_strays(root)
    try:
        flags = pull_before_run(root, tell)
        for stage in stages_in_order(root, targets):
            bring_up_to_date.with_options(task_run_name=stage.name)(
                str(root), stage, hours_per_stage, env, flags
            )
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


def main(argv: list[str]) -> None:
    """Runs the flow once in this project or that of a folder; SIGTERM ends the stage with all its processes."""
    with terminated_as_interrupt():
        reproduce(project=argv[0] if argv else "")


if __name__ == "__main__":
    main(sys.argv[1:])
