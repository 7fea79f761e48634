"""The declaration of a stage in `stages/<name>/stage.py`: `STAGE` for its run, and `ABOUT` for other modules.

docs/how-to/own-stage.md has a whole stage as an example. `python -m stages <name>` runs `main(job)` of
`stages/<name>/run.py`. dvc.yaml has an entry for each `STAGE` (`retrace graph` writes it). `plan`, `explain`,
`compare`, `mirror`, `ablate`, the report and the check of params.yaml read `ABOUT`. Declarations are light: they import
parameters at their top, and everything else inside of their functions. The second half of this file has the counts of
`About.work` for `retrace plan`.

A path of a stage that runs over a section (`foreach`) names the item, as in dvc.yaml. For a mapping, `${key}` is its
name, and `${item.start_from}` one of its values. For a list, `${item}` is the entry. Paths use nothing else.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

Sections = Mapping[str, Any]
"""Validated sections of a parameter file, by name; those of branches that it leaves out are absent."""
METRICS, HEADLINE, CURVES = "metrics", "headline", "curves"
"""Outputs that DVC shows: all numbers, the few that become columns, and the data of `dvc plots`."""


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
    model: Callable[[Sections], ModelSizes] | None = None
    """For the stage that provides the policy that all others start from."""
    work: Callable[[Sections, str, Lengths], Work] | None = None
    """Work of the stage at an address with a policy, before it runs."""
    prompts: Callable[[Sections], Mapping[str, int]] | None = None
    """For the stage that provides picture prompts: their number by split, or nothing if it is unknown."""
    networks: Callable[[Sections, str, Mapping[str, int]], NetworkWork] | None = None
    """Work of the stage at an address with picture networks, for so many prompts by split."""
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

    lane: str = ""
    """Heading under which the report lists it."""
    has_funnel: bool = False
    """Its rows are data, and dropping them needs reasons: the report shows how many were kept."""
    way: FunnelStep | None = None
    tables: Mapping[str, str] = field(default_factory=dict)
    """Its tables that get a card in the report, by their path under data/ without the ending, and their purpose."""
    contamination: str = ""
    """Its table of rows that are in a benchmark, as in `tables`."""


@dataclass(frozen=True)
class FunnelStep:
    """A stage's place in a chain that rows pass through, shown as one table of the remaining rows."""

    title: str
    """Name of the chain; equal for its stages, which come in graph order."""
    unit: str
    """Unit of the stage's rows: pages, exercises."""
    first: str = ""
    """Label of the input, where its unit differs from that of the stage before: `pages collected`."""
    last: str = ""
    """Label of the rows at the end of the chain."""
    reasons: tuple[str, ...] = ()
    """Reasons of drops in the order in which the stage checks them; others follow."""
    note: Callable[[Mapping[str, Any]], str] = lambda params: ""
    """A sentence for the caption, from the stage's section as the parameter file has it."""


def about(name: str) -> About:
    """Returns a stage's facts; empty where it declares nothing, as a stage that was added to dvc.yaml by hand."""
    return _declared(name)[1]


def declared_stage(name: str) -> Stage | None:
    """Returns a stage's declaration; None where it declares nothing."""
    return _declared(name)[0]


@cache
def _declared(name: str) -> tuple[Stage | None, About]:
    module = f"stages.{name}.stage"
    # dvc.yaml may have any name; one with dots could import a module that is not a stage.
    if not name.isidentifier():
        return None, About()
    # The package is checked first: `find_spec` raises for a module of a package that does not exist.
    if importlib.util.find_spec(f"stages.{name}") is None or importlib.util.find_spec(module) is None:
        return None, About()
    found = importlib.import_module(module)
    return found.STAGE, found.ABOUT


def unknown_sources(address: str, wanted: Iterable[str], known: Collection[str], where: str) -> list[str]:
    """Returns names in the list at `address` that `where` does not have, as `About.contradictions` reports them."""
    return [
        f"{address}: `{name}` is none of {where}, which are {', '.join(sorted(known)) or 'none'}"
        for name in wanted
        if name not in known
    ]


# From here on: return values of `About.model`, `About.work` and `About.networks`, and the lengths given to them.


@dataclass(frozen=True)
class ModelSizes:
    """The source of a policy's sizes: a name with known sizes, or a transformers config."""

    name: str
    config: Mapping[str, Any] | Path | None = None
    """A config, or the path of its file from the project's root; None where only the name is known."""
    is_untrained: bool = False
    """Random weights: the end token is as likely as any other."""
    policy: str = ""
    """Name of the policy."""
    positions: int | None = None
    """Its number of positions where it is not the published one."""


@dataclass(frozen=True)
class Work:
    """Work of one stage with a policy."""

    training: Training | None = None
    sampling: tuple[Sampling, ...] = ()
    taken_for_granted: tuple[str, ...] = ()
    """Sentences on the assumptions of the figures, beyond the lengths."""
    side_by_side: SideBySide | None = None
    """None where sampling and training alternate."""
    not_counted: tuple[str, ...] = ()
    """Work of unknown size, with how to make it known."""


