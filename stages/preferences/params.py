"""Parameters of stage preferences."""

from __future__ import annotations

from pydantic import Field

from stages.foundations.params import StrictParams


class AnnotatorRules(StrictParams):
    """Who is kept. A rule speaks only where there is enough to measure; anonymous votes are not judged."""

    min_pairs: int = Field(ge=1)
    """Pairs of images below which a measure says nothing."""
    min_agreement_over_chance: float = Field(ge=0, le=1)
    """Agreement with others beyond chance (0.5), as a share of the median annotator's: a panel that agrees little is
    not judged as if its task were easy."""
    min_consistency: float = Field(ge=0, le=1)
    """Share of pairs in which the ranks do not contradict the annotator's own overall ratings."""
    min_gold_accuracy: float = Field(ge=0, le=1)
    """Agreement with the reference answers of gold tasks."""
    min_median_seconds: float = Field(ge=0)
    """Of a task; 0 switches the rule off."""


class PreferencesParams(StrictParams):
    """Section `preferences`."""

    annotator_rules: AnnotatorRules
    min_ranking_consistency: float = Field(ge=0, le=1)
    """A ranking whose pairs agree less with its own overall ratings is dropped; 0 keeps all."""
    max_pairs_per_prompt: int | None = Field(ge=1)
    """More are drawn down to this number by the seed; null keeps all."""
    validation_fraction: float = Field(ge=0, lt=1)
    """Share of the train prompts that are held out to choose the best epoch; 0 where the prompts already say so."""
