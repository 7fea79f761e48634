"""What a run of the graph will probably do: the recipe, the stages that run, their time and their disk.

It is made from `dvc.lock` and small files in a few milliseconds, beside DVC, which then decides. A stage that is
expected to run may not: its input can come out as before, or DVC's run cache can have its outputs.

What has not run here has the time and size of a measured run, where the recipe's authors kept one:

    python -m pipelines.graph.forecast MACHINE     # keeps the run of this project as the figures of its recipe
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from pipelines.graph.result import changes_from_recipe, seconds_in_words
from stages.foundations.errors import UserError
from stages.foundations.files import write_text_atomically
from stages.foundations.hashing import dvc_md5
from stages.foundations.scratch import PROJECT
from stages.foundations.stage_graph import GraphStage, read_definitions, stages_of
from stages.foundations.yaml_text import load_yaml
from stages.observe.command import run_stage
from stages.observe.progress import say
from stages.observe.stage_timings import latest_runs
from stages.observe.tracking import recipe_name

CODE = "data/code/"
"""Small files that stages depend on: they are hashed here. Of other files the size is compared."""
MOST_CHANGES = 4
"""Changes to the recipe that are shown, each with both values."""
TIMES = "state/stage_seconds.json"
"""Recipe -> stage -> seconds of its last run, with DVC's work on its files."""
MEASURED = "pipelines/recipes/measured.json"
"""Recipe -> `machine` in words, and `stages`: name -> `seconds` and `bytes` of outputs, of one whole run."""


@dataclass(frozen=True)
class Forecast:
    """The stages of the graph that are expected to run, in the order of dvc.yaml."""

    stages: int
    """All stages of the graph."""
    running: tuple[str, ...]
    seconds: float
    """Of the running stages whose time is known."""
    without_time: tuple[str, ...]
    bytes: int
    """Of the outputs that the running stages wrote the last time."""
    without_size: tuple[str, ...]
    recipe: str = ""
    measured_on: str = ""
    """The machine of the recipe's measured run, where times of it are among `seconds`."""


def recipe_lines(root: Path) -> list[str]:
    """The recipe in use, what it is for, and what params.yaml changes in it."""
    recipe = _recipe(root)
    purpose = f": {text}" if (text := _purpose(root / "pipelines" / "recipes" / f"{recipe}.yaml")) else ""
    changes = [f"{key} {change}" for key, change in changes_from_recipe(root).items()]
    more = [f"{len(changes) - MOST_CHANGES} more"] if len(changes) > MOST_CHANGES else []
    changed = [f"changed {', '.join([*changes[:MOST_CHANGES], *more])}"] if changes else []
    return [f"recipe  {recipe or 'params.yaml, made from no recipe'}{purpose}", *changed]


def _purpose(recipe: Path) -> str:
    """The first sentence of the comment that a recipe begins with, after its name."""
    lines = recipe.read_text(encoding="utf-8").split("\n") if recipe.is_file() else []
    comment = " ".join(line[1:].strip() for line in takewhile(lambda line: line.startswith("#"), lines))
    found = re.match(r'Recipe "[^"]+": (.+?)[.:](?= |$)', comment)
    return found[1] if found else ""


def forecast_lines(forecast: Forecast, root: Path) -> list[str]:
    """Stages, time and disk; no line where nothing is expected to run."""
    if not forecast.running:
        return []
    kinds = Counter(name.partition("@")[0] for name in forecast.running)
    named = ", ".join(f"{kind} ({count})" if count > 1 else kind for kind, count in kinds.items())
    free = f"{_size(shutil.disk_usage(root).free)} free"
    seconds = f"about {seconds_in_words(forecast.seconds)}"
    seconds += f", measured on {forecast.measured_on}" if forecast.measured_on else ""
    return [
        f"stages  up to {len(forecast.running)} of {forecast.stages}: {named}",
        f"time    {_known(forecast, forecast.without_time, seconds)}",
        f"disk    {_known(forecast, forecast.without_size, f'about {_size(forecast.bytes)} of results')}, {free}",
    ]


def make_forecast(root: Path) -> Forecast:
    """The forecast for a project. A stage runs when its parameters, code, paths or inputs are not those of dvc.lock."""
    stages = graph_stages(root)
    lock = _read(root / "dvc.lock").get("stages") or {}
    params, waiting = _read(root / "params.yaml"), [stage for stage in stages if not writes_code(stage)]
    running: dict[str, GraphStage] = {}
    while True:  # until no stage more depends on one that runs
        written = [out for stage in running.values() for out in stage.outs]
        more = {
            stage.address: stage
            for stage in waiting
            if stage.address not in running
            and (_reads(stage, written) or _has_changed(root, stage, lock.get(stage.address), params))
        }
        if not more:
            break
        running |= more
    recipe = _recipe(root)
    measured = _read(root / MEASURED).get(recipe, {})
    of_run = measured.get("stages", {})
    names = tuple(stage.address for stage in waiting if stage.address in running)
    known_here = _known_seconds(root, recipe)
    times = {name: one["seconds"] for name, one in of_run.items()} | known_here
    sizes = {
        name: _written_bytes(lock[name]) if name in lock else of_run.get(name, {}).get("bytes")
        for name in names
    }
    return Forecast(
        len(stages),
        names,
        sum(times.get(name, 0.0) for name in names),
        tuple(name for name in names if name not in times),
        sum(size or 0 for size in sizes.values()),
        tuple(name for name, size in sizes.items() if size is None),
        recipe,
        measured["machine"] if any(name in of_run and name not in known_here for name in names) else "",
    )