@dataclass(frozen=True)
class Training:
    """Passes through the trainer."""

    tokens: float
    """Prompt and response tokens that go forward and backward."""
    response_tokens: float
    """The part of `tokens` that passes through the head."""
    forward_tokens: float
    """Tokens that only go forward: validation, proximal and reference log-probs."""
    context: float
    """Mean length that a token attends over, times two: mean square of the sequences over their mean."""
    longest: int
    updates: int
    kind: str
    """Of the optimizer."""
    holds_reference: bool = False
    """A second, frozen policy is in memory beside the trained one."""
    critic: str | None = None
    """Kind of the optimizer of a second model of the policy's size, which learns too; None where there is none."""
    adapter: Any = None
    """`AdapterParams` of what is learned in place of the policy's own weights."""


@dataclass(frozen=True)
class Sampling:
    """Sampled responses; each call waits for its longest response before the next one starts."""

    calls: float
    prompts: float
    """In one call."""
    samples: int
    """Responses to each prompt, which is read once for all of them."""
    prompt_tokens: float
    lengths: ResponseLengths
    in_flight: float | None = None
    """Most prompts at once, each starting when another ends; None where each call waits for its longest response."""
    is_by_trainer: bool = False
    """In a stage that samples and trains side by side: the trainer's devices sample it, and do not train meanwhile."""
    observed: float = 0.0
    """Tokens of a response that its environment writes, beside those of `lengths`."""
    read_between: float = 0.0
    """Tokens that a response reads between its turns: observations, and earlier turns where they are not kept."""

    @property
    def read_for_prompt(self) -> float:
        """Tokens that are read, not generated, for one prompt and its samples."""
        return self.prompt_tokens + self.samples * self.read_between

    @property
    def responses(self) -> float:
        return self.calls * self.prompts * self.samples

    @property
    def tokens(self) -> float:
        return self.responses * self.lengths.mean

    @property
    def context(self) -> float:
        """Mean number of tokens that a generated token attends to."""
        # A token sees on average half of its response, and long responses have more tokens: mean square over mean.
        return self.prompt_tokens + self.lengths.mean_square / (2 * self.lengths.mean)


def over_turns(part: Sampling, environment: Any, keeps_prefixes: bool) -> tuple[Sampling, tuple[str, ...]]:
    """Returns the sampling of responses with turns, and the assumptions as sentences; unchanged without an environment.

    `environment` is `prompt.environment`. A sampler that `keeps_prefixes` does not read earlier turns again.
    """
    if environment is None:
        return part, ()
    # Nobody knows the turns before a run: the middle of what the recipe allows.
    turns = (1 + environment.max_turns) / 2
    # The limit of a response counts observations too.
    observed = min((turns - 1) * environment.max_observation_tokens, part.lengths.most - part.lengths.mean)
    read, reading = observed, "keeps earlier turns"
    if not keeps_prefixes:
        # A later turn begins, on average, in the middle of the response.
        read = (turns - 1) * (part.prompt_tokens + (part.lengths.mean + observed) / 2)
        reading = "reads the prompt and earlier turns again for each turn"
    sentence = (
        f"prompt.environment: {turns:g} turns a response, the middle of 1 to {environment.max_turns}; observations of "
        f"{environment.max_observation_tokens} tokens, the largest allowed, up to the limit of a response; "
        f"the sampler {reading}; waiting for the environment is not counted"
    )
    return replace(part, observed=observed, read_between=read), (sentence,)


@dataclass(frozen=True)
class SideBySide:
    """Sampling and training at once, each on separate devices."""

    replicas: int
    """Of the sampler."""
    trainer_ranks: int
    steps: int
    """Batches that pass from sampling to training."""

    def seconds(self, training: float, sampling: float) -> float:
        """The longer of the two, and one step of the other: the first batch is sampled before any training."""
        # The first batch waits only for sampling, and the last one only for training.
        return max(training, sampling) + min(training, sampling) / self.steps


@dataclass(frozen=True)
class NetworkWork:
    """Work of one stage with networks that read or generate pictures."""

    trained: float
    """Trained parameters."""
    held: float
    """Parameters beside them in memory that are not trained."""
    forward: float
    """FLOPs of passes without a gradient, in all."""
    with_gradient: float = 0.0
    """FLOPs of the forward passes with a gradient, in all, without the backward passes."""
    taken_for_granted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lengths:
    """Assumptions of a plan, with the source of each figure."""

    prompt: float
    response_share: float
    drawn_per_trained: float
    responses: Mapping[str, float] = field(default_factory=dict)
    """Mean response tokens by the stage's address (`rl_round@rl_1`), where they were measured."""
    drawn: Mapping[str, float] = field(default_factory=dict)
    """Groups sampled per group trained on, by address, where they were measured."""
    trained: Mapping[str, float] = field(default_factory=dict)
    """Tokens trained on, prompts included, by address, where they were measured."""
    untrained: Mapping[str, float] = field(default_factory=dict)
    """Policies with random weights -> probability of the end token at each step."""
    benchmark_problems: float | None = None
    """Problems that every policy answers, if the user gives their number."""
    sources: Mapping[str, str] = field(default_factory=dict)

    def of(self, address: str, most: int) -> ResponseLengths:
        """Returns lengths of the responses that a stage samples from the policy of its address, or from any."""
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
