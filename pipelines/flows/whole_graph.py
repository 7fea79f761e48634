"""The Prefect flows `reproduce`, a task for each DVC stage that has to run, and `evaluate`, one policy's benchmarks.

DVC decides which stages run. The flow adds time limits, logs, GPUs and the end of child processes. `dvc repro` alone
gives the same result. `make ui` offers both flows with forms.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pipelines.ui.prefect_home  # noqa: F401 (Prefect reads it when it is imported)

# isort: split
from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed
from pydantic import Field

from pipelines.commands.mirroring import rebuild as mirror
from pipelines.flows.pages import UNCHANGED, Done, best_scores, metric_tables, result_message, result_page, run_name
from pipelines.flows.stage_task import StageFailed, bring_up_to_date, failed
from pipelines.graph.damaged_files import run_and_repair
from pipelines.graph.graph import count_unchanged, project_folder, stages_in_order
from pipelines.graph.project_lock import project_lock
from pipelines.graph.recipes import read_recipe, recipe_in_use, recipe_names, remove_orphaned_outputs
from pipelines.graph.result import read_result
from pipelines.graph.sharing import pull_before_run, push_after_run
from pipelines.launching.launchers import stage_hours
from pipelines.records.graph_run import record_graph_run
from pipelines.runtime.process_group import TimedOut
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT
from stages.foundations.params import read_yaml
from stages.foundations.stage import about
from stages.foundations.stage_graph import read_definitions, stages_of


def policy_names(root: Path) -> list[str]:
    """Policies that some recipe evaluates."""
    found: dict[str, None] = {}
    for name in recipe_names(root):
        found |= dict.fromkeys(read_recipe(root, name).get("policies", ()))
    return list(found)


AS_IT_IS = "params.yaml as it is"
# The choices in a flow's form: the files that exist when the flow is loaded.
Recipe = Literal[*recipe_names(PROJECT)]  # type: ignore[valid-type]
RecipeOrAsItIs = Literal[AS_IT_IS, *recipe_names(PROJECT)]  # type: ignore[valid-type]
Policy = Literal[*policy_names(PROJECT)]  # type: ignore[valid-type]
Hours = Annotated[float, Field(ge=0, le=24 * 30)]
EXPECTED = (UserError, StageFailed, TimedOut)
"""Errors whose message explains the cause. Prefect would add a traceback to the log."""


def run_name_of_form() -> str:
    """Returns the name of the run in progress, from its form."""
    given = flow_run.parameters
    try:
        return run_name(project_folder(given.get("project", "")), named(given.get("recipe", AS_IT_IS)))
    except UserError:
        # The flow itself reports it.
        return ""


@flow(name="reproduce", flow_run_name=lambda: run_name_of_form() or "reproduce", log_prints=False, persist_result=False)
def reproduce(recipe: RecipeOrAsItIs = AS_IT_IS, hours_per_stage: Hours = 0.0, project: str = "") -> State:
    """Bring every stage up to date, from raw data to the report. Unchanged stages are not run again.

    Args:
        recipe: Recipe to take into use first: it is copied to params.yaml. The first choice changes nothing.
        hours_per_stage: A stage that runs longer is stopped, and the flow fails. 0: `launch.hours` is the limit.
        project: Folder of another DVC project on the worker's machine. Empty: this project.
    """
    logger = get_run_logger()
    try:
        root = project_folder(project)
        with recipe_in_use(root, named(recipe), logger.info):
            done = run_stages(root, hours_per_stage)
            result = read_result(root)
            page = result_page(root, result, done)
    except EXPECTED as error:
        logger.error("%s", error)
        return failed(error)
    create_markdown_artifact(page, key="result", description="What this run achieved")
    for warning in result["warnings"] if result else ():
        logger.warning("%s", warning)
    return Completed(message=result_message(result, done))


@flow(
    name="evaluate",
    flow_run_name=lambda: f"{flow_run.parameters['policy']} of {run_name_of_form() or 'this project'}",
    log_prints=False,
    persist_result=False,
)
def evaluate(
    policy: Policy, recipe: RecipeOrAsItIs = AS_IT_IS, hours_per_stage: Hours = 0.0, project: str = ""
) -> State:
    """Measure one policy on every benchmark. Scores come with their 95% intervals.

    Args:
        policy: Policy to measure, one of the recipe's.
        recipe: Recipe to take into use first: it is copied to params.yaml. The first choice changes nothing.
        hours_per_stage: A stage that runs longer is stopped, and the flow fails. 0: `launch.hours` is the limit.
        project: Folder of another DVC project on the worker's machine. Empty: this project.
    """
    logger = get_run_logger()
    try:
        return _evaluate(project_folder(project), policy, named(recipe), hours_per_stage)
    except EXPECTED as error:
        logger.error("%s", error)
        return failed(error)


def _evaluate(root: Path, policy: str, recipe: str, hours_per_stage: float) -> State:
    with recipe_in_use(root, recipe, get_run_logger().info):
        stages = stages_of(read_definitions(root / "dvc.yaml"), read_yaml(root / "params.yaml"))
        # A stage with scores runs over the policies, so its item is the policy.
        scoring = {stage.item: stage for stage in stages if about(stage.name).score_keys}
        if policy not in scoring:
            raise UserError(
                f"params.yaml measures no policy {policy!r}: choose one of {', '.join(scoring)}, or another recipe"
            )
        stage = scoring[policy]
        done = run_stages(root, hours_per_stage, targets=(stage.address,))
        create_markdown_artifact(
            "\n".join([f"## {policy}", "", *metric_tables(root, stage.metrics[0])]),
            key=f"scores-{policy.replace('_', '-')}",
            description=f"Scores of policy {policy}",
        )
        return Completed(message=f"{policy} {best_scores(root, stage.metrics[0])}; {done.summary()}")


def named(recipe: str) -> str:
    """Returns the recipe that was chosen in a form; "" for the first choice."""
    return "" if recipe == AS_IT_IS else recipe


def run_stages(
    root: Path, hours_per_stage: float, targets: tuple[str, ...] = (), env: Mapping[str, str] | None = None
) -> Done:
    """Brings the graph up to date, or only `targets` and the stages before them. Each stage that runs is a task.

    UserError before the first stage when params.yaml is wrong. The first failure is raised. With a default DVC remote,
    existing results are pulled, and results are pushed at the end. MLflow is updated after a failure, and at the
    end when `dvc.lock` has changed. Errors of the remote or of MLflow are logged and do not fail the flow.
    """
    logger, started, before = get_run_logger(), time.monotonic(), _on_record(root)
    tell = logger.info
    remove_orphaned_outputs(root)
    try:
        flags, hours = pull_before_run(root, tell), stage_hours(root, hours_per_stage)
        outcomes: dict[str, Any] = {}

        def bring_all() -> int:
            left = stages_in_order(root, targets)
            while left:
                # Released before the task, which takes the lock itself.
                with project_lock(root, tell):
                    count = count_unchanged(root, left, flags)
                # A second round, after a repair, must not hide what the first one did.
                outcomes.update({stage.name: outcomes.get(stage.name, UNCHANGED) for stage in left[:count]})
                for stage in left[count : count + 1]:
                    task = bring_up_to_date.with_options(task_run_name=stage.name)
                    outcomes[stage.name] = task(str(root), stage, hours, env, flags, return_state=True).result()
                left = left[count + 1 :]
            return 0

        run_and_repair(root, bring_all, tell, lambda: project_lock(root, tell))
        push_after_run(root, tell)
    except Exception:
        # Not after an interrupt: a user who presses Ctrl-C would have to wait.
        _mirror(root, tell)
        raise
    if _on_record(root) != before:
        _mirror(root, tell)
    # Also when nothing ran: `dvc repro` alone leaves no record.
    done = Done(outcomes, time.monotonic() - started, record_graph_run(root, logger.warning))
    tell(f"{done.summary()}, {len(done.stages(UNCHANGED))} were up to date")
    return done


def _on_record(root: Path) -> bytes:
    lock = root / "dvc.lock"
    return lock.read_bytes() if lock.exists() else b""


def _mirror(root: Path, tell: Callable[[str], None]) -> None:
    if os.environ.get("RETRACE_TRACKING") == "off":
        return
    try:
        report = mirror(root, root / "state")
    except UserError as error:
        tell(f"warning: {error}")
        return
    for line in [report.summary(), *(f"warning: {problem}" for problem in report.problems)]:
        tell(line)
