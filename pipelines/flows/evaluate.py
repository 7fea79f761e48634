"""The Prefect flow `evaluate`: one policy on every benchmark, with all that it depends on brought up to date."""

from __future__ import annotations

from pathlib import Path

import pipelines.ui.prefect_home  # noqa: F401 (Prefect reads it when it is imported)

# isort: split
from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed

from pipelines.flows.pages import best_scores, metric_tables
from pipelines.flows.stage_task import failed
from pipelines.flows.whole_graph import (
    AS_IT_IS,
    EXPECTED,
    Hours,
    Policy,
    RecipeOrAsItIs,
    named,
    project_folder,
    run_name_of_form,
    run_stages,
)
from pipelines.graph.recipes import recipe_in_use
from stages.foundations.errors import UserError
from stages.foundations.params import read_yaml
from stages.foundations.stage import about
from stages.foundations.stage_graph import read_definitions, stages_of


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
        policy: Which policy to measure. It must be one of the recipe's.
        recipe: Which recipe to take into use first: params.yaml becomes its copy. The first choice changes nothing.
        hours_per_stage: A stage that runs longer is stopped, and the flow fails. 0 is what `launch.hours` says.
        project: Folder of another DVC project on the worker's machine. Empty is this project.
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
        return Completed(message=f"{policy} {best_scores(root, stage.metrics[0])}; {done.told()}")
