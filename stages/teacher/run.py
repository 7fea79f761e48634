"""Copies the policy that `teachers.<round>` names to the round's folder of its teacher.

A round depends on that folder, and not on the policy: a dependency of DVC cannot be left out where a setting is absent.
"""

from __future__ import annotations

import shutil

from stages.foundations.files import replace_folder, write_metrics
from stages.foundations.job import Job
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Writes the copy, and the number of its files as the metric."""
    with track(job.attempt(round=job.item)) as run:
        with replace_folder(job.paths.out) as folder:
            shutil.copytree(job.paths.policy, folder, dirs_exist_ok=True)
        metrics = {"files/copied": sum(path.is_file() for path in job.paths.out.rglob("*"))}
        write_metrics(job.paths.metrics, metrics)
        run.summary(metrics)
