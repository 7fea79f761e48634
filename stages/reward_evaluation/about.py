"""What others may ask of stage `reward_evaluation`."""

from __future__ import annotations

from typing import Any

from stages.foundations.about import About


def _sections() -> dict[str, Any]:
    from stages.reward_evaluation.params import RewardEvaluationParams

    return {"reward_evaluation": RewardEvaluationParams}


ABOUT = About(sections=_sections, lane="Reward model", is_varied=True)
