"""Runs every stage of a parameter file in one process, in the order of the graph, without the time that DVC takes.

That process has exactly the packages which `make repro` installs for these parameters.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from pipelines.environment import groups_for
from stages.__main__ import main
from stages.foundations.machine import PROJECT
from stages.foundations.stage_graph import GraphStage, make_shared_folders, read_definitions, stages_of
from stages.observe.quick_imports import quick_imports
from tests.fakes.group_environment import link_environment

RAN = "stages_run.json"


def run_graph(folder: Path, params: Mapping[str, Any], but: Collection[str] = ()) -> list[str]:
    """Runs the stages in `folder` except `but`; writes params.yaml and dvc.yaml there. Returns their addresses."""
    return run_graphs({folder: (params, but)})[folder]


def run_graphs(graphs: Mapping[Path, tuple[Mapping[str, Any], Collection[str]]]) -> dict[Path, list[str]]:
    """As `run_graph` for several folders; those that need the same groups share a process.

    AssertionError with the output of the stages when one fails.
    """
    for folder, (params, _) in graphs.items():
        (folder / "params.yaml").write_text(yaml.safe_dump(dict(params), sort_keys=False))
        (folder / "dvc.yaml").write_bytes((PROJECT / "dvc.yaml").read_bytes())
    for groups, same in itertools.groupby(sorted(graphs, key=_groups), _groups):
        folders = list(same)
        orders = [json.dumps([str(folder), *graphs[folder][1]]) for folder in folders]
        done = subprocess.run(
            [link_environment(folders[0] / ".venv", groups), "-m", __name__, *orders],
            cwd=PROJECT,
            env={**os.environ, "RETRACE_TRACKING": "off"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"with the groups {', '.join(groups)}:\n{done.stdout}\n{done.stderr}"
    return {folder: json.loads((folder / RAN).read_text()) for folder in graphs}


def _groups(folder: Path) -> list[str]:
    return groups_for(["repro"], folder)


def _run_here(folder: Path, but: Collection[str]) -> None:
    params = yaml.safe_load((folder / "params.yaml").read_text())
    waiting = [
        stage for stage in stages_of(read_definitions(folder / "dvc.yaml"), params) if stage.name not in {"code", *but}
    ]
    done = []
    os.environ["RETRACE_STATE"] = str(folder / "state")
    with contextlib.chdir(folder):
        make_shared_folders(folder)
        while waiting:
            made = {path for stage in waiting for path in stage.outs}
            ready = [stage for stage in waiting if not _needs(stage, made)]
            assert ready, [stage.address for stage in waiting]
            for stage in ready:
                main([stage.address])
                done.append(stage.address)
            waiting = [stage for stage in waiting if stage not in ready]
    (folder / RAN).write_text(json.dumps(done))


def _needs(stage: GraphStage, unmade: set[str]) -> bool:
    """Returns True if an unfinished stage makes an input of `stage`, or a file in a folder that is an input."""
    others = unmade - set(stage.outs)
    return any(path == dep or path.startswith(f"{dep}/") for dep in stage.deps for path in others)


if __name__ == "__main__":
    from stages.observe.command import run_command

    with quick_imports():
        import stages.rl_round.loop.in_process
        import stages.sft.run  # noqa: F401

    def run() -> None:
        for order in sys.argv[1:]:
            folder, *but = json.loads(order)
            _run_here(Path(folder), but)

    run_command(run)
