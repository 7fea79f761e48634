"""A small ablation file: two variants of one RL round, as `retrace ablate mini` runs it in a copy of the project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.fakes.miniature import LAPTOP

ROUND = {
    "start_from": "sft",
    "steps": 2,
    "warmup_steps": 1,
    "problems": "problems/train",
    "problem_slice": {"index": 0, "count": 1},
    "prompt_selection": {"kind": "all"},
}
OWN = ("policies", "rl_rounds.rl_1.steps", "rl_rounds.rl_2.steps", "rl_rounds.rl_3")


def mini_ablation() -> dict[str, Any]:
    """Returns the file's content."""
    overrides = {name: value for name, value in LAPTOP.items() if name not in OWN}
    overrides |= {"policies": ["sft", "rl_1"], "rl_rounds": {"rl_1": ROUND}, "report.baseline_policy": "sft"}
    return {
        "name": "mini",
        "title": "Two learning rates",
        "paper": {"reference": "nobody (2020), table 0", "measures": "accuracy in percent"},
        "claim": "A smaller learning rate is better.",
        "notes": "For tests.",
        "recipe": "laptop",
        "policy": "rl_1",
        "seeds": [0, 1],
        "baseline": "plain",
        "is_ladder": False,
        "expected_seconds": {"shared": 20, "run": 10},
        "overrides": overrides,
        "variants": {
            "plain": {"says": "the recipe"},
            "slow": {"says": "half the learning rate", "rl.optimizer.learning_rate": 0.00025},
        },
        "metrics": {
            "accuracy": {
                "kind": "score",
                "label": "held out avg@2",
                "unit": "percent",
                "file": "grade/{policy}",
                "key": "arithmetic_held_out/avg_at_2",
            },
            "length": {
                "kind": "curve_mean",
                "label": "response length",
                "unit": "tokens",
                "file": "rl_round/{policy}",
                "column": "length/response_tokens_mean",
                "last_steps": 1,
            },
        },
        "comparisons": [
            {"metric": "accuracy", "variant": "slow", "against": "plain", "direction": "higher", "margin": None}
        ],
        "published": {"plain": {"accuracy": 30.0}, "slow": {"accuracy": 36.0}},
    }


def write_ablation(root: Path, content: dict[str, Any]) -> None:
    """Writes pipelines/ablations/<name>.yaml of the project at `root`."""
    path = root / "pipelines" / "ablations" / f"{content['name']}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content, sort_keys=False))
