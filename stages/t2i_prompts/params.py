"""Parameters of stage t2i_prompts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.foundations.params import StrictParams


class Branch(StrictParams):
    """What stands under the branch's name in section `t2i`: nothing. The name alone puts the branch into the graph."""


TextToImageParams = Annotated[dict[str, Branch], Field(max_length=1)]
"""Section `t2i`: a name for the text-to-image branch, or nothing where a recipe has none.

The stages of the branch that run once run over it, because DVC cannot leave out a plain stage.
"""


class ShapePrompts(StrictParams):
    """Prompts of the generated shape world (stages/algorithms/shape_world)."""

    kind: Literal["shapes"]
    max_of_kind: dict[str, Annotated[int, Field(ge=0)]]
    """Most prompts of a kind (`relation: 132`); kinds that are not named come whole."""
    validation_prompts: int = Field(ge=1)
    """Of all kinds alike; drawn with the recipe's seed, as the test prompts are."""
    test_prompts: int = Field(ge=1)


class PromptFile(StrictParams):
    """Lines of a JSONL file, `.gz` too, that hold a prompt."""

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
    """Name of the source -> its file. A prompt that comes twice belongs to the test split, else to the first source."""
    validation_prompts: int = Field(ge=1)
    """Taken from the train split at random."""
    max_prompt_characters: int = Field(ge=1)
    """Longer prompts are dropped (DiffusionDB's longest have about 600)."""


T2iPromptsParams = Annotated[ShapePrompts | FilePrompts, Field(discriminator="kind")]
