"""dvc.yaml and the declarations of the stages: `retrace graph` makes the first say what the second do.

An entry that says what its stage declares stays as it is written, with its comments. So does one that no package
declares.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_origin

import yaml

from stages.foundations.files import write_text_atomically
from stages.foundations.fingerprints import stage_names
from stages.foundations.stage import CURVES, HEADLINE, METRICS, Stage, about, declared_stage
from stages.foundations.yaml_text import load_yaml

COLUMNS = 120
RANKS = ["launch.nodes", "launch.gpus_per_node", "launch.command.kind"]
BLOCK = re.compile(r"^(?=  \w+:$)", re.MULTILINE)
"""Where the entry of a stage begins."""


def updated_graph(root: Path) -> tuple[str, list[str]]:
    """The text that dvc.yaml in `root` should have, and the stages whose entries differ from what they declare."""
    head, *blocks = BLOCK.split((root / "dvc.yaml").read_text(encoding="utf-8"))
    entries = {next(iter(load_yaml(block))): block for block in blocks}
    wanted = {
        name: entry_of(name, stage)
        for name in ["code", *stage_names(root)]
        if (stage := declared_stage(name))
    }
    changed = [name for name in wanted if load_yaml(entries.get(name, "{}")).get(name) != wanted[name]]
    entries |= {name: _block(name, wanted[name]) for name in changed}
    return "\n".join([head.rstrip(), *(block.rstrip() + "\n" for block in entries.values())]), changed


def write_graph(root: Path) -> list[str]:
    """Writes dvc.yaml where an entry differs; returns the names of those stages."""
    text, changed = updated_graph(root)
    if changed:
        write_text_atomically(root / "dvc.yaml", text)
    return changed


def entry_of(name: str, stage: Stage) -> dict[str, Any]:
    """What dvc.yaml says of a stage."""
    outputs, of_item = dict(stage.outputs), "${item}" if get_origin(stage.items) is list else "${key}"
    metrics, headline, curves = (outputs.pop(one, None) for one in (METRICS, HEADLINE, CURVES))
    column, title = about(name).plot
    plots = [{metrics: {"cache": False}}] if metrics else []
    plots += [{curves: {"cache": False, "x": "step", "y": column, "title": title}}] if curves else []
    code = [] if name == "code" else [f"data/code/{name}.json"]
    program = "pipelines.launching" if stage.is_launched else "stages"
    body = {
        "desc": about(name).description,
        "cmd": f"python -m {program} {name}" + (f"@{of_item}" if stage.foreach else ""),
        "deps": list(dict.fromkeys([*code, *stage.inputs.values(), *stage.also_depends_on])),
        "params": [f"{one}.${{key}}" if one == stage.foreach else one for one in stage.sections]
        + (RANKS if stage.depends_on_ranks else []),
        "outs": list(outputs.values()),
        "plots": plots,
        "metrics": [{headline: {"cache": False}}] if headline else [],
    }
    body = {key: value for key, value in body.items() if value}
    return {"foreach": f"${{{stage.foreach}}}", "do": body} if stage.foreach else body


def _block(name: str, entry: dict[str, Any]) -> str:
    """The entry as text: lists on one line where they fit."""
    lines, indent, body = [f"  {name}:"], " " * 4, entry
    if "do" in entry:
        lines += [f"    foreach: {entry['foreach']}", "    do:"]
        indent, body = " " * 6, entry["do"]
    for key, value in body.items():
        line = f"{indent}{key}: {_flow(value)}"
        if isinstance(value, str) or (len(line) <= COLUMNS and key not in ("plots", "metrics")):
            lines.append(line)
        else:
            shown = (_flow(one)[1:-1] if isinstance(one, dict) else _flow(one) for one in value)
            lines += [f"{indent}{key}:", *(f"{indent}  - {one}" for one in shown)]
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    """YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), sort_keys=False)
    return text.removesuffix("...\n").strip()
