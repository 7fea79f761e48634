"""What a person may choose in the form of a flow, read from the files that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pipelines.ablating.definition import ablation_names
from pipelines.graph.resolved_recipes import read_recipe, recipe_names
from stages.foundations.scratch import PROJECT

AS_IT_IS = "params.yaml as it is"


def policy_names(root: Path) -> list[str]:
    """Policies that some recipe measures."""
    found: dict[str, None] = {}
    for name in recipe_names(root):
        found |= dict.fromkeys(read_recipe(root, name).get("policies", ()))
    return list(found)


Recipe = Literal[*recipe_names(PROJECT)]  # type: ignore[valid-type]
RecipeOrAsItIs = Literal[AS_IT_IS, *recipe_names(PROJECT)]  # type: ignore[valid-type]
Ablation = Literal[*ablation_names(PROJECT)]  # type: ignore[valid-type]
Policy = Literal[*policy_names(PROJECT)]  # type: ignore[valid-type]
