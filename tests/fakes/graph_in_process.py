"""Every stage of a parameter file in this process, in the order of the graph, without DVC and its seconds."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.foundations.scratch import PROJECT
from stages.foundations.stage_graph import GraphStage, make_shared_folders, read_definitions, stages_of


def run_graph(folder: Path, params: Mapping[str, Any], but: Collection[str] = ()) -> list[str]:
    """Runs the stages in `folder`, which gets params.yaml and dvc.yaml, less those named; returns their addresses."""
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
                module, arguments = command_of(definitions[stage.name], stage, params)
                import_module(f"{module}.__main__").main(arguments)
                done.append(stage.address)
            waiting = [stage for stage in waiting if stage not in ready]
    return done


def command_of(
    definition: Mapping[str, Any], stage: GraphStage, params: Mapping[str, Any]
) -> tuple[str, list[str]]:
    """The stage's module and its arguments, as DVC would fill them."""
    items = params.get(definition.get("foreach", "").strip("${}"), {})
    item = items[stage.item] if isinstance(items, Mapping) and stage.item else stage.item

    def filled(found: re.Match[str]) -> str:
        value: Any = {"key": stage.item, "item": item}[found[1]]
        for name in filter(None, found[2].split(".")):
            value = value[name]
        return str(value)

    text = re.sub(r"\$\{(key|item)((?:\.\w+)*)\}", filled, definition.get("do", definition)["cmd"])
    _, _, module, *arguments = shlex.split(text.replace("-m pipelines.launching ", ""))
    return module, arguments


def _needs(stage: GraphStage, unmade: set[str]) -> bool:
    """Whether a stage that waits makes something that `stage` depends on, or something in a folder that it does."""
    others = unmade - set(stage.outs)
    return any(path == dep or path.startswith(f"{dep}/") for dep in stage.deps for path in others)
