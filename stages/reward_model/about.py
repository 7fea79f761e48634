"""What others may ask of stage `reward_model`."""

from __future__ import annotations

from typing import Any

from stages.foundations.about import About


def _sections() -> dict[str, Any]:
    from stages.reward_model.params import RewardModelParams

    return {"reward_model": RewardModelParams}


ABOUT = About(sections=_sections, lane="Reward model", is_varied=True)
