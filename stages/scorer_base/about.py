"""What others may ask of stage `scorer_base`."""

from __future__ import annotations

from typing import Any

from stages.foundations.about import About


def _sections() -> dict[str, Any]:
    from stages.scorer_base.params import ScorerBaseParams

    return {"scorer_base": ScorerBaseParams}


ABOUT = About(sections=_sections, lane="Reward model", raw=lambda params: [params.get("scorer_base")])
