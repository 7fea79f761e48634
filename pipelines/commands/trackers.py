"""Mirrors the kept tracking logs to other tools for curves: TensorBoard and Weights & Biases.

MLflow stays the source: both are written from `state/runs/`, any number of times, and existing runs are not changed.
The packages are optional: `pip install 'retrace[tensorboard]'`, or `'retrace[wandb]'`.
"""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.foundations.errors import UserError
from stages.foundations.files import replace_folder, write_text_atomically


@dataclass(frozen=True)
class TrackedRun:
    """One kept log, read."""

    id: str
    """Start in ms and the first digits of the stage's hash."""
    name: str
    tags: Mapping[str, str]
    params: Mapping[str, Any]
    """By dotted name."""
    points: Mapping[int, Mapping[str, tuple[float, int]]]
    """Step -> metric -> value and time (ms since 1970). Of two attempts, the later value counts. Step 0 is the summary.
    """
    is_finished: bool


def tracked_runs(state: Path, problems: list[str]) -> Iterator[TrackedRun]:
    """Yields the kept logs, oldest first; an unreadable log becomes a sentence in `problems`."""
    from stages.observe.mlflow_store import flatten
    from stages.observe.mlflow_uploader import kept_logs, read_log

    for place in kept_logs(state):
        try:
            messages = read_log(place)
            starts = [message for message in messages if message["kind"] == "start"]
            tags = {**starts[-1]["tags"], **next(m["tags"] for m in messages if m["kind"] == "tags")}
            points: dict[int, dict[str, tuple[float, int]]] = {}
            for message in messages:
                if message["kind"] == "values":
                    known = points.setdefault(message["step"], {})
                    known |= {name: (value, message["ms"]) for name, value in message["values"].items()}
            ends = [message["status"] for message in messages if message["kind"] == "end"]
            yield TrackedRun(
                id=place.name.removesuffix(".jsonl.gz"),
                name=tags.get("mlflow.runName", starts[-1]["name"]),
                tags=tags,
                params=dict(flatten(starts[-1]["params"])),
                points=dict(sorted(points.items())),
                is_finished=ends[-1:] == ["FINISHED"],
            )
        except (OSError, EOFError, ValueError, LookupError, StopIteration, zlib.error) as error:
            problems.append(f"{place} is no kept log ({error!r}): it is left out")


def to_tensorboard(state: Path, folder: Path) -> tuple[int, list[str]]:
    """Writes a folder of events for each run that has none in `folder`; returns their number, and problems."""
    _require("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    problems: list[str] = []
    made = 0
    for run in tracked_runs(state, problems):
        place = folder / f"{run.id} {run.name}".replace("/", "_")
        # Written once and atomically (`replace_folder`), so an existing folder is complete.
        if place.is_dir():
            continue
        with replace_folder(place) as beside:
            writer = SummaryWriter(str(beside))
            lines = [f"    {name}: {value}" for name, value in run.params.items()]
            writer.add_text("params", "\n".join(lines) or "none")
            for step, values in run.points.items():
                for name, (value, ms) in values.items():
                    writer.add_scalar(name, value, step, walltime=ms / 1000)
            writer.close()
        made += 1
    return made, problems


def to_wandb(state: Path, project: str) -> tuple[int, list[str]]:
    """Sends each run that was not sent to this project before; returns their number, and problems.

    `state/wandb.txt` lists the runs that arrived. WANDB_MODE=offline writes them to disk, for `wandb sync`. UserError
    when W&B cannot be reached or does not know the user; the runs before that one have arrived.
    """
    _require("wandb")
    import wandb

    record = state / "wandb.txt"
    sent = record.read_text(encoding="utf-8").splitlines() if record.is_file() else []
    problems: list[str] = []
    made = 0
    for run in tracked_runs(state, problems):
        if f"{project} {run.id}" in sent:
            continue
        try:
            target = wandb.init(
                project=project,
                id=run.id,
                name=run.name,
                config=dict(run.params),
                tags=[run.tags["stage"], f"seed {run.tags.get('seed', '?')}"],
                dir=str(state),
                # This process is not part of the run, which ended earlier, perhaps on another machine.
                settings=wandb.Settings(
                    silent=True,
                    console="off",
                    init_timeout=30,
                    disable_code=True,
                    disable_git=True,
                    x_disable_stats=True,
                ),
            )
            for step, values in run.points.items():
                if step:  # W&B takes steps only in order, and the summary has none
                    target.log({name: value for name, (value, _) in values.items()}, step=step)
            target.summary.update({name: value for name, (value, _) in run.points.get(0, {}).items()})
            target.finish(exit_code=0 if run.is_finished else 1)
        except (wandb.errors.Error, OSError) as error:
            raise UserError(
                f"run {run.name} was not sent to W&B ({error}): run `wandb login`, look at the network, or set "
                f"WANDB_MODE=offline; {made} runs arrived before it"
            ) from error
        made += 1
        sent.append(f"{project} {run.id}")
        write_text_atomically(record, "\n".join(sent) + "\n")
    return made, problems


def _require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{package} is not installed: run `.venv/bin/python -m pip install {package}`")
