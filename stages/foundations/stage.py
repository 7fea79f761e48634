"""The declaration of a stage in `stages/<name>/stage.py`: `STAGE`, what it runs with, and `ABOUT`, what others may ask.

docs/recipes.md has a whole stage as an example. `python -m stages <name>` runs `main(job)` of `stages/<name>/run.py`.
dvc.yaml has an entry for each `STAGE` (`retrace graph` writes it). `plan`, `explain`, `compare`, `mirror`, `ablate`,
the report and the check of params.yaml ask `ABOUT`. Declarations are light: they import parameters at their top, and
what their functions need inside of these. The second half of this file is what `About.work` counts for `retrace plan`.

A path of a stage that runs over a section (`foreach`) names the item, as in dvc.yaml. Of a mapping `${key}` is its
name, and `${item.start_from}` one of its values. Of a list `${item}` is the entry. Paths know nothing else.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

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
class About:
    """What others may ask. `sections` in arguments are those of the whole parameter file."""

    description: str = ""
    """A sentence or two: in dvc.yaml and in `python -m stages --help`."""
    plot: tuple[str, str] = ("", "")
    """Column of its curves that `dvc plots` draws over the steps, and the title."""
    contradictions: Callable[[Sections], list[str]] = lambda sections: []
    """Where its sections do not fit together or to others, a sentence each that says what to change."""

    runs_model: Callable[[Mapping[str, Any]], bool] = lambda params: False
    """Whether it computes with a network, and takes a GPU where there is one. Gets the unvalidated parameter file."""
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
    """A sentence for the caption, from the stage's section as the parameter file has it."""


def about(name: str) -> About:
    """What a stage says of itself; nothing where it declares nothing, as a stage that was added to dvc.yaml by hand."""
    return _declared(name)[1]


def declared_stage(name: str) -> Stage | None:
    """What a stage runs with; None where it declares nothing."""
    return _declared(name)[0]


@cache
def _declared(name: str) -> tuple[Stage | None, About]:
    module = f"stages.{name}.stage"
    # dvc.yaml may hold any name; one with dots could import a module that is no stage.
    if not name.isidentifier():
        return None, About()
    # The package is asked first: `find_spec` raises for a module of a package that does not exist.
    if importlib.util.find_spec(f"stages.{name}") is None or importlib.util.find_spec(module) is None:
        return None, About()
    found = importlib.import_module(module)
    return found.STAGE, found.ABOUT


def unknown_sources(address: str, wanted: Iterable[str], known: Collection[str], where: str) -> list[str]:
    """What a list of names at `address` asks for that `where` does not have, as `About.contradictions` tells it."""
    return [
        f"{address}: `{name}` is none of {where}, which are {', '.join(sorted(known)) or 'none'}"
        for name in wanted
        if name not in known
    ]


# From here on: what `About.model`, `About.work` and `About.networks` return, and the lengths that they are given.


@dataclass(frozen=True)
class ModelSizes:
    """Where the sizes of a policy stand: a name that is known by its sizes, or a transformers config."""

    name: str
    config: Mapping[str, Any] | Path | None = None
    """A config, or the path of its file from the project's root; None where only the name is known."""
    is_untrained: bool = False
    """Random weights: the end comes as often as any other token."""
    policy: str = ""
    """What the policy is called."""


@dataclass(frozen=True)
class Work:
    """What one stage does with a policy."""

    training: Training | None = None
    sampling: tuple[Sampling, ...] = ()
    taken_for_granted: tuple[str, ...] = ()
    """Sentences on what the figures assume, beyond the lengths."""
    side_by_side: SideBySide | None = None
    """None where it draws and trains in turns."""
    not_counted: tuple[str, ...] = ()
    """Work of unknown size, with how to make it known."""


@dataclass(frozen=True)
class Training:
    """Passes through the trainer."""

    tokens: float
    """Prompt and response tokens that go forward and backward."""
    response_tokens: float
    """Those of `tokens` that meet the head."""
    forward_tokens: float
    """Tokens that go forward only: validation, proximal and reference log-probs."""
    context: float
    """Mean length that a token attends over, times two: mean square of the sequences over their mean."""
    longest: int
    updates: int
    kind: str
    """Of the optimizer."""
    holds_reference: bool = False
    """A second, frozen policy is in memory beside the trained one."""
    adapter: Any = None
    """`AdapterParams` of what is learned in place of the policy's own weights."""


@dataclass(frozen=True)
class Sampling:
    """Responses drawn; each call waits for its longest response before the next one starts."""

    calls: float
    prompts: float
    """In one call."""
    samples: int
    """Responses to each prompt, which is read once for all of them."""
    prompt_tokens: float
    lengths: ResponseLengths
    in_flight: float | None = None
    """Prompts at most, one beginning where another has ended; None where each call waits for its longest response."""

    @property
    def responses(self) -> float:
        return self.calls * self.prompts * self.samples

    @property
    def tokens(self) -> float:
        return self.responses * self.lengths.mean

    @property
    def context(self) -> float:
        """Mean number of tokens that a drawn token attends to."""
        # A token sees on average half of its response, and long responses have more tokens: mean square over mean.
        return self.prompt_tokens + self.lengths.mean_square / (2 * self.lengths.mean)


@dataclass(frozen=True)
class SideBySide:
    """Drawing and training at once, each on devices of its own."""

    replicas: int
    """Of the sampler."""
    trainer_ranks: int
    steps: int
    """Batches that pass from one to the other."""

    def seconds(self, training: float, sampling: float) -> float:
        """The longer of the two, and one step of the other: the first batch is drawn before anything is trained on."""
        # The first batch waits for sampling alone, and the last one for training alone.
        return max(training, sampling) + min(training, sampling) / self.steps


@dataclass(frozen=True)
class NetworkWork:
    """What one stage does with networks that read or draw pictures."""

    trained: float
    """Parameters that learn."""
    held: float
    """Parameters beside them in memory that do not."""
    forward: float
    """FLOPs of passes without a gradient, in all."""
    with_gradient: float = 0.0
    """FLOPs of the forward passes that have one, in all; the way back is not in it."""
    taken_for_granted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lengths:
    """What a plan takes for granted, with where each figure is from."""

    prompt: float
    response_share: float
    drawn_per_trained: float
    responses: Mapping[str, float] = field(default_factory=dict)
    """Mean response tokens by the stage's address (`rl_round@rl_1`), where they were measured."""
    drawn: Mapping[str, float] = field(default_factory=dict)
    """Groups drawn per group trained, by address, where they were measured."""
    trained: Mapping[str, float] = field(default_factory=dict)
    """Tokens trained on, prompts included, by address, where they were measured."""
    untrained: Mapping[str, float] = field(default_factory=dict)
    """Policies with random weights -> chance of each of their tokens to be the end."""
    benchmark_problems: float | None = None
    """Problems that every policy answers, where the user says so."""
    sources: Mapping[str, str] = field(default_factory=dict)

    def of(self, address: str, most: int) -> ResponseLengths:
        """Lengths of the responses that a stage draws from the policy of its address, or from any."""
        assumed = self.response_share * most
        chance = self.untrained.get(address.partition("@")[2])
        if chance:
            # Mean of a geometric length, cut off at `most`.
            assumed = (1 - (1 - chance) ** most) / chance
        return ResponseLengths(min(self.responses.get(address, assumed), float(most)), most)

    def drawn_of(self, address: str) -> float:
        return self.drawn.get(address, self.drawn_per_trained)


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
        # Bisection on a logarithmic scale: the rate may be any power of ten, and the mean falls steadily as it rises.
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


STEPS_OF_SURVIVAL = 200
