"""Parameters of the `base` stage: where the base policy comes from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.foundations.params import StrictParams


class RandomBase(StrictParams):
    """A Llama with random weights and a byte-level BPE tokenizer trained on generated problems."""

    kind: Literal["random"]
    hidden_size: int = Field(ge=8)
    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    feed_forward_size: int = Field(ge=8)
    max_position_tokens: int = Field(ge=16)
    """Longest sequence that the policy is made for."""
    initializer_range: float = Field(gt=0)
    """Standard deviation of the initial weights."""
    vocabulary_size: int = Field(ge=258)
    """Upper limit of the tokenizer's entries: 256 bytes, two special tokens, merges."""
    corpus: Literal["arithmetic", "digits"]
    """Task family of the tokenizer's corpus."""
    corpus_rows: int = Field(ge=1)
    """Generated problems with worked steps that the tokenizer is trained on."""

    @model_validator(mode="after")
    def _heads_divide_hidden(self) -> RandomBase:
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size {self.hidden_size} must be a multiple of heads {self.heads}")
        return self


class FolderBase(StrictParams):
    """A policy folder on this machine, in transformers' layout."""

    kind: Literal["folder"]
    path: str
    """Relative to the project's root, or absolute."""


class HubBase(StrictParams):
    """A repository of the Hugging Face hub."""

    kind: Literal["hub"]
    repository: str
    revision: str = Field(pattern=r"^[0-9a-f]{40}$")
    """Full commit, so that the same bytes come every time."""


class GgufPackageBase(StrictParams):
    """A GGUF file inside a Python package, dequantised to float32."""

    kind: Literal["gguf_package"]
    package: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    version: str = Field(pattern=r"^[A-Za-z0-9._+!-]+$")
    wheel_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Hash of the package's wheel file."""
    member: str
    """Path of the GGUF file inside the wheel."""


BaseParams = Annotated[RandomBase | FolderBase | HubBase | GgufPackageBase, Field(discriminator="kind")]
