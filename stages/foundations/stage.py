"""The declaration of a stage in `stage.py` of its package: `STAGE` for its run, and `ABOUT` for other modules.

docs/how-to/own-stage.md has a whole stage as an example. `python -m stages <name>` runs `main(job)` of
its `run.py`. dvc.yaml has an entry for each `STAGE` (`retrace graph` writes it). `explain`, `compare`,
`mirror`, `ablate`, the report and the check of params.yaml read `ABOUT`. Declarations are light: they import parameters
at their top, and everything else inside of their functions. What only one reader asks is with that reader: the work of
a stage in pipelines/planning/work.py, its place on the report pages in stages/pages/shown_stages.py.

A path of a stage that runs over a section (`foreach`) names the item, as in dvc.yaml. For a mapping, `${key}` is its
name, and `${item.start_from}` one of its values. For a list, `${item}` is the entry. Paths use nothing else.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from stages.foundations.machine import PROJECT

Sections = Mapping[str, Any]
"""Validated sections of a parameter file, by name; those of branches that it leaves out are absent."""
METRICS, HEADLINE, CURVES = "metrics", "headline", "curves"
"""Outputs that DVC shows: all numbers, the few that become columns, and the data of `dvc plots`."""
WINGS = ("images",)
"""Folders of stages/ with the stages of one branch, beside those that lie in stages/ itself."""


def stage_folder(root: Path, name: str) -> Path:
    """Returns the folder of a stage's package: `stages/NAME`, also where there is none, or `stages/images/NAME`."""
    places = [root / "stages" / name, *(root / "stages" / wing / name for wing in WINGS)]
    return next((place for place in places if place.is_dir()), places[0])


def stage_package(root: Path, name: str) -> str:
    """Returns the dotted name of a stage's package."""
    return ".".join(stage_folder(root, name).relative_to(root).parts)


@dataclass(frozen=True)
class Stage:
    """The declaration of a run. All of it is in the stage's fingerprint."""

    sections: Mapping[str, Any] = field(default_factory=dict)
    """Sections of the parameter file that it reads -> their models. A section may be a single value: `seed`."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Name -> path. `job.paths` has the names; in a command they are flags: `held_out` is `--held-out`."""
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Name -> path. `metrics`, `headline` and `curves` are shown by DVC; all others are cached."""
    also_depends_on: tuple[str, ...] = ()
    """Further paths that DVC compares, and that are not arguments."""
    not_compared: Mapping[str, str] = field(default_factory=dict)
    """Inputs that DVC does not compare."""
    foreach: str = ""
    """Section with one run of the stage for each entry: a mapping, or a list of names. Empty for a single run."""
    items: Any = None
    """Type of that section where the stage does not read it; `list[str]` for `policies`, which is a list of names."""
    is_launched: bool = False
    """True if section `launch` starts its ranks."""
    depends_on_ranks: bool = False
    """True if the number of ranks changes the result, as through the order of a trainer's sums."""
    quick_imports: bool = False
    """True if it is imported faster (stages/observe/quick_imports.py); not for a stage that needs scipy."""


@dataclass(frozen=True)
class About:
    """Facts for other modules. `sections` in arguments are those of the whole parameter file."""

    description: str = ""
    """A sentence or two: in dvc.yaml and in `python -m stages --help`."""
    plot: tuple[str, str] = ("", "")
    """Column of its curves that `dvc plots` draws over the steps, and the title."""
    contradictions: Callable[[Sections], list[str]] = lambda sections: []
    """Where its sections do not match each other or others: one sentence each that says what to change."""

    runs_model: Callable[[Mapping[str, Any]], bool] = lambda params: False
    """True if it computes with a network, and uses a GPU if there is one. Gets the unvalidated parameter file."""
    raw: Callable[[Mapping[str, Any]], list[Any]] = lambda params: []
    """Where raw bytes come from: mappings with a `kind`, from its parameters as dvc.lock has them (`sources.gsm8k`)."""

    sources: str = ""
    """Place in a parameter file of the named sources that the stage reads: `collect_web.sources`."""
    file_kinds: tuple[str, ...] = ()
    """Kinds of such a source that are one local file (`path`) of pages; empty where sources are problems."""

    named_after: tuple[str, ...] = ()
    """Tags of its MLflow run that hold the name of the policy it is about."""
    score_keys: Callable[[Sections], list[str]] | None = None
    """For the stage that scores a policy (its item): its metrics of each benchmark, as `<benchmark>/<key>`."""
    is_varied: bool = False
    """Variants of an ablation differ from here on; runs of one seed share the stages before."""

    headline: tuple[str, str] | None = None
    """Key of its summary number, in one of its metric files, and how `make repro` shows it."""
    warnings: Callable[[str, Mapping[str, float]], list[str]] = lambda item, metrics: []
    """Problems without an error, one sentence each with what to try: from its item and its metrics."""


def about(name: str) -> About:
    """Returns a stage's facts; empty where it declares nothing, as a stage that was added to dvc.yaml by hand."""
    return _declared(name)[1]


def declared_stage(name: str) -> Stage | None:
    """Returns a stage's declaration; None where it declares nothing."""
    return _declared(name)[0]


@cache
def _declared(name: str) -> tuple[Stage | None, About]:
    # dvc.yaml may have any name; one with dots could import a module that is not a stage.
    if not name.isidentifier():
        return None, About()
    package = stage_package(PROJECT, name)
    # The package is checked first: `find_spec` raises for a module of a package that does not exist.
    if importlib.util.find_spec(package) is None or importlib.util.find_spec(f"{package}.stage") is None:
        return None, About()
    found = importlib.import_module(f"{package}.stage")
    return found.STAGE, found.ABOUT


def unknown_sources(address: str, wanted: Iterable[str], known: Collection[str], where: str) -> list[str]:
    """Returns names in the list at `address` that `where` does not have, as `About.contradictions` reports them."""
    return [
        f"{address}: `{name}` is none of {where}, which are {', '.join(sorted(known)) or 'none'}"
        for name in wanted
        if name not in known
    ]
