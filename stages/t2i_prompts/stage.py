"""What stage `t2i_prompts` runs with, and what others may ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stages.foundations.stage import About, Sections, Stage
from stages.t2i_prompts.params import T2iPromptsParams, TextToImageParams

STAGE = Stage(
    sections={"seed": int, "t2i_prompts": T2iPromptsParams},
    outputs={
        "prompts": "data/t2i/prompts.parquet",
        "dropped": "data/dropped/t2i_prompts.parquet",
        "metrics": "data/metrics/t2i_prompts.json",
        "headline": "data/headline/t2i_prompts.json",
    },
    foreach="t2i",
    items=TextToImageParams,
)


def _raw(params: Any) -> list[Any]:
    own = params.get("t2i_prompts") or {}
    files = [{"kind": "jsonl", **source} for source in own.get("sources", {}).values()]
    return files or [own]


def _prompts(sections: Sections) -> Mapping[str, int]:
    """As many as the stage would make; nothing where a file is not there."""
    from stages.foundations.errors import UserError
    from stages.t2i_prompts.run import SPLITS, make_prompts

    try:
        _, _, counted = make_prompts(sections["t2i_prompts"], sections["seed"])
    except (UserError, OSError):
        return {}
    return {split: int(counted[f"prompts/{split}"]) for split in SPLITS}


ABOUT = About(
    description="Prompts of the text-to-image branch, split, none of the test split among the others.",
    headline=("rows/kept", "{:,.0f} prompts"),
    prompts=_prompts,
    raw=_raw,
    lane="Text to image",
    has_funnel=True,
    tables={"t2i/prompts": "Prompts that pictures are made of, with their split."},
)
