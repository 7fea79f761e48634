"""An ablation file: the variants, the metrics, and the paper's claims.

    pipelines/ablations/<name>.yaml

Like those of the stages, its models have no defaults: a file states everything, and a mistake names its key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipelines.graph.recipes import recipe_names
from pipelines.output import there_are
from stages.foundations.errors import UserError
from stages.foundations.params import StrictParams, read_yaml, validate_section

POLICY = "{policy}"
"""Placeholder in a metric's file for the policy that a variant measures."""
# Names become folders, file names and values in MLflow's filters.
NAME = r"^[a-z0-9][a-z0-9_.-]*$"
Name = Annotated[str, Field(pattern=NAME)]
Unit = Literal["percent", "tokens", "number"]


class Paper(StrictParams):
    """Reference of the published numbers."""

    reference: str
    """Paper and table."""
    measures: str
    """Definition of its numbers, in the words and units of the paper."""


class Score(StrictParams):
    """A number of a metric file. Scores on benchmarks are compared problem by problem."""

    kind: Literal["score"]
    label: str
    unit: Unit
    """percent: a fraction, shown as a percentage."""
    file: str
    """Under data/metrics/, without `.json`; `{policy}` is replaced by the variant's policy."""
    key: str


class CurveMean(StrictParams):
    """The mean of a column over the last steps of a training curve."""

    kind: Literal["curve_mean"]
    label: str
    unit: Unit
    file: str
    """Under data/curves/, without `.csv`."""
    column: str
    last_steps: int | None = Field(ge=1)
    """Null for all steps."""


class _ToReach(StrictParams):
    """The cost until training accuracy, averaged over some steps, first reached a goal."""

    label: str
    file: str
    """Under data/curves/, without `.csv`."""
    accuracy: float = Field(gt=0, lt=1)
    window_steps: int = Field(ge=1)
    """Steps of the trailing mean; a single step's accuracy covers only a few problems."""


class TokensToReach(_ToReach):
    """Sampled tokens up to that step."""

    kind: Literal["tokens_to_reach"]
    unit: Literal["tokens"]


class StepsToReach(_ToReach):
    """The step itself."""

    kind: Literal["steps_to_reach"]
    unit: Literal["number"]


Metric = Annotated[Score | CurveMean | TokensToReach | StepsToReach, Field(discriminator="kind")]


