"""The Prefect flow `ablate`: `retrace ablate` with its log, progress and table in the UI."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Annotated, Literal

import pipelines.ui.prefect_home  # noqa: F401 (Prefect reads it when it is imported)

# isort: split
from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from pydantic import Field

from pipelines.ablating.definition import ablation_names
from pipelines.flows.stage_task import StageFailed, TaskLog, remedy
from pipelines.runtime.process_group import environment, run_in_group
from stages.foundations.machine import PROJECT

Ablation = Literal[*ablation_names(PROJECT)]  # type: ignore[valid-type]
"""The choices in the form: the files that exist."""
# In a separate process, which ends with all its children when the flow is cancelled.
RETRACE = [sys.executable, "-c", "from pipelines.cli import app; app()"]


@flow(name="ablate", flow_run_name="ablate {ablation}", log_prints=False, persist_result=False)
def ablate(
    ablation: Ablation,
    jobs: Annotated[int, Field(ge=1, le=64)] = 1,
    variants: str = "",
    seeds: Annotated[str, Field(pattern=r"^[0-9, ]*$")] = "",
    revision: str = "HEAD",
) -> None:
    """Run an ablation: every variant with every seed, in git worktrees. Finished runs are not run again.

    Args:
        ablation: File of pipelines/ablations.
        jobs: Number of runs at once. Each run uses one thread.
        variants: Variants to run, separated by commas. Empty: all.
        seeds: Seeds of the file to run, separated by commas. Empty: all.
        revision: Git revision whose code is run.
    """
    chosen = {"--jobs": str(jobs), "--variants": variants, "--seeds": seeds, "--revision": revision}
    run_ablation.with_options(task_run_name=ablation)(ablation, [f"{name}={value}" for name, value in chosen.items()])


@task(name="ablation", cache_policy=NO_CACHE, persist_result=False, retries=0)
def run_ablation(ablation: str, options: list[str]) -> None:
    """Raises StageFailed with the last lines when a run fails or the command is rejected."""
    log = TaskLog(ablation, f"Progress of ablation {ablation}", Progress())
    code = run_in_group([*RETRACE, "ablate", ablation, *options], PROJECT, log, env=environment())
    if code:
        reason = f"ablation {ablation} failed (exit code {code}). What to do: {remedy(log.last)}"
        raise StageFailed("\n".join([reason, "Its last lines:", *log.last]))
    log.finish()
    table = subprocess.run(
        [*RETRACE, "ablate", ablation, "--markdown"],
        cwd=PROJECT,
        env=environment(),
        text=True,
        capture_output=True,
        check=True,
    ).stdout
    create_markdown_artifact(table, key=f"ablation-{ablation}", description=f"Results of ablation {ablation}")


class Progress:
    """Percent of the runs that are done, read from the output of `retrace ablate`."""

    def __init__(self) -> None:
        self.total = 0

    def __call__(self, line: str) -> float | None:
        if found := re.search(r": (\d+) of \d+ runs to do", line):
            self.total = int(found[1])
        found = re.match(r"\s*(\d+) runs left", line)
        return 100 * (1 - int(found[1]) / self.total) if found and self.total else None
