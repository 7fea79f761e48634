"""Reads all that the page is made from. What a run does not have is absent here, and no error."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
from pydantic import TypeAdapter, ValidationError

from stages.algorithms.decontamination import source_revision
from stages.foundations.errors import UserError
from stages.foundations.params import read_yaml
from stages.foundations.tables.contamination import CONTAMINATION
from stages.foundations.tables.duplicate import DUPLICATE
from stages.foundations.tables.response import RESPONSE
from stages.foundations.tables.table import TableSchema, read_table
from stages.foundations.tables.verdict import VERDICT
from stages.report.tables import TableFacts, read_tables

Metrics = dict[str, float]

_KEYS = ["benchmark", "problem_id", "mode", "sample_index"]
_METRICS = TypeAdapter(Metrics)


@dataclass(frozen=True)
class Inputs:
    """A run's numbers, curves and responses. Mappings are in the order in which things happen."""

    seed: int
    policies: tuple[str, ...]
    """Policies of the parameter file, graded or not."""
    rounds: dict[str, str]
    """RL rounds, each with the policy that it starts from."""
    sources: tuple[str, ...]
    metrics: dict[str, Metrics]
    """Metrics of each stage that has some, by DVC's name of it: `curate`, `collect@gsm8k`, `grade@rl_1`."""
    sft_curve: pandas.DataFrame | None
    round_curves: dict[str, pandas.DataFrame]
    responses: dict[str, pandas.DataFrame]
    """Responses of each policy with their verdicts, in the order of the response table."""
    tables: list[TableFacts]
    """What is to be said of each table of the data stages."""
    contamination: pandas.DataFrame | None
    """Training problems beside the benchmark problems they were found to be."""
    web_contamination: pandas.DataFrame | None
    """The same for exercises from the web."""
    duplicates: pandas.DataFrame | None
    revisions: dict[str, str]
    """Which version of each source the parameter file pins."""
    agreement_samples: int | None
    """Responses that filter_web samples of the base policy for each exercise; None where it asks no policy."""
    params_text: str
    """The parameter file as it is."""

    def grades(self, policy: str) -> Metrics:
        """Grade metrics of a policy; empty when it was not graded."""
        return self.metrics.get(f"grade@{policy}", {})

    @property
    def graded(self) -> list[str]:
        """The policies that have grades, in order."""
        return [policy for policy in self.policies if self.grades(policy)]


def read_inputs(paths: Namespace) -> Inputs:
    """Everything under the input folders that belongs to the parameter file; UserError on a file that is broken.

    Files of policies, rounds and sources that are no longer in the parameter file are left alone.
    """
    params = read_yaml(paths.params)
    policies = tuple(_section(params, "policies", list, paths.params))
    sources = tuple(entries := _section(params, "sources", dict, paths.params))
    rounds = {
        name: str(entry.get("start_from", "")) if isinstance(entry, dict) else ""
        for name, entry in _section(params, "rl_rounds", dict, paths.params).items()
    }
    origins = {
        name: entry.get("from") if isinstance(entry, dict) else None for name, entry in entries.items()
    }
    revisions = {name: source_revision(own if isinstance(own, dict) else {}) for name, own in origins.items()}
    curves = {name: _curve(paths.curves / "rl_round" / f"{name}.csv") for name in rounds}
    responses = {name: _judged(paths.responses, paths.verdicts, name) for name in policies}
    return Inputs(
        seed=int(params.get("seed", 0)),
        policies=policies,
        rounds=rounds,
        sources=sources,
        metrics=_all_metrics(paths.metrics, policies, tuple(rounds), sources),
        sft_curve=_curve(paths.curves / "sft.csv"),
        round_curves={name: curve for name, curve in curves.items() if curve is not None},
        responses={name: frame for name, frame in responses.items() if frame is not None},
        params_text=paths.params.read_text(encoding="utf-8"),
        tables=read_tables((paths.web, paths.problems, paths.demonstrations), sources),
        contamination=_table(paths.problems / "contamination.parquet", CONTAMINATION),
        web_contamination=_table(paths.web / "contamination.parquet", CONTAMINATION),
        duplicates=_table(paths.problems / "duplicates.parquet", DUPLICATE),
        revisions=revisions,
        agreement_samples=_agreement_samples(params, paths.params),
    )


def _agreement_samples(params: dict[str, Any], path: Path) -> int | None:
    agreement = _section(_section(params, "filter_web", dict, path), "agreement", dict, path)
    return agreement.get("samples") if agreement.get("kind") == "policy" else None


def _table(path: Path, schema: TableSchema) -> pandas.DataFrame | None:
    return read_table(path, schema) if path.exists() else None


def _section(params: dict[str, Any], name: str, kind: type, path: Path) -> Any:
    value = params.get(name)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        wanted = "mapping" if kind is dict else "list"
        raise UserError(
            f"{path}: section `{name}` must be a {wanted}, not {type(value).__name__}: see the recipes"
        )
    return value


def _all_metrics(
    folder: Path, policies: tuple[str, ...], rounds: tuple[str, ...], sources: tuple[str, ...]
) -> dict[str, Metrics]:
    places = {"base": folder / "base.json"}
    places |= {f"collect@{name}": folder / "collect" / f"{name}.json" for name in sources}
    plain = ("collect_web", "curate", "extract_web", "filter_web", "demonstrate", "sft")
    places |= {name: folder / f"{name}.json" for name in plain}
    places |= {f"rl_round@{name}": folder / "rl_round" / f"{name}.json" for name in rounds}
    for stage in ("respond", "grade"):
        places |= {f"{stage}@{name}": folder / stage / f"{name}.json" for name in policies}
    return {name: _read_metrics(place) for name, place in places.items() if place.exists()}


def _read_metrics(path: Path) -> Metrics:
    try:
        return _METRICS.validate_python(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, ValidationError) as error:
        what = f"{error.error_count()} values are no numbers" if isinstance(error, ValidationError) else error
        raise UserError(f"{path} is not a metrics file ({what}): delete it and run `dvc repro`") from None


def _curve(path: Path) -> pandas.DataFrame | None:
    if not path.exists():
        return None
    try:
        curve = pandas.read_csv(path).apply(pandas.to_numeric)
    except (ValueError, pandas.errors.EmptyDataError) as error:
        raise UserError(f"{path} is not a table of curves ({error}): delete it and run `dvc repro`") from None
    if "step" not in curve:
        raise UserError(f"{path} has no column `step`: delete it and run `dvc repro`")
    return curve if len(curve) else None


def _judged(responses: Path, verdicts: Path, policy: str) -> pandas.DataFrame | None:
    """The response table with a column `verdict`; None unless both tables are there."""
    places = [folder / f"{policy}.parquet" for folder in (responses, verdicts)]
    if not all(place.exists() for place in places):
        return None
    judged = read_table(places[1], VERDICT)[[*_KEYS, "verdict"]]
    try:
        joined = read_table(places[0], RESPONSE).merge(judged, on=_KEYS, how="left", validate="one_to_one")
    except pandas.errors.MergeError:
        raise UserError(
            f"{places[0]} or {places[1]} holds a response twice: run `dvc repro --force respond@{policy}`"
        ) from None
    if joined["verdict"].isna().any():
        raise UserError(
            f"{places[1]} lacks verdicts for responses of {places[0]}: run `dvc repro grade@{policy}`"
        )
    return joined if len(joined) else None
