"""What others may ask of stage `generate`."""

from __future__ import annotations

from typing import Any

from stages.foundations.about import About


def _sections() -> dict[str, Any]:
    from stages.generate.params import GenerateParams, GeneratorsParams

    return {"generate": GenerateParams, "generators": GeneratorsParams}


ABOUT = About(sections=_sections, runs_model=True, named_after=("policy",), lane="Text to image")
