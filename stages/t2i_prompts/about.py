"""What others may ask of stage `t2i_prompts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stages.foundations.about import About, Sections


def _sections() -> dict[str, Any]:
    from stages.t2i_prompts.params import T2iPromptsParams, TextToImageParams

    return {"t2i": TextToImageParams, "t2i_prompts": T2iPromptsParams}


def _raw(params: Any) -> list[Any]:
    own = params.get("t2i_prompts") or {}
    files = [{"kind": "jsonl", **source} for source in own.get("sources", {}).values()]
    return files or [own]


def _prompts(sections: Sections) -> Mapping[str, int]:
    """As many as the stage would make; nothing where a file is not there."""
    from stages.foundations.errors import UserError
    from stages.t2i_prompts.prompts import SPLITS, make_prompts

    try:
        _, _, counted = make_prompts(sections["t2i_prompts"], sections["seed"])
    except (UserError, OSError):
        return {}
    return {split: int(counted[f"prompts/{split}"]) for split in SPLITS}


ABOUT = About(
    headline=("rows/kept", "{:,.0f} prompts"),
    sections=_sections,
    prompts=_prompts,
    raw=_raw,
    lane="Text to image",
    has_funnel=True,
    tables={"t2i/prompts": "Prompts that pictures are made of, with their split."},
)
