"""Stage `preferences`: its section, its paths, and its description for other modules."""

from __future__ import annotations

from pydantic import Field

from stages.foundations.params import StrictParams
from stages.foundations.stage import About, Stage
from stages.images.engines.pictures.params import RankingRoundParams


class AnnotatorRules(StrictParams):
    """Which annotators are kept. A rule applies only to enough measurements; anonymous votes are not judged."""

    min_pairs: int = Field(ge=1)
    """With fewer pairs of images a measure does not count."""
    min_agreement_over_chance: float = Field(ge=0, le=1)
    """Agreement with others beyond chance (0.5), as a share of the median annotator's. So a panel with a hard task is
    not judged as if the task were easy."""
    min_consistency: float = Field(ge=0, le=1)
    """Share of pairs in which the ranks do not contradict the annotator's own overall ratings."""
    min_gold_accuracy: float = Field(ge=0, le=1)
    """Agreement with the reference answers of gold tasks."""
    min_median_seconds: float = Field(ge=0)
    """Seconds for a task; 0 switches the rule off."""


class PreferencesParams(StrictParams):
    """Section `preferences`."""

    annotator_rules: AnnotatorRules
    min_ranking_consistency: float = Field(ge=0, le=1)
    """A ranking whose pairs agree less with its own overall ratings is dropped; 0 keeps all."""
    max_pairs_per_prompt: int | None = Field(ge=1)
    """Most pairs of a prompt; the seed selects them; null keeps all."""
    validation_fraction: float = Field(ge=0, lt=1)
    """Share of the train prompts held out to choose the best epoch; 0 where the prompts already have a split for it."""


STAGE = Stage(
    sections={"seed": int, "preferences": PreferencesParams, "ranking_rounds": dict[str, RankingRoundParams]},
    inputs={
        "annotations": "data/annotations/${key}",
        # The round itself where no earlier round counts.
        "earlier": "data/annotations/${item.also}",
        "prompts": "data/t2i/prompts.parquet",
    },
    outputs={
        "out": "data/preferences/${key}",
        "dropped": "data/dropped/preferences__${key}.parquet",
        "metrics": "data/metrics/preferences/${key}.json",
        "headline": "data/headline/preferences/${key}.json",
    },
    foreach="ranking_rounds",
)


ABOUT = About(
    description="Preference pairs from reliable annotators, split by prompt.", headline=("rows/kept", "{:,.0f} pairs")
)