class Variant(StrictParams):
    """One setting. In the file: its dotted changes, beside `says`, and where needed `builds_on` and `policy`."""

    says: str
    """One line for the table."""
    builds_on: str | None
    """An earlier variant whose changes are applied first; null for none."""
    policy: str | None
    """The measured policy; null for the ablation's."""
    changes: dict[str, Any]
    """Dotted parameter name -> value; a mapping replaces the whole mapping."""

    @model_validator(mode="before")
    @classmethod
    def _from_file(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            raise ValueError("must be a mapping of dotted parameter names; {says: ...} for no change")
        # A missing `says` is left out, so that pydantic names the key. The other two may be missing.
        own = {name: given[name] for name in ("says",) if name in given}
        own |= {name: given.get(name) for name in ("builds_on", "policy")}
        return own | {"changes": {k: v for k, v in given.items() if k not in ("says", "builds_on", "policy")}}


class Claim(StrictParams):
    """The paper's statement about two variants."""

    metric: str
    variant: str
    against: str
    direction: Literal["higher", "lower", "same"]
    margin: float | None = Field(gt=0)
    """For `same`: the largest difference that counts as none, in the metric's unit (fractions, tokens)."""

    @model_validator(mode="after")
    def _margin_fits(self) -> Claim:
        # A direction has the fixed threshold 0. "The same" means nothing without one.
        if (self.direction == "same") != (self.margin is not None):
            raise ValueError("direction `same` needs a margin; for other directions set margin: null")
        return self


class ExpectedSeconds(StrictParams):
    """Measured on one core; only the plan's estimate uses them."""

    shared: float = Field(ge=0)
    """The stages that the variants of a seed share."""
    run: float = Field(gt=0)
    """The stages of one variant alone, on average over the variants."""


class Ablation(StrictParams):
    """A whole ablation file."""

    name: Name
    title: str
    paper: Paper
    claim: str
    """The paper's, in one sentence."""
    notes: str
    """Why the task has this size, its differences from the paper, and its gaps."""
    recipe: str
    policy: str
    """The measured policy."""
    seeds: list[Annotated[int, Field(ge=0)]] = Field(min_length=1)
    baseline: str
    is_ladder: bool
    """True compares each variant also with the one before it."""
    expected_seconds: ExpectedSeconds
    overrides: dict[str, Any]
    """Dotted parameter name -> value, for all variants."""
    variants: dict[Name, Variant] = Field(min_length=2)
    metrics: dict[Name, Metric] = Field(min_length=1)
    """The first one leads the table."""
    comparisons: list[Claim] = Field(min_length=1)
    published: dict[str, dict[str, float]]
    """Variant -> metric -> the paper's number in the paper's unit."""

    @model_validator(mode="after")
    def _names_fit(self) -> Ablation:
        wrong = [*self._wrong_variants(), *self._wrong_metrics()]
        if len(set(self.seeds)) < len(self.seeds):
            wrong.append(f"seeds {self.seeds}: list each seed once")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    def _wrong_variants(self) -> list[str]:
        known, found, earlier = list(self.variants), [], []
        for name, variant in self.variants.items():
            if variant.builds_on is not None and variant.builds_on not in earlier:
                found.append(f"variants.{name}.builds_on: no earlier variant {variant.builds_on!r}")
            # Only after the check, so that a variant cannot build on itself and no chain is circular.
            earlier.append(name)
        named = [("baseline", self.baseline), *(("published", name) for name in self.published)]
        for number, claimed in enumerate(self.comparisons):
            named.append((f"comparisons.{number}.variant", claimed.variant))
            named.append((f"comparisons.{number}.against", claimed.against))
        return found + [
            f"{place}: there is no variant {name!r}; there are {', '.join(known)}"
            for place, name in named
            if name not in known
        ]

    def _wrong_metrics(self) -> list[str]:
        named = [(f"comparisons.{number}.metric", claimed.metric) for number, claimed in enumerate(self.comparisons)]
        named += [(f"published.{variant}", metric) for variant, numbers in self.published.items() for metric in numbers]
        return [
            f"{place}: there is no metric {name!r}; there are {', '.join(self.metrics)}"
            for place, name in named
            if name not in self.metrics
        ]

    def changes_of(self, variant: str) -> dict[str, Any]:
        """Returns the dotted changes of a variant to the recipe; later ones override earlier ones."""
        own = self.variants[variant]
        # The overrides of the whole file come first, at the root of every chain.
        return {**(self.changes_of(own.builds_on) if own.builds_on else self.overrides), **own.changes}

    def policy_of(self, variant: str) -> str:
        """Returns the policy that the variant measures."""
        return self.variants[variant].policy or self.policy


def ablation_names(root: Path) -> list[str]:
    return sorted(path.stem for path in (root / "pipelines" / "ablations").glob("*.yaml"))


def read_ablation(root: Path, name: str) -> Ablation:
    """Returns the checked file. UserError names the ablation and every wrong key, or lists the existing ablations."""
    names = ablation_names(root)
    if name not in names:
        raise UserError(f"unknown ablation {name!r}: {there_are(name, names)}")
    path = root / "pipelines" / "ablations" / f"{name}.yaml"
    # The models have no defaults, so that a typing mistake in a key cannot pass as a default.
    ablation = validate_section(read_yaml(path), f"ablation {name}", Ablation, path)
    if ablation.name != name:
        raise UserError(f"{path}: name is {ablation.name!r}, but must be the name of its file: {name}")
    # Checked here, because the models do not know the project.
    if ablation.recipe not in recipe_names(root):
        known = there_are(ablation.recipe, recipe_names(root))
        raise UserError(f"ablation {name}: unknown recipe {ablation.recipe!r}: {known}")
    return ablation


def resolve(file: str, policy: str) -> str:
    """Returns the metric's file for a policy."""
    return file.replace(POLICY, policy)
