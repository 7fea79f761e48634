"""What a stage tells others of itself: `ABOUT` in `stages/<stage>/about.py`.

Stage names stand in dvc.yaml and nowhere else: `plan`, `explain`, `compare`, `mirror`, `ablate`, the report and the
check of params.yaml find a stage there and ask its package. A field that is left out says that there is nothing to
say. The modules are light: they import this one, and what their functions need inside of these.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stages.foundations.planned_work import Lengths, ModelSizes, NetworkWork, Work

Sections = Mapping[str, Any]
"""Validated sections of a parameter file, by name; those of branches that it leaves out are absent."""


@dataclass(frozen=True)
class FunnelStep:
    """A stage's place on a way that rows take through several stages, shown as one table of what is left."""

    title: str
    """Of the way; equal for its stages, which come in graph order."""
    unit: str
    """What the stage's rows are: pages, exercises."""
    first: str = ""
    """What comes in, where the unit is not that of the stage before: `pages collected`."""
    last: str = ""
    """What is left at the end of the way."""
    reasons: tuple[str, ...] = ()
    """Reasons of drops in the order in which the stage asks; others follow."""
    note: Callable[[Mapping[str, Any]], str] = lambda params: ""
    """A sentence for the caption, from the stage's section as it stands in the parameter file."""


@dataclass(frozen=True)
class About:
    """One stage. `sections` in arguments are those of the whole parameter file."""

    sections: Callable[[], dict[str, Any]] = dict
    """Models of the sections that are its own, by name; what several stages read is in pipelines/graph/schema.py."""
    contradictions: Callable[[Sections], list[str]] = lambda sections: []
    """Where its sections do not fit together or to others, a sentence each that says what to change."""

    runs_model: Callable[[Mapping[str, Any]], bool] = lambda params: False
    """Whether it computes with a network, and takes a GPU where there is one; of a parameter file as it stands."""
    model: Callable[[Sections], ModelSizes] | None = None
    """For the stage that brings the policy that all others start from."""
    work: Callable[[Sections, str, Lengths], Work] | None = None
    """What the stage at an address has to do with a policy, before it runs."""
    prompts: Callable[[Sections], Mapping[str, int]] | None = None
    """For the stage that brings the prompts of pictures: how many there are by split, or nothing where nobody knows."""
    networks: Callable[[Sections, str, Mapping[str, int]], NetworkWork] | None = None
    """What the stage at an address has to do with networks of pictures, for so many prompts by split."""
    raw: Callable[[Mapping[str, Any]], list[Any]] = lambda params: []
    """Where raw bytes come from: mappings with a `kind`, from its parameters as dvc.lock has them (`sources.gsm8k`)."""

    sources: str = ""
    """Where in a parameter file the named sources stand that the stage takes in: `collect_web.sources`."""
    file_kinds: tuple[str, ...] = ()
    """Kinds of such a source that are one local file (`path`) of pages; empty where sources are problems."""

    named_after: tuple[str, ...] = ()
    """Tags of its MLflow run that hold the name of the policy it is about."""
    score_keys: Callable[[Sections], list[str]] | None = None
    """For the stage that scores a policy (its item): what it writes of each benchmark, as `<benchmark>/<key>`."""
    is_varied: bool = False
    """Variants of an ablation differ from here on; runs of one seed share what comes before."""

    headline: tuple[str, str] | None = None
    """Key of the number that sums it up, in one of its metric files, and how `make repro` shows it."""
    warnings: Callable[[str, Mapping[str, float]], list[str]] = lambda item, metrics: []
    """What went wrong without an error, a sentence each with what to try: from its item and its metrics."""

    lane: str = ""
    """Heading under which the report lists it."""
    has_funnel: bool = False
    """Its rows are data, and dropping them needs reasons: the report shows how many came through."""
    way: FunnelStep | None = None
    tables: Mapping[str, str] = field(default_factory=dict)
    """Its tables that get a card in the report, by their path under data/ without the ending, and what they are for."""
    contamination: str = ""
    """Its table of rows that stand in a benchmark, as in `tables`."""


def unknown_sources(address: str, asked: Iterable[str], known: Collection[str], where: str) -> list[str]:
    """What a list of names at `address` asks for that `where` does not have, as `About.contradictions` tells it."""
    return [
        f"{address}: `{name}` is none of {where}, which are {', '.join(sorted(known)) or 'none'}"
        for name in asked
        if name not in known
    ]


@cache
def about(stage: str) -> About:
    """What the stage's package says; nothing where it has no such module, or is no package (`data/snapshots`)."""
    name = f"stages.{stage}.about"
    if not stage.isidentifier():
        return About()
    if importlib.util.find_spec(f"stages.{stage}") is None or importlib.util.find_spec(name) is None:
        return About()
    return importlib.import_module(name).ABOUT