def writes_code(stage: GraphStage) -> bool:
    """Whether it is the stage that writes the fingerprints. It has ended before a forecast is made from them."""
    return any(f"{out}/" == CODE for out in stage.outs)


def graph_stages(root: Path) -> list[GraphStage]:
    """The stages of the parameters in use; none where there is no dvc.yaml."""
    return stages_of(read_definitions(root / "dvc.yaml"), _read(root / "params.yaml"))


def remember_seconds(root: Path, seconds: Mapping[str, float]) -> None:
    """Keeps how long stages of the recipe in use took, for the next forecast."""
    known = _read(root / TIMES)
    known[_recipe(root)] = known.get(_recipe(root), {}) | {
        name: round(one, 1) for name, one in seconds.items()
    }
    write_text_atomically(root / TIMES, json.dumps(known, indent=1) + "\n")


def _known_seconds(root: Path, recipe: str) -> dict[str, float]:
    """Seconds by stage of the recipe: what earlier runs of the graph here took, else what the ledger has."""
    ledger = {
        line["name"]: float(line["seconds"])
        for line in latest_runs(root / "state" / "ledger.jsonl")
        if line.get("recipe", recipe).removesuffix("+changes") == recipe
    }
    return ledger | _read(root / TIMES).get(recipe, {})


def _recipe(root: Path) -> str:
    return recipe_name(root).removesuffix("+changes")


def _read(path: Path) -> dict[str, Any]:
    """A YAML or JSON file's content; empty where it is missing."""
    return (load_yaml(path.read_bytes()) or {}) if path.exists() else {}


def _reads(stage: GraphStage, written: Iterable[str]) -> bool:
    """Whether the stage depends on one of these outputs, or on a folder that holds one."""
    return any(out == dep or out.startswith(f"{dep}/") for out in written for dep in stage.deps)


def _has_changed(
    root: Path, stage: GraphStage, recorded: Mapping[str, Any] | None, params: Mapping[str, Any]
) -> bool:
    if recorded is None:
        return True
    files = [*recorded.get("deps", ()), *recorded.get("outs", ())]
    if {file["path"] for file in files} != {*stage.deps, *stage.outs}:
        return True
    values = recorded.get("params", {}).get("params.yaml", {})
    # Sizes, not hashes, of data and weights: DVC hashes them next, and a forecast must not take as long again.
    return any(_at(params, key) != value for key, value in values.items()) or any(
        _differs(root / file["path"], file) for file in files
    )


def _at(params: Any, key: str) -> Any:
    """The value at a dotted key; None where there is none."""
    for name in key.split("."):
        params = params.get(name) if isinstance(params, Mapping) else None
    return params


def _differs(path: Path, recorded: Mapping[str, Any]) -> bool:
    if not path.exists():
        return True
    if recorded["path"].startswith(CODE):
        return dvc_md5(path) != recorded["md5"]
    return path.is_file() and path.stat().st_size != recorded.get("size")


def _written_bytes(recorded: Mapping[str, Any]) -> int:
    return sum(out.get("size", 0) for out in recorded.get("outs", ()))


def _known(forecast: Forecast, unknown: tuple[str, ...], known: str) -> str:
    """`known`, and for how many of the running stages it is not known."""
    if not unknown:
        return known
    if len(unknown) == len(forecast.running):
        return f"not known before the first run; `retrace plan {forecast.recipe}` estimates it"
    return (
        f"{known}, not known yet for {', '.join(unknown) if len(unknown) < 4 else f'{len(unknown)} stages'}"
    )


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB" if count < 10 else f"{count:.0f} GB"


def keep_as_measured(root: Path, machine: str) -> Path:
    """Makes the finished run of a project the measured one of its recipe, and returns the file that says so.

    UserError where params.yaml changes the recipe, or where the time of a stage of dvc.lock is not known.
    """
    recipe, stages = _recipe(root), _read(root / "dvc.lock").get("stages", {})
    if not recipe or (changes := changes_from_recipe(root)):
        raise UserError(
            f"params.yaml is no unchanged recipe ({', '.join(changes) or 'no name'}): run `make repro` of one"
        )
    seconds = _known_seconds(root, recipe)
    names = [stage.address for stage in graph_stages(root) if not writes_code(stage)]
    if missing := [name for name in names if name not in stages or name not in seconds]:
        raise UserError(f"no time is known for {', '.join(missing)}: let `make repro` run them here")
    measured = _read(root / MEASURED)
    measured[recipe] = {
        "machine": machine,
        "stages": {name: {"seconds": seconds[name], "bytes": _written_bytes(stages[name])} for name in names},
    }
    write_text_atomically(root / MEASURED, json.dumps(measured, indent=1, sort_keys=True) + "\n")
    return root / MEASURED


if __name__ == "__main__":
    run_stage(lambda: say(str(keep_as_measured(PROJECT, " ".join(sys.argv[1:]) or "an unnamed machine"))))
