"""What others may ask of stage `extract_web`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stages.foundations.about import About, FunnelStep, Sections


def _sections() -> dict[str, Any]:
    from stages.extract_web.params import ExtractWebParams

    return {"extract_web": ExtractWebParams}


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
    headline=("candidates/all", "{:,.0f} candidates"),
    sections=_sections,
    contradictions=_contradictions,
    runs_model=_runs_model,
    lane="Web solutions",
    has_funnel=True,
    way=FunnelStep("From pages to trusted problems", "pages"),
    tables={"web/candidates": "Exercises found on the pages; nothing is checked yet."},
)
