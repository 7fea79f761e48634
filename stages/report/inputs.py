"""Reads all inputs of the page. Data that a run does not have is absent here, which is not an error."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas

from stages.algorithms.decontamination import source_revision
from stages.algorithms.emergence import emergence_measures
from stages.foundations.errors import UserError
from stages.foundations.params import read_yaml
from stages.foundations.stage import about
from stages.foundations.stage_graph import GraphStage, read_definitions, stages_of
from stages.foundations.tables import (
    CONTAMINATION,
    DUPLICATE,
    RESPONSE,
    SAMPLED,
    VERDICT,
    TableSchema,
    open_table,
    read_table,
)
from stages.pages.reading import Metrics, read_curves, read_metrics
from stages.pages.shown_stages import shown
from stages.report.asynchronous import read_waits
from stages.report.cards import Card, read_cards


@dataclass(frozen=True)
class Inputs:
    """A run's metrics, curves and responses. Mappings are in the order of the graph."""

    seed: int
    policies: tuple[str, ...]
    """Policies of the parameter file, graded or not."""
    rounds: dict[str, str]
    """RL rounds, each with the policy that it starts from."""
    sources: tuple[str, ...]
    stages: tuple[GraphStage, ...]
    """The graph of the parameter file; the package of a stage describes it."""
    metrics: dict[str, Metrics]
    """Metrics of each stage that has some, by DVC's name of the stage: `curate`, `collect@gsm8k`, `grade@rl_1`."""
    curves: dict[str, pandas.DataFrame]
    """Curves of each stage that has some, likewise; those of RL rounds with the columns of `read_emergence`."""
    waits: dict[str, dict[str, dict[str, float]]]
    """What trainer and replicas of each asynchronous round did, as shares of their time."""
    responses: dict[str, pandas.DataFrame]
    """Responses of each policy with their verdicts and verifiers, in the order of the response table."""
    cards: list[Card]
    """A card for each table of the data stages."""
    contamination: dict[str, pandas.DataFrame]
    """Contamination that each stage found: rows with the benchmark problems that they match."""
    duplicates: pandas.DataFrame | None
    revisions: dict[str, str]
    """Version of each source that the parameter file pins."""
    params: dict[str, Any]
    params_text: str
    """Text of the parameter file."""

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
        """Returns problems of stages that raised no error, which their packages derive from the metrics."""
        counted = ((stage, self.metrics.get(stage.address)) for stage in self.stages)
        return [
            line
            for stage, metrics in counted
            if metrics is not None
            for line in about(stage.name).warnings(stage.item, metrics)
        ]

    @property
    def graded(self) -> list[str]:
        """Returns the policies that have grades, in order."""
        return [policy for policy in self.policies if self.grades(policy)]


def read_inputs(paths: Namespace) -> Inputs:
    """Returns all data in the input folders that belongs to the parameter file; UserError for a broken file.

    Files of policies, rounds and sources that are no longer in the parameter file are ignored.
    """
    params = read_yaml(paths.params)
    stages = tuple(stages_of(read_definitions(paths.graph), params))
    policies = tuple(_section(params, "policies", list, paths.params))
    entries = _section(params, "sources", dict, paths.params)
    # The models of `sources` belong to another stage, and no stage imports another.
    origins = {name: entry.get("from") if isinstance(entry, dict) else None for name, entry in entries.items()}
    responses = {name: _judged(paths.responses, paths.verdicts, name) for name in policies}
    contamination = {
        stage.address: _table(_below(paths, f"{shown(stage.name).contamination}.parquet"), CONTAMINATION)
        for stage in stages
        if shown(stage.name).contamination
    }
    rounds = _rounds(params, stages)
    curves, keywords = read_curves(stages, paths.curves), (params.get("grade") or {}).get("emergence_keywords") or []
    for stage in stages:
        rollouts = paths.rollouts / f"{stage.item}.parquet"
        if stage.item in rounds and stage.address in curves and rollouts.exists():
            measured = read_emergence(rollouts, keywords)
            curves[stage.address] = curves[stage.address].merge(measured, on="step", how="left")
    waits = {name: read_waits(paths.schedules / name / "timeline.json") for name in rounds}
    return Inputs(
        seed=int(params.get("seed", 0)),
        policies=policies,
        rounds=rounds,
        sources=tuple(entries),
        stages=stages,
        metrics=read_metrics(stages, paths.metrics),
        curves=curves,
        waits={name: of_round for name, of_round in waits.items() if of_round is not None},
        responses={name: frame for name, frame in responses.items() if frame is not None},
        params=params,
        params_text=paths.params.read_text(encoding="utf-8"),
        cards=read_cards((paths.web, paths.problems, paths.demonstrations), stages),
        contamination={name: table for name, table in contamination.items() if table is not None},
        duplicates=_table(paths.problems / "duplicates.parquet", DUPLICATE),
        revisions={name: source_revision(own if isinstance(own, dict) else {}) for name, own in origins.items()},
    )


def _rounds(params: dict[str, Any], stages: tuple[GraphStage, ...]) -> dict[str, str]:
    """Returns the items of stages whose entry in the parameter file names the policy that they start from."""
    # Recognised by the form of the entry: the report does not use the names of other stages.
    items = {stage.item for stage in stages}
    return {
        name: str(entry["start_from"])
        for section in params.values()
        for name, entry in (section.items() if isinstance(section, dict) else ())
        if name in items and isinstance(entry, dict) and "start_from" in entry
    }


def read_emergence(path: Path, keywords: list[str]) -> pandas.DataFrame:
    """Returns the means of `emergence_measures` over the responses that each version of the policy has sampled.

    Column `step` is the first step that could train on them. Reads a table of any size in pieces.
    """
    pieces = [pandas.DataFrame({"step": []}, dtype="int64")]
    with open_table(path) as file:
        # Not `read_table`: the tokens beside the texts take many times their memory.
        for batch in file.iter_batches(1000, columns=["policy_version", "response"]):
            rows = batch.to_pylist()
            measured = [
                {"step": row["policy_version"] + 1} | emergence_measures(row["response"], keywords) for row in rows
            ]
            pieces.append(pandas.DataFrame(measured))
    return pandas.concat(pieces).groupby("step", as_index=False).mean()


def _below(paths: Namespace, name: str) -> Path:
    """Returns the path of a file below data/, in the folder from the command line."""
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
    """Returns the response table with columns `verdict` and `path`; None unless both tables are there."""
    places = [folder / f"{policy}.parquet" for folder in (responses, verdicts)]
    if not all(place.exists() for place in places):
        return None
    judged = read_table(places[1], VERDICT)[[*SAMPLED, "verdict", "path"]]
    try:
        # `left` keeps responses without a verdict, which are an error below and must not disappear.
        joined = read_table(places[0], RESPONSE).merge(judged, on=[*SAMPLED], how="left", validate="one_to_one")
    except pandas.errors.MergeError:
        raise UserError(
            f"{places[0]} or {places[1]} holds a response twice: run `dvc repro --force respond@{policy}`"
        ) from None
    if joined["verdict"].isna().any():
        raise UserError(f"{places[1]} lacks verdicts for responses of {places[0]}: run `dvc repro grade@{policy}`")
    # For a table without rows, the share of correct responses is undefined.
    return joined if len(joined) else None
