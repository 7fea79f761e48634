"""What stage `extract_web` runs with, and what others may ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stages.engines.samplers.params import SamplerParams
from stages.extract_web.params import ExtractWebParams
from stages.foundations.stage import About, FunnelStep, Sections, Stage

STAGE = Stage(
    sections={"sampler": SamplerParams, "extract_web": ExtractWebParams},
    inputs={"pages": "data/web/pages.parquet"},
    outputs={
        "candidates": "data/web/candidates.parquet",
        "dropped": "data/dropped/extract_web.parquet",
        "metrics": "data/metrics/extract_web.json",
        "headline": "data/headline/extract_web.json",
    },
)


def _runs_model(params: Mapping[str, Any]) -> bool:
    method = params["extract_web"].get("method", {})  # which dvc.lock of an earlier version has not
    return method.get("kind") == "model" and method["model"]["kind"] == "policy"


def _contradictions(sections: Sections) -> list[str]:
    method, sampler = sections["extract_web"].method, sections["sampler"]
    if method.kind != "model" or method.model.kind != "policy" or sampler.kind != "vllm":
        return []
    asked = method.model.max_prompt_tokens + method.max_response_tokens
    if asked <= sampler.max_model_tokens:
        return []
    return [
        f"extract_web.method: max_prompt_tokens and max_response_tokens are {asked} tokens together, more than "
        f"sampler.max_model_tokens {sampler.max_model_tokens}: lower them, or raise that"
    ]


ABOUT = About(
    description="Problem, worked solution and short answer out of each page.",
    headline=("candidates/all", "{:,.0f} candidates"),
    contradictions=_contradictions,
    runs_model=_runs_model,
    lane="Web solutions",
    has_funnel=True,
    way=FunnelStep("From pages to trusted problems", "pages"),
    tables={"web/candidates": "Exercises found on the pages; nothing is checked yet."},
)
