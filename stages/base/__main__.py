"""Makes the base policy: from a hub, a folder, a GGUF file in a Python package, or random numbers.

python -m stages.base --params params.yaml --policy data/policies/base --metrics data/metrics/base.json
"""

from __future__ import annotations

from stages.base.params import BaseParams
from stages.foundations.attempt import attempt_at
from stages.foundations.files import replace_folder
from stages.foundations.metrics import write_metrics
from stages.foundations.params import load_section, load_value
from stages.foundations.paths import parse_paths
from stages.observe.command import run_stage
from stages.observe.quick_imports import quick_imports
from stages.observe.tracking import track


def main(argv: list[str] | None = None) -> None:
    """Runs the stage."""
    paths = parse_paths("base", argv, __doc__, inputs=[], outputs=["policy", "metrics"])
    params = load_section(paths.params, "base", BaseParams)
    seed = load_value(paths.params, "seed")
    with quick_imports():
        from stages.base.sources import make_base_policy
        from stages.engines.policies.policy_folders import count_policy

    described = {"seed": seed, "base": params.model_dump()}
    with track(attempt_at("base", described, inputs={}, policy="base")) as run:
        with replace_folder(paths.policy) as folder:
            make_base_policy(params, seed, folder)
            metrics = count_policy(folder)
        run.summary(metrics)
        write_metrics(paths.metrics, metrics)


if __name__ == "__main__":
    run_stage(main)
