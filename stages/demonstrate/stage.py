"""Definition of stage `demonstrate`: its inputs and outputs, and the data about it that other modules use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from stages.engines.samplers.params import SamplerParams
from stages.engines.turns import turn_contradictions
from stages.engines.verifier.params import VerifierParams
from stages.foundations.params import PromptParams, StrictParams
from stages.foundations.stage import About, Sections, Stage, unknown_sources


class WeightedDemonstrations(StrictParams):
    """The settings that every kind has."""

    weight: float | None = Field(default=None, gt=0, exclude_if=lambda value: value is None)
    """Times that a training row is taken: 2.0 is twice; 0.5 is a probability of one half, by the seed. Absent: once."""


class GivenDemonstrations(WeightedDemonstrations):
    """Training problems that came with a solution, such as GSM8K's or long reasoning traces, and conversations."""

    kind: Literal["given"]
    sources: list[str] | None
    """Names of the sources whose solutions or conversations are used; null for all sources."""
    max_rows: int | None = Field(ge=1)
    """Rows used, drawn by the seed; null for all."""
    verified: Literal[True] | None = Field(default=None, exclude_if=lambda value: value is None)
    """True: the verifier judges each solution against the problem's answer, and only correct ones are used. A solution
    that does not end with an answer is dropped too. Conversations are not judged. Absent: solutions are trusted, and
    one without a box gets the problem's answer."""


class RejectionSampledDemonstrations(WeightedDemonstrations):
    """Responses of the policy to training problems that the verifier judges as correct."""

    kind: Literal["rejection_sampled"]
    samples: int = Field(ge=1)
    """Responses sampled per problem."""
    kept_per_problem: int = Field(ge=1)
    """Different correct responses kept per problem, the first ones sampled."""
    temperature: float = Field(gt=0)
    max_response_tokens: int = Field(ge=1)
    max_problems: int | None = Field(ge=1)
    """Problems for which responses are sampled, drawn by the seed; null for all."""


class WebDemonstrations(WeightedDemonstrations):
    """Trusted solutions of `filter_web`."""

    kind: Literal["web"]
    max_rows: int | None = Field(ge=1)
    """Rows used, drawn by the seed; null for all."""


DemonstrationSource = Annotated[
    WebDemonstrations | GivenDemonstrations | RejectionSampledDemonstrations, Field(discriminator="kind")
]


class DemonstrateParams(StrictParams):
    """Section `demonstrate`."""

    sources: list[DemonstrationSource] = Field(min_length=1)
    """Sources of demonstrations, in this order."""
    max_response_tokens: int = Field(ge=1)
    """Longer responses, or turns, are dropped; counted by the policy's tokenizer, without the end-of-sequence token."""
    validation_rows: int = Field(ge=0)
    """Demonstrations held out for the validation loss, drawn by the seed; their problems are not trained on."""


STAGE = Stage(
    sections={
        "seed": int,
        "prompt": PromptParams,
        "sampler": SamplerParams,
        "verifier": VerifierParams,
        "demonstrate": DemonstrateParams,
    },
    inputs={
        "problems": "data/problems/train.parquet",
        "conversations": "data/problems/conversations.parquet",
        "web": "data/web",  # a folder, because a recipe may have no web branch
        "policy": "data/policies/base",
    },
    outputs={
        "train": "data/demonstrations/train.parquet",
        "validation": "data/demonstrations/validation.parquet",
        "dropped": "data/dropped/demonstrate.parquet",
        "metrics": "data/metrics/demonstrate.json",
        "headline": "data/headline/demonstrate.json",
    },
    is_launched=True,
)


def _contradictions(sections: Sections) -> list[str]:
    sources = sections["demonstrate"].sources
    given = [name for source in sources if source.kind == "given" for name in source.sources or ()]
    roles = {name: source.role for name, source in sections.get("sources", {}).items() if source.role != "benchmark"}
    contradictions = unknown_sources("demonstrate.sources", given, roles, "`sources` with role train or chat")
    if "chat" in roles.values() and sections["prompt"].kind != "chat" and not sections["prompt"].environment:
        contradictions.append(
            "sources: role chat needs `prompt.kind: chat`, whose template writes conversations, or prompt.environment"
        )
    all_given = any(source.kind == "given" and source.sources is None for source in sources)
    contradictions += [
        f"sources.{name}: no entry of demonstrate.sources takes these conversations: add it to one of kind given"
        for name, role in roles.items()
        if role == "chat" and not all_given and name not in given
    ]
    sampled = {
        f"demonstrate.sources.{number}.max_response_tokens": source.max_response_tokens
        for number, source in enumerate(sources)
        if source.kind == "rejection_sampled"
    }
    if sampled:
        contradictions += turn_contradictions(sections["prompt"], sections["sampler"], sampled)
    has_web = "filter_web" in sections
    if not has_web and any(source.kind == "web" for source in sources):
        contradictions.append(
            "demonstrate.sources: kind web reads the rows of `filter_web`, but the recipe has no such section: "
            "add it, or take another kind"
        )
    return contradictions


def _runs_model(params: Mapping[str, Any]) -> bool:
    return any(source["kind"] == "rejection_sampled" for source in params["demonstrate"]["sources"])


ABOUT = About(
    description="Rows for supervised fine-tuning: trusted web solutions, given solutions, correct responses.",
    headline=("rows/kept", "{:,.0f} demonstrations"),
    contradictions=_contradictions,
    runs_model=_runs_model,
)
