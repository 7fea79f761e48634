"""Makes the base policy: from a hub, a folder, a GGUF file in a Python package, or random numbers."""

from __future__ import annotations

from stages.base.sources import make_base_policy
from stages.engines.policies.policy_folders import count_policy
from stages.foundations.files import replace_folder
from stages.foundations.job import Job
from stages.foundations.metrics import write_metrics
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Makes the policy and writes it, metrics last."""
    with track(job.attempt(policy="base")) as run:
        with replace_folder(job.paths.policy) as folder:
            make_base_policy(job.sections["base"], job.seed, folder)
            metrics = count_policy(folder)
        run.summary(metrics)
        write_metrics(job.paths.metrics, metrics)
