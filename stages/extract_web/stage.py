"""Parameters and paths of stage `extract_web`, and its description for other modules."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from stages.engines.samplers.params import SamplerParams
from stages.foundations.params import PromptParams, StrictParams
from stages.foundations.stage import About, FunnelStep, Sections, Stage


class LocalEngine(StrictParams):
    """Processes of this machine."""

    kind: Literal["local"]
    processes: int = Field(ge=1)
    """Shards at once; a page table is cut into at least as many. The result is the same for any number."""


class AddressModel(StrictParams):
    """A server with OpenAI's chat completions."""

    kind: Literal["address"]
    url: str = Field(pattern=r"^https?://\S+$")
    """Address up to the version: `http://127.0.0.1:8000/v1`. A key, if needed, is in RETRACE_EXTRACTOR_KEY."""
    name: str
    """The model's name there. The model under a name may change: such a run is only as reproducible as the server."""
    is_elsewhere: bool
    """True allows sending pages to an address other than this machine's loopback."""
    requests_at_once: int = Field(ge=1)
    timeout_seconds: float = Field(gt=0)

    @model_validator(mode="after")
    def _goes_where_it_may(self) -> AddressModel:
        if not self.is_elsewhere and not _is_loopback(urlsplit(self.url).hostname or ""):
            raise ValueError(f"{self.url} is not on this machine: set is_elsewhere: true if the pages may go there")
        return self


class PolicyModel(StrictParams):
    """A policy folder, sampled through section `sampler`."""

    kind: Literal["policy"]
    folder: str
    """In transformers' layout, relative to the project's root, or absolute. Not one that this graph makes: the stage
    would have to wait for it, and the graph cannot see the dependency."""
    prompt: PromptParams
    """Prompt template of this policy; the request itself is in second_reading.py."""
    max_prompt_tokens: int = Field(ge=64)
    """A window with a longer request is left out and counted."""

    @model_validator(mode="after")
    def _is_not_made_here(self) -> PolicyModel:
        if "data/policies" in self.folder:
            raise ValueError("a folder under data/policies is made by this graph: name a copy in another folder")
        return self


class ModelMethod(StrictParams):
    """Rules; where these found nothing on a page, or a row below `min_confidence`, a model."""

    kind: Literal["model"]
    model: Annotated[PolicyModel | AddressModel, Field(discriminator="kind")]
    confidence: float = Field(gt=0, le=0.9)
    """Confidence of a model's row before its checks: the share of correct rows on pages whose pairs are known. Use 0.5
    for a model that was not measured. This is below the `min_confidence` of recipes that train on the rows."""
    window_characters: int = Field(ge=200)
    """Characters of a page in one window; an exercise across a window's end is lost."""
    max_windows: int = Field(ge=1)
    """Windows per page; later ones are left out and counted."""
    max_response_tokens: int = Field(ge=16)
    pages_at_once: int = Field(ge=1)
    """Pages of one piece of work; a killed run resumes after the last finished piece."""


class RayEngine(StrictParams):
    """Ray Data, one row per shard: the cluster at RAY_ADDRESS, or Ray on this machine for as long as the stage runs."""

    kind: Literal["ray"]
    processes: int = Field(ge=1)
    """Shards at once; each takes one of Ray's CPUs."""
    pages_per_shard: int = Field(ge=1)
    """A single page table is cut into shards of that many pages; a folder of shards is used as it is."""


class RulesMethod(StrictParams):
    """Rules alone."""

    kind: Literal["rules"]


class ExtractWebParams(StrictParams):
    """Section `extract_web`."""

    method: Annotated[RulesMethod | ModelMethod, Field(discriminator="kind")]
    max_answer_characters: int = Field(ge=1)
    """Most characters of a short final answer."""
    shared_instructions: Literal["prepended", "left_out"]
    """Treatment of "For the following exercises, solve for x": put in front of each problem, or left out."""
    min_confidence: float = Field(ge=0, le=1)
    """Candidates below it are the drop `low_confidence` and are not used further; docs/explanation/extraction.md has
    the precision of rows by evidence."""
    page_timeout_seconds: float = Field(gt=0)
    """Seconds of computing for one page (0.05 is usual); a slower one is the drop `timed_out`. If its process stalls
    for 20 times as long, the page is tried again, and the second time stops the stage."""
    page_memory_mib: int = Field(ge=256)
    """Address space of a process that reads pages, in MiB; a page that needs more is the drop `out_of_memory`."""
    engine: Annotated[LocalEngine | RayEngine, Field(discriminator="kind")]
    """Where pages are read; every engine gives the same rows."""


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
    method = params["extract_web"].get("method", {})  # dvc.lock of an earlier version lacks it
    return method.get("kind") == "model" and method["model"]["kind"] == "policy"


def _contradictions(sections: Sections) -> list[str]:
    method, sampler = sections["extract_web"].method, sections["sampler"]
    if method.kind != "model" or method.model.kind != "policy":
        return []
    if method.model.prompt.environment:
        return ["extract_web.method.model.prompt.environment: a page is read in one turn; leave it out"]
    if sampler.kind != "vllm":
        return []
    # Reported before anything runs. Otherwise vLLM would reject the requests after the rules have read all pages.
    tokens = method.model.max_prompt_tokens + method.max_response_tokens
    if tokens <= sampler.max_model_tokens:
        return []
    return [
        f"extract_web.method: max_prompt_tokens and max_response_tokens are {tokens} tokens together, more than "
        f"sampler.max_model_tokens {sampler.max_model_tokens}: lower them, or raise that"
    ]


ABOUT = About(
    description="Problems, worked solutions and short answers from each page.",
    headline=("candidates/all", "{:,.0f} candidates"),
    contradictions=_contradictions,
    runs_model=_runs_model,
    lane="Web solutions",
    has_funnel=True,
    way=FunnelStep("From pages to trusted problems", "pages"),
    tables={"web/candidates": "Exercises found on the pages, not yet filtered."},
)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
