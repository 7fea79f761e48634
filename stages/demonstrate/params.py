"""Parameters of stage demonstrate."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.foundations.params import StrictParams


class WebDemonstrations(StrictParams):
    """Trusted solutions of `filter_web`."""

    kind: Literal["web"]
    max_rows: int | None = Field(ge=1)
    """Rows used, drawn by the seed; null for all."""


class GivenDemonstrations(StrictParams):
    """Training problems that came with a solution: worked answers such as GSM8K's, or long reasoning traces."""

    kind: Literal["given"]
    sources: list[str] | None
    """Names of the sources whose solutions are used; null for every source that has some."""
    max_rows: int | None = Field(ge=1)
    """Rows used, drawn by the seed; null for all."""


class RejectionSampledDemonstrations(StrictParams):
    """Responses of the policy to training problems that the verifier calls correct."""

    kind: Literal["rejection_sampled"]
    samples: int = Field(ge=1)
    """Responses drawn per problem."""
    kept_per_problem: int = Field(ge=1)
    """Different correct responses kept per problem, the first ones drawn."""
    temperature: float = Field(gt=0)
    max_response_tokens: int = Field(ge=1)
    max_problems: int | None = Field(ge=1)
    """Problems sampled for, drawn by the seed; null for all."""


DemonstrationSource = Annotated[
    WebDemonstrations | GivenDemonstrations | RejectionSampledDemonstrations, Field(discriminator="kind")
]


class DemonstrateParams(StrictParams):
    """Section `demonstrate`."""

    sources: list[DemonstrationSource] = Field(min_length=1)
    """Where demonstrations come from, in this order."""
    max_response_tokens: int = Field(ge=1)
    """Longer responses are dropped; counted by the policy's tokenizer, without the end-of-sequence token."""
    validation_rows: int = Field(ge=0)
    """Demonstrations set aside for the validation loss, drawn by the seed; their problems are not trained on."""
