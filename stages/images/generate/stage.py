"""Stage `generate`: its section, its paths, and its description for other modules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.foundations.params import StrictParams
from stages.foundations.stage import About, Stage

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class GenerateParams(StrictParams):
    """Section `generate`: how pictures are generated, for every generator."""

    device: Literal["auto", "cpu", "cuda"]
    threads: int = Field(ge=1)
    """CPU threads; part of the result, because the order of float additions depends on it."""
    batch_images: int = Field(ge=1)
    """Pictures generated at once; part of the result for the same reason."""
    images_per_shard: int = Field(ge=1)
    """Pictures of one file and one piece of work: a killed run resumes after the last finished piece."""
    licence: str
    """Licence of the pictures, in each row."""


class GeneratorParams(StrictParams):
    """One entry of section `generators`: pictures that are generated under one name."""

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


STAGE = Stage(
    sections={"seed": int, "generate": GenerateParams, "generators": dict[Name, GeneratorParams]},
    inputs={"generator": "data/generators/${item.generator}", "prompts": "data/t2i/prompts.parquet"},
    outputs={
        "images": "data/images/generated/${item.ranking_round}/${key}",
        "metrics": "data/metrics/generate/${key}.json",
    },
    foreach="generators",
    quick_imports=True,
)


ABOUT = About(
    description="A generator's pictures of the prompts, one seed each. Uses the GPU.",
    headline=("images/kept", "{:,.0f} pictures"),
    runs_model=lambda params: True,
    named_after=("policy",),
)
