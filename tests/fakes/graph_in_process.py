"""Runs every stage of a parameter file in this process, in the order of the graph, without the time that DVC takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.__main__ import main
from stages.foundations.machine import PROJECT
from stages.foundations.stage_graph import GraphStage, make_shared_folders, read_definitions, stages_of


def run_graph(folder: Path, params: Mapping[str, Any], but: Collection[str] = ()) -> list[str]:
    """Runs the stages in `folder` except `but`; writes params.yaml and dvc.yaml there. Returns their addresses."""
    (folder / "params.yaml").write_text(yaml.safe_dump(dict(params), sort_keys=False))
    (folder / "dvc.yaml").write_bytes((PROJECT / "dvc.yaml").read_bytes())
    definitions = read_definitions(PROJECT / "dvc.yaml")
    waiting = [stage for stage in stages_of(definitions, params) if stage.name not in {"code", *but}]
    done = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("RETRACE_STATE", str(folder / "state"))
        patch.setenv("RETRACE_TRACKING", "off")
        make_shared_folders(folder)
        while waiting:
            made = {path for stage in waiting for path in stage.outs}
            ready = [stage for stage in waiting if not _needs(stage, made)]
            assert ready, [stage.address for stage in waiting]
            for stage in ready:
                main([stage.address])
                done.append(stage.address)
            waiting = [stage for stage in waiting if stage not in ready]
    return done


def _needs(stage: GraphStage, unmade: set[str]) -> bool:
    """Returns True if an unfinished stage makes an input of `stage`, or a file in a folder that is an input."""
    others = unmade - set(stage.outs)
    return any(path == dep or path.startswith(f"{dep}/") for dep in stage.deps for path in others)
