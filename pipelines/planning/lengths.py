"""How long prompts and responses are: assumed, given, or read from an earlier run's metric files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from stages.foundations.errors import UserError

RESPONSE_SHARE = 0.3
"""Of the longest response: what a mean response is assumed to take."""
PROMPT_SHARE, LONGEST_ASSUMED_PROMPT = 1 / 8, 150
"""A prompt is assumed to take this share of the context, and at most so many tokens."""
DRAWN_PER_TRAINED = 2.0
"""Groups drawn for one that is trained on, under dynamic sampling."""
STEPS_OF_SURVIVAL = 200


@dataclass(frozen=True)
class ResponseLengths:
    """Lengths in tokens: exponential, cut off at `most`, with this mean. Many are short and a few reach the limit."""

    mean: float
    most: int

    @cached_property
    def rate(self) -> float:
        """Chance to end per token: (1 - e^(-rate most)) / rate = mean; 0 where every response reaches the limit."""
        if self.mean >= self.most * (1 - 1e-6):
            return 0.0
        low, high = 1e-12, 50.0 / self.mean
        for _ in range(200):
            rate = (low * high) ** 0.5
            low, high = (rate, high) if -math.expm1(-rate * self.most) / rate > self.mean else (low, rate)
        return rate

    def open_share(self, tokens: float) -> float:
        """Share of the responses that are longer than `tokens`."""
        return math.exp(-self.rate * tokens) if tokens < self.most else 0.0

    @cached_property
    def mean_square(self) -> float:
        """Mean of the squared length: twice the integral of t times the open share."""
        width = self.most / STEPS_OF_SURVIVAL
        middles = ((step + 0.5) * width for step in range(STEPS_OF_SURVIVAL))
        return 2 * width * sum(middle * self.open_share(middle) for middle in middles)


@dataclass(frozen=True)
class Lengths:
    """What a plan takes for granted, with where each figure is from."""

    prompt: float
    response_share: float
    drawn_per_trained: float
    demonstration: float | None = None
    """Prompt and response tokens of a supervised example; None: prompt and a share of the longest."""
    responses: Mapping[str, float] = field(default_factory=dict)
    """Mean response tokens by stage (`rl_round@rl_1`, `respond@sft`)."""
    drawn: Mapping[str, float] = field(default_factory=dict)
    """Groups drawn per group trained, by stage."""
    sources: Mapping[str, str] = field(default_factory=dict)

    def of(self, stage: str, most: int) -> ResponseLengths:
        """Lengths of the responses that a stage draws."""
        return ResponseLengths(min(self.responses.get(stage, self.response_share * most), float(most)), most)

    def drawn_of(self, stage: str) -> float:
        return self.drawn.get(stage, self.drawn_per_trained)


def assumed(context: int, prompt: float | None, share: float | None, drawn: float | None) -> Lengths:
    """The stated defaults, with what the user gave in their place. `context` is the longest sequence, 0 if unknown."""
    guess = min(PROMPT_SHARE * context, LONGEST_ASSUMED_PROMPT) if context else LONGEST_ASSUMED_PROMPT
    given = {"prompt": prompt, "response_share": share, "drawn_per_trained": drawn}
    values = {"prompt": guess, "response_share": RESPONSE_SHARE, "drawn_per_trained": DRAWN_PER_TRAINED}
    values |= {name: value for name, value in given.items() if value is not None}
    sources = {name: "assumed" if value is None else "given" for name, value in given.items()}
    return Lengths(**values, sources=sources)


def with_untrained(lengths: Lengths, vocabulary: int, most_by_stage: Mapping[str, int]) -> Lengths:
    """Random weights end a response with chance 1 / vocabulary a token, so theirs are nearly as long as they may be."""
    chance = 1 / vocabulary
    expected = {stage: (1 - (1 - chance) ** most) / chance for stage, most in most_by_stage.items()}
    return replace(lengths, responses={**expected, **lengths.responses})


def measured(lengths: Lengths, metrics: Path, demonstrations_trained: int) -> Lengths:
    """`lengths` with what the metric files under `metrics` (data/metrics of an earlier run) say in their place.

    UserError when there are none, or they are not those of a run.
    """
    try:
        found = _measured(lengths, metrics, demonstrations_trained)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"--measured {metrics}: its files are not those of a finished run ({error!r})"
        ) from error
    if found == lengths:
        raise UserError(
            f"--measured {metrics} has no metrics of sft, respond or rl_round: name data/metrics of a run"
        )
    return found


def _measured(lengths: Lengths, metrics: Path, demonstrations_trained: int) -> Lengths:
    responses, drawn, sources = dict(lengths.responses), dict(lengths.drawn), dict(lengths.sources)
    demonstration = lengths.demonstration
    for path in sorted(metrics.glob("rl_round/*.json")):
        found, stage = json.loads(path.read_text()), f"rl_round@{path.stem}"
        if found.get("rollouts/drawn") and found.get("groups/trained"):
            responses[stage] = found["tokens/sampled"] / found["rollouts/drawn"]
            drawn[stage] = found["groups/drawn"] / found["groups/trained"]
    for path in sorted(metrics.glob("respond/*.json")):
        found = json.loads(path.read_text())
        if found.get("rows/kept"):
            responses[f"respond@{path.stem}"] = found["tokens/sampled"] / found["rows/kept"]
    if (metrics / "sft.json").exists():
        trained = json.loads((metrics / "sft.json").read_text())["tokens/trained"]
        demonstration = trained / demonstrations_trained
        sources["demonstration"] = f"measured ({metrics})"
    if responses != lengths.responses:
        sources["response_share"] = f"measured ({metrics}), assumed elsewhere"
    return replace(lengths, responses=responses, drawn=drawn, demonstration=demonstration, sources=sources)
