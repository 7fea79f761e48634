"""How long prompts and responses are: assumed, given, or read from an earlier run's metric files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from stages.foundations.errors import UserError
from stages.foundations.planned_work import Lengths
from stages.foundations.stage_graph import GraphStage

RESPONSE_SHARE = 0.3
"""Of the longest response: what a mean response is assumed to take."""
PROMPT_SHARE, LONGEST_ASSUMED_PROMPT = 1 / 8, 150
"""A prompt is assumed to take this share of the context, and at most so many tokens."""
DRAWN_PER_TRAINED = 2.0
"""Groups drawn for one that is trained on, under dynamic sampling."""


def assumed(context: int, prompt: float | None, share: float | None, drawn: float | None) -> Lengths:
    """The stated defaults, with what the user gave in their place. `context` is the longest sequence, 0 if unknown."""
    guess = min(PROMPT_SHARE * context, LONGEST_ASSUMED_PROMPT) if context else LONGEST_ASSUMED_PROMPT
    given = {"prompt": prompt, "response_share": share, "drawn_per_trained": drawn}
    values = {"prompt": guess, "response_share": RESPONSE_SHARE, "drawn_per_trained": DRAWN_PER_TRAINED}
    values |= {name: value for name, value in given.items() if value is not None}
    sources = {name: "assumed" if value is None else "given" for name, value in given.items()}
    return Lengths(**values, sources=sources)


def measured(lengths: Lengths, metrics: Path, stages: Iterable[GraphStage]) -> Lengths:
    """`lengths` with what the metric files under `metrics` (data/metrics of an earlier run) say in their place.

    Their keys tell what a stage did: groups drawn and trained on, responses drawn, or tokens trained on. UserError when
    there are none.
    """
    responses, drawn, trained = dict(lengths.responses), dict(lengths.drawn), dict(lengths.trained)
    for stage in stages:
        found = _read(metrics, stage)
        if found.get("rollouts/drawn") and found.get("groups/trained"):
            responses[stage.address] = found["tokens/sampled"] / found["rollouts/drawn"]
            drawn[stage.address] = found["groups/drawn"] / found["groups/trained"]
        elif found.get("tokens/sampled") and found.get("rows/kept"):
            responses[stage.address] = found["tokens/sampled"] / found["rows/kept"]
        elif found.get("tokens/trained"):
            trained[stage.address] = found["tokens/trained"]
    if (responses, drawn, trained) == (lengths.responses, lengths.drawn, lengths.trained):
        raise UserError(
            f"--measured {metrics} has no metrics of a stage that trained or sampled: name data/metrics of a "
            "finished run"
        )
    sources = {**lengths.sources, "trained": f"measured ({metrics})"}
    if responses != lengths.responses:
        sources["response_share"] = f"measured ({metrics}), assumed elsewhere"
    return replace(lengths, responses=responses, drawn=drawn, trained=trained, sources=sources)


def _read(metrics: Path, stage: GraphStage) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in stage.metrics:
        path = metrics / name.removeprefix("data/metrics/")
        try:
            found |= json.loads(path.read_text()) if path.exists() else {}
        except (ValueError, TypeError) as error:
            raise UserError(f"--measured {metrics}: {path} is no metric file ({error})") from None
    return found
