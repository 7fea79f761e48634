"""What others may ask of stage `t2i_prompts`."""

from __future__ import annotations

from typing import Any

from stages.foundations.about import About


def _sections() -> dict[str, Any]:
    from stages.t2i_prompts.params import T2iPromptsParams, TextToImageParams

    return {"t2i": TextToImageParams, "t2i_prompts": T2iPromptsParams}


def _raw(params: Any) -> list[Any]:
    own = params.get("t2i_prompts") or {}
    files = [{"kind": "jsonl", **source} for source in own.get("sources", {}).values()]
    return files or [own]


ABOUT = About(
    sections=_sections,
    raw=_raw,
    lane="Text to image",
    has_funnel=True,
    tables={"t2i/prompts": "Prompts that pictures are made of, with their split."},
)
