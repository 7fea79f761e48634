"""A stage declares itself in `stages/<name>/stage.py`: `STAGE`, what it runs with, and `ABOUT`, what others may ask.

`python -m stages <name>` runs `main(job)` of `stages/<name>/run.py`. dvc.yaml has an entry for each `STAGE`
(`retrace graph` writes it). `plan`, `explain`, `compare`, `mirror`, `ablate`, the report and the check of params.yaml
ask `ABOUT`. These modules are light: they import parameters, and what their functions need inside of these.

A path of a stage that runs over a section (`foreach`) names the item, as in dvc.yaml. Of a mapping `${key}` is its
name, and `${item.start_from}` one of its values. Of a list `${item}` is the entry. Paths know nothing else.
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

METRICS, HEADLINE, CURVES = "metrics", "headline", "curves"
"""Outputs that DVC shows: all numbers, the few that become columns, and what `dvc plots` draws."""


@dataclass(frozen=True)
class Stage:
    """What a stage runs with. All of it is in the stage's fingerprint."""

    sections: Mapping[str, Any] = field(default_factory=dict)
    """Sections of the parameter file that it reads -> their models. A section may be a single value: `seed`."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Name -> path. `job.paths` has the names; in a command they are flags: `held_out` is `--held-out`."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Name -> path. `metrics`, `headline` and `curves` are shown by DVC; all others are cached."""
    also_depends_on: tuple[str, ...] = ()
    """Paths that DVC compares as well, and that are no argument."""
    not_compared: Mapping[str, str] = field(default_factory=dict)
    """Inputs that DVC does not compare."""
    foreach: str = ""
    """Section with one run of the stage for each entry: a mapping, or a list of names. Empty for a single run."""
    items: Any = None
    """Type of that section where the stage does not read it; `list[str]` for `policies`, which is a list of names."""
    is_launched: bool = False
    """Whether section `launch` starts its ranks."""
    depends_on_ranks: bool = False
    """Whether the number of ranks changes the result, as the order of a trainer's sums does."""
    quick_imports: bool = False
    """Whether it is imported faster (stages/observe/quick_imports.py); not for a stage that needs scipy."""


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
    """What others may ask. `sections` in arguments are those of the whole parameter file."""

    description: str = ""
    """A sentence or two: in dvc.yaml and in `python -m stages --help`."""
    plot: tuple[str, str] = ("", "")
    """Column of its curves that `dvc plots` draws over the steps, and the title."""
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


def about(name: str) -> About:
    """What a stage says of itself; nothing where it declares nothing, as a stage that was added to dvc.yaml by hand."""
    return _declared(name)[1]


def declared_stage(name: str) -> Stage | None:
    """What a stage runs with; None where it declares nothing."""
    return _declared(name)[0]


@cache
def _declared(name: str) -> tuple[Stage | None, About]:
    module = f"stages.{name}.stage"
    if not name.isidentifier():
        return None, About()
    if importlib.util.find_spec(f"stages.{name}") is None or importlib.util.find_spec(module) is None:
        return None, About()
    found = importlib.import_module(module)
    return found.STAGE, found.ABOUT
