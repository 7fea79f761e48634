"""What others may ask of stage `t2i_base`."""

from __future__ import annotations

from typing import Any

from stages.foundations.about import About


def _sections() -> dict[str, Any]:
    from stages.t2i_base.params import T2iBaseParams

    return {"t2i_base": T2iBaseParams}


ABOUT = About(
    sections=_sections,
    runs_model=True,
    raw=lambda params: [params.get("t2i_base")],
    named_after=("policy",),
    lane="Text to image",
)
