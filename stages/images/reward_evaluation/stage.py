"""Stage `reward_evaluation`: its section, its paths, and its description for other modules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.foundations.params import StrictParams
from stages.foundations.stage import About, Stage
from stages.images.engines.image_scorers.config import AestheticParams


class RewardEvaluationParams(StrictParams):
    """Section `reward_evaluation`."""

    device: Literal["auto", "cpu", "cuda"]
    threads: int = Field(ge=1)
    """CPU threads; part of the result, because the order of float additions depends on it."""
    images_per_batch: int = Field(ge=1)
    recall_at: list[Annotated[int, Field(ge=1)]]
    """The k of recall@k and filter@k (the paper: 1, 2, 4)."""
    bootstrap_draws: int = Field(ge=100)
    """Bootstrap samples of intervals over prompts."""
    aesthetic: AestheticParams | None = Field(default=None, exclude_if=lambda value: value is None)
    """A further scorer, `aesthetic`, where its weights are given; absent: it is not compared."""


STAGE = Stage(
    sections={"reward_evaluation": RewardEvaluationParams},
    inputs={
        "start": "data/image_scorers/base",
        "before": "data/image_scorers/${item.also}",
        "scorer": "data/image_scorers/${key}",
        "pairs": "data/preferences/${key}",
        "pool": "data/images/pool/${key}",
        "earlier_pool": "data/images/pool/${item.also}",
    },
    outputs={
        "scores": "data/image_scores/${key}.parquet",
        "metrics": "data/metrics/reward_evaluation/${key}.json",
        "headline": "data/headline/reward_evaluation/${key}.json",
    },
    foreach="ranking_rounds",
)


ABOUT = About(
    description="Compares every scorer with people's preferences on held-out prompts.",
    headline=("accuracy", "accuracy {:.1%}"),
    runs_model=lambda params: True,
    is_varied=True,
)
