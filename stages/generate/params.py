"""Parameters of stage generate."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from stages.foundations.params import StrictParams

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class GenerateParams(StrictParams):
    """Section `generate`: how pictures are drawn, whichever generator draws them."""

    device: Literal["auto", "cpu", "cuda"]
    threads: int = Field(ge=1)
    """CPU threads; part of the result, because the order of float additions depends on it."""
    batch_images: int = Field(ge=1)
    """Pictures drawn at once; part of the result in the same way."""
    images_per_shard: int = Field(ge=1)
    """Pictures of one file and one piece of work: a killed run goes on after the last finished piece."""
    licence: str
    """Of the pictures; it stands in each row."""


class GeneratorParams(StrictParams):
    """One entry of section `generators`: pictures that are drawn under a name of their own."""

    generator: Name
    """Folder under data/generators: `base`, or the name of a ReFL round."""
    ranking_round: Name
    """The round of annotation that ranks these pictures."""
    steps: int = Field(ge=1)
    """DDIM steps."""
    guidance: float = Field(ge=0)
    """Classifier-free guidance: 1 is none, 0 ignores the prompt."""
    images_per_prompt: int = Field(ge=1)
    splits: list[Literal["train", "validation", "test"]] = Field(min_length=1)
    """Prompts of these splits."""


GeneratorsParams = dict[Name, GeneratorParams]
"""Section `generators`."""
