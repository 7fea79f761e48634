"""Parameters and paths of stage `t2i_prompts`, and its description for other modules."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from stages.foundations.params import StrictParams
from stages.foundations.stage import About, Stage


class PromptFile(StrictParams):
    """Lines of a JSONL file, also `.gz`, with a prompt each."""

    path: str
    """Absolute or relative to the project's root."""
    prompt_field: str
    split: Literal["train", "test"]
    max_prompts: int | None = Field(ge=1)
    """Lines read at most, from the beginning; null reads all."""


class FilePrompts(StrictParams):
    """Prompts of files."""

    kind: Literal["files"]
    sources: dict[str, PromptFile] = Field(min_length=1)
    """Name of the source -> its file. A repeated prompt belongs to the test split, else to the first source."""
    validation_prompts: int = Field(ge=1)
    """Prompts taken from the train split at random."""
    max_prompt_characters: int = Field(ge=1)
    """Longer prompts are dropped (DiffusionDB's longest have about 600)."""


class ShapePrompts(StrictParams):
    """Prompts of the generated shape world (stages/images/algorithms/shape_world)."""

    kind: Literal["shapes"]
    max_of_kind: dict[str, Annotated[int, Field(ge=0)]]
    """Most prompts of a kind (`relation: 132`); kinds without a limit are complete."""
    validation_prompts: int = Field(ge=1)
    """Share taken equally from all kinds, selected by the recipe's seed, as the test prompts are."""
    test_prompts: int = Field(ge=1)


T2iPromptsParams = Annotated[ShapePrompts | FilePrompts, Field(discriminator="kind")]


class Branch(StrictParams):
    """The entry under the branch's name in section `t2i` is empty. The name alone adds the branch to the graph."""


TextToImageParams = Annotated[dict[str, Branch], Field(max_length=1)]
"""Section `t2i`: a name for the text-to-image branch, or empty where a recipe has none.

The stages of the branch that run once have it as `foreach` section, because DVC cannot leave out a plain stage.
"""
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
    section = params.get("t2i_prompts") or {}
    files = [{"kind": "jsonl", **source} for source in section.get("sources", {}).values()]
    return files or [section]


ABOUT = About(
    description="Prompts of the text-to-image branch, split without overlap.",
    headline=("rows/kept", "{:,.0f} prompts"),
    raw=_raw,
)
