"""Reads all that the page is made from. What a run does not have is absent here, and no error."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas

from stages.algorithms.decontamination import source_revision
from stages.foundations.errors import UserError
from stages.foundations.params import read_yaml
from stages.foundations.stage import about
from stages.foundations.stage_graph import GraphStage, read_definitions, stages_of
from stages.foundations.tables import CONTAMINATION, DUPLICATE, RESPONSE, SAMPLED, VERDICT, TableSchema, read_table
from stages.foundations.timelines import WrittenTimeline, read_timeline
from stages.pages.reading import Metrics, read_curves, read_metrics
from stages.report.cards import Card, read_cards


@dataclass(frozen=True)
class Inputs:
    """A run's numbers, curves and responses. Mappings are in the order in which things happen."""

    seed: int
    policies: tuple[str, ...]
    """Policies of the parameter file, graded or not."""
    rounds: dict[str, str]
    """RL rounds, each with the policy that it starts from."""
    sources: tuple[str, ...]
    stages: tuple[GraphStage, ...]
    """The graph of the parameter file; what a stage is about, its own package says."""
    metrics: dict[str, Metrics]
    """Metrics of each stage that has some, by DVC's name of it: `curate`, `collect@gsm8k`, `grade@rl_1`."""
    curves: dict[str, pandas.DataFrame]
    """Curves of each stage that has some, likewise."""
    timelines: dict[str, WrittenTimeline]
    """Of each asynchronous round."""
    responses: dict[str, pandas.DataFrame]
    """Responses of each policy with their verdicts and who decided, in the order of the response table."""
    cards: list[Card]
    """What is to be said of each table of the data stages."""
    contamination: dict[str, pandas.DataFrame]
    """Rows of each stage that looked, beside the benchmark problems they were found to be."""
    duplicates: pandas.DataFrame | None
    revisions: dict[str, str]
    """Which version of each source the parameter file pins."""
    params: dict[str, Any]
    params_text: str
    """The parameter file as it is."""

    def grades(self, policy: str) -> Metrics:
        """Scores of a policy; empty when it was not graded."""
        scoring = [stage.address for stage in self.stages if about(stage.name).score_keys and stage.item == policy]
        return self.metrics.get(scoring[0], {}) if scoring else {}

    @property
    def round_curves(self) -> dict[str, pandas.DataFrame]:
        """Curves of RL rounds, by the round's policy."""
        by_item = {stage.item: self.curves.get(stage.address) for stage in self.stages if stage.curves}
        return {name: by_item[name] for name in self.rounds if by_item.get(name) is not None}

    @property
    def warnings(self) -> list[str]:
        """What went wrong in a stage without an error, as its package says of its metrics."""
        counted = ((stage, self.metrics.get(stage.address)) for stage in self.stages)
        return [
            line
            for stage, metrics in counted
            if metrics is not None
            for line in about(stage.name).warnings(stage.item, metrics)
        ]

    @property
    def graded(self) -> list[str]:
        """The policies that have grades, in order."""
        return [policy for policy in self.policies if self.grades(policy)]


def read_inputs(paths: Namespace) -> Inputs:
    """Everything under the input folders that belongs to the parameter file; UserError on a file that is broken.

    Files of policies, rounds and sources that are no longer in the parameter file are left alone.
    """
    params = read_yaml(paths.params)
    stages = tuple(stages_of(read_definitions(paths.graph), params))
    policies = tuple(_section(params, "policies", list, paths.params))
    entries = _section(params, "sources", dict, paths.params)
    # The models of `sources` belong to another stage, and no stage imports another.
    origins = {name: entry.get("from") if isinstance(entry, dict) else None for name, entry in entries.items()}
    responses = {name: _judged(paths.responses, paths.verdicts, name) for name in policies}
    contamination = {
        stage.address: _table(_below(paths, f"{about(stage.name).contamination}.parquet"), CONTAMINATION)
        for stage in stages
        if about(stage.name).contamination
    }
    rounds = _rounds(params, stages)
    timelines = {name: read_timeline(paths.schedules / name / "timeline.json") for name in rounds}
    return Inputs(
        seed=int(params.get("seed", 0)),
        policies=policies,
        rounds=rounds,
        sources=tuple(entries),
        stages=stages,
        metrics=read_metrics(stages, paths.metrics),
        curves=read_curves(stages, paths.curves),
        timelines={name: timeline for name, timeline in timelines.items() if timeline is not None},
        responses={name: frame for name, frame in responses.items() if frame is not None},
        params=params,
        params_text=paths.params.read_text(encoding="utf-8"),
        cards=read_cards((paths.web, paths.problems, paths.demonstrations), stages),
        contamination={name: table for name, table in contamination.items() if table is not None},
        duplicates=_table(paths.problems / "duplicates.parquet", DUPLICATE),
        revisions={name: source_revision(own if isinstance(own, dict) else {}) for name, own in origins.items()},
    )


def _rounds(params: dict[str, Any], stages: tuple[GraphStage, ...]) -> dict[str, str]:
    """Items of stages whose entry in the parameter file says from which policy they start."""
    # By the form of the entry: the report knows no other stage by its name.
    items = {stage.item for stage in stages}
    return {
        name: str(entry["start_from"])
        for section in params.values()
        for name, entry in (section.items() if isinstance(section, dict) else ())
        if name in items and isinstance(entry, dict) and "start_from" in entry
    }


def _below(paths: Namespace, name: str) -> Path:
    """A file as it is named below data/, in the folder that the command gave for it."""
    top, _, rest = name.partition("/")
    return getattr(paths, top) / rest


def _table(path: Path, schema: TableSchema) -> pandas.DataFrame | None:
    return read_table(path, schema) if path.exists() else None


def _section(params: dict[str, Any], name: str, kind: type, path: Path) -> Any:
    value = params.get(name)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        wanted = "mapping" if kind is dict else "list"
        raise UserError(f"{path}: section `{name}` must be a {wanted}, not {type(value).__name__}: see the recipes")
    return value


def _judged(responses: Path, verdicts: Path, policy: str) -> pandas.DataFrame | None:
    """The response table with columns `verdict` and `path`; None unless both tables are there."""
    places = [folder / f"{policy}.parquet" for folder in (responses, verdicts)]
    if not all(place.exists() for place in places):
        return None
    judged = read_table(places[1], VERDICT)[[*SAMPLED, "verdict", "path"]]
    try:
        # `left` keeps responses without a verdict, which are an error below and must not vanish.
        joined = read_table(places[0], RESPONSE).merge(judged, on=[*SAMPLED], how="left", validate="one_to_one")
    except pandas.errors.MergeError:
        raise UserError(
            f"{places[0]} or {places[1]} holds a response twice: run `dvc repro --force respond@{policy}`"
        ) from None
    if joined["verdict"].isna().any():
        raise UserError(f"{places[1]} lacks verdicts for responses of {places[0]}: run `dvc repro grade@{policy}`")
    # A table without rows has no share of correct responses.
    return joined if len(joined) else None
