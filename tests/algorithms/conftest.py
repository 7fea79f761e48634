"""The shapes declared on the formulas are checked at every call while the tests run."""

from jaxtyping import install_import_hook

import tests.fakes.shape_checks  # noqa: F401 - jaxtyping looks it up by name but does not import it

install_import_hook(
    [
        f"stages.algorithms.{module}"
        for module in (
            "group_advantages",
            "length_rewards",
            "optimal_token_baseline",
            "policy_losses",
            "preference_ranking",
            "reward_feedback",
            "rollout_correction",
            "token_statistics",
            "trust_region_masking",
            "vocabulary_pruning",
        )
    ],
    "tests.fakes.shape_checks.checked",
)
