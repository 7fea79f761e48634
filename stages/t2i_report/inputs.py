"""Reads all that the page is made from. What a run does not have is absent here, and no error."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas

from stages.engines.images.shards import read_image_rows, read_shards
from stages.foundations.params import read_yaml
from stages.foundations.stage_graph import GraphStage, read_definitions, stages_of
from stages.foundations.tables import ANNOTATOR, FEEDBACK_IMAGE, IMAGE_SCORE, PAIR, read_table
from stages.pages.reading import Metrics, read_curves, read_metrics


@dataclass(frozen=True)
class RankedRound:
    """A ranking round as far as it has come."""

    name: str
    annotators: pandas.DataFrame
    """`annotator` table."""
    pairs: pandas.DataFrame
    """`pair` table, the pairs of test prompts alone."""
    scores: pandas.DataFrame
    """A row for each image id, a column for each scorer; empty where nothing is scored yet."""
    images: pandas.DataFrame
    """`image` table without pictures, by image id: those of the round and of the earlier one that counts as well."""
    pools: tuple[Path, ...]

    def pictures(self, wanted: Collection[str]) -> dict[str, bytes]:
        """PNG of the images asked for, by id."""
        return {
            row.image_id: row.png
            for pool in self.pools
            for frame in read_shards(pool)
            for row in frame[frame["image_id"].isin(list(wanted))].itertuples()
        }


@dataclass(frozen=True)
class Inputs:
    """A run's numbers and tables, in the order of the graph."""

    seed: int
    stages: tuple[GraphStage, ...]
    metrics: dict[str, Metrics]
    """Metrics of each stage that has some, by DVC's name of it."""
    curves: dict[str, pandas.DataFrame]
    ranked: list[RankedRound]
    """The ranking rounds that have preferences."""
    feedback: dict[str, pandas.DataFrame]
    """`feedback_image` table of each round of feedback that has one."""
    params: dict[str, Any]
    params_text: str

    def with_metric(self, name: str) -> dict[str, Metrics]:
        """Metrics of the stages that have one of this name, by the stage's item."""
        return {stage.item: found for stage in self.stages if name in (found := self.metrics.get(stage.address, {}))}

    def with_column(self, name: str) -> dict[str, pandas.DataFrame]:
        """Curves that have a column, by the stage's item."""
        return {
            stage.item: self.curves[stage.address]
            for stage in self.stages
            if name in self.curves.get(stage.address, ())
        }


def read_inputs(paths: Namespace) -> Inputs:
    """Everything under the input folders that belongs to the parameter file; UserError on a file that is broken."""
    params = read_yaml(paths.params)
    stages = tuple(stages_of(read_definitions(paths.graph), params))
    tables = {name: paths.feedback / f"{name}.parquet" for name in params.get("refl_rounds") or {}}
    ranked = [_ranked(paths, name, own) for name, own in (params.get("ranking_rounds") or {}).items()]
    return Inputs(
        seed=int(params.get("seed", 0)),
        stages=stages,
        metrics=read_metrics(stages, paths.metrics),
        curves=read_curves(stages, paths.curves),
        ranked=[one for one in ranked if one is not None],
        feedback={name: read_table(path, FEEDBACK_IMAGE) for name, path in tables.items() if path.exists()},
        params=params,
        params_text=paths.params.read_text(encoding="utf-8"),
    )


def _ranked(paths: Namespace, name: str, own: dict[str, Any]) -> RankedRound | None:
    folder = paths.rankings / name
    pools = [paths.pool / one for one in dict.fromkeys([name, str(own["also"])])]
    if not all(place.exists() for place in (folder, *pools)):
        return None
    scored = paths.scores / f"{name}.parquet"
    pairs = read_table(folder / "pairs.parquet", PAIR)
    scores = pandas.DataFrame()
    if scored.exists():
        scores = read_table(scored, IMAGE_SCORE).pivot(index="image_id", columns="scorer", values="score")
    images = pandas.concat([read_image_rows(pool) for pool in pools], ignore_index=True)
    return RankedRound(
        name=name,
        annotators=read_table(folder / "annotators.parquet", ANNOTATOR),
        pairs=pairs[pairs["split"] == "test"].reset_index(drop=True),
        scores=scores,
        images=images.drop_duplicates("image_id").set_index("image_id"),
        pools=tuple(pools),
    )
