"""Compares the stages' declarations with the two files that users write: params.yaml is checked, dvc.yaml updated.

`check_values` checks a whole parameter file with the models of its sections, and that the graph has no gap. Each stage
checks its section when it runs; this finds a mistake before the first stage starts.

`retrace graph` writes dvc.yaml (`write_graph`). An entry that matches its stage's declaration stays as it is written,
with its comments. So does an entry that no package declares.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, get_origin

from pipelines.launching.launchers import LaunchParams
from stages.foundations.errors import UserError
from stages.foundations.files import dump_yaml, load_yaml, write_text_atomically
from stages.foundations.fingerprints import stage_names
from stages.foundations.machine import PROJECT
from stages.foundations.params import read_yaml, validate_section
from stages.foundations.stage import CURVES, HEADLINE, METRICS, Stage, about, declared_stage
from stages.foundations.stage_graph import (
    Definitions,
    GraphStage,
    foreach_sections,
    interpolated_sections,
    left_out,
    optional_sections,
    read_definitions,
    require_comparable,
    shared_folders,
    stages_of,
)


def section_models(root: Path = PROJECT) -> dict[str, Any]:
    """Top-level section -> its model. If two stages read a section, the one that runs over it is more specific."""
    stages = [stage for name in read_definitions(root / "dvc.yaml") if (stage := declared_stage(name))]
    models: dict[str, Any] = {"seed": int, "launch": LaunchParams}
    for stage in stages:
        models |= stage.sections
    for stage in stages:
        # A section of `foreach` is a mapping of items, and its stage knows the model of an item.
        if stage.items is not None or stage.foreach in stage.sections:
            models[stage.foreach] = stage.sections.get(stage.foreach, stage.items)
    return models


def check_params(path: Path, root: Path = PROJECT) -> dict[str, Any]:
    """`check_values` for a file."""
    return check_values(read_yaml(path), str(path), root)


def check_values(given: Mapping[str, Any], label: str, root: Path = PROJECT) -> dict[str, Any]:
    """Returns the validated sections of a whole parameter file, for the dvc.yaml in `root`, without empty `foreach`
    ones.

    UserError names every section that is missing, unknown, unread or wrong, and every input that no stage makes.
    Messages call the file `label`.
    """
    models, definitions = section_models(root), read_definitions(root / "dvc.yaml")
    try:
        stages, loops = stages_of(definitions, given), foreach_sections(definitions)
        require_comparable(given)
    except UserError as error:
        # A name with a forbidden form leaves no graph to check.
        raise UserError(f"{label} is not usable:\n  {error}") from None
    optional = optional_sections(root / "dvc.yaml")
    problems = _wrong_sections(given, models, definitions, stages, optional)
    sections: dict[str, Any] = {}
    for name in models:
        if name in given and (given[name] or name not in loops):
            try:
                sections[name] = validate_section(given[name], name, models[name], Path(label))
            except UserError as error:
                problems += [_with_spelling(line, given) for line in str(error).splitlines()[1:]]
    if not problems:
        # Only now: a missing section would show up here again, as every input that its stages make.
        problems = [f"  {line}" for line in _gaps(definitions, stages, given)]
    if not problems:
        problems = [f"  {line}" for line in _contradictions(sections, stages)]
    if problems:
        raise UserError(f"{label} is not usable:\n" + "\n".join(problems))
    return sections


def _with_spelling(line: str, given: Mapping[str, Any]) -> str:
    """Adds to a line about an unknown key the key beside it that is most like it.

    A recipe that extends another has the right key too, because it inherits that.
    """
    path, found, _ = line.strip().partition(": unknown key; ")
    *parents, wrong = path.split(".")
    beside: Any = given
    for part in parents:
        # Pydantic's path also has the `kind` of a section, which is no level of the file.
        beside = beside.get(part, beside) if isinstance(beside, Mapping) else ()
    near = difflib.get_close_matches(wrong, [str(key) for key in beside if key != wrong], 1) if found else []
    return f"{line}: did you mean {near[0]}?" if near else line


def _wrong_sections(
    given: Mapping[str, Any],
    models: Mapping[str, Any],
    definitions: Definitions,
    stages: list[GraphStage],
    optional: Sequence[str],
) -> list[str]:
    # Of several readers the first in the graph is named: it is the one that would fail.
    readers = {section: stage.address for stage in reversed(stages) for section in stage.reads}
    interpolated = interpolated_sections(definitions)
    wrong = [f"{name}: unknown section; remove it or correct its spelling" for name in given if name not in models]
    wrong += [
        f"{name}: missing section, which {reader} reads; the recipes under pipelines/recipes have one"
        for name, reader in readers.items()
        if name not in given
    ]
    wrong += [
        f"{name}: missing section; dvc.yaml interpolates it, and an empty one leaves its stages out"
        for name in interpolated
        if name not in given and name not in readers and name not in optional
    ]
    wrong += [
        f"{name}: no stage of this recipe reads it; remove it, or add the other sections that its stage needs"
        for name in given
        if name in models and name not in ("seed", *readers, *interpolated)
    ]
    return [f"  {line}" for line in wrong]


def _gaps(definitions: Definitions, stages: list[GraphStage], given: Mapping[str, Any]) -> list[str]:
    """Returns inputs that no stage of the recipe makes, for example of a left-out branch that another one needs."""
    shared, made = (shared_folders(definitions, given), {path: stage for stage in stages for path in stage.outs})
    absent = {
        path: name
        for name in left_out(definitions, given)
        for path in next(iter(stages_of({name: definitions[name]}, {**given, name: {}}))).outs
    }
    found = []
    for stage in stages:
        for path in stage.deps:
            whole = (path, *(str(parent) for parent in PurePosixPath(path).parents))
            is_made = any(one in made and made[one] is not stage for one in whole)
            if is_made or path in shared or not path.startswith("data/"):
                continue
            if path in absent:
                remedy = f"add section `{absent[path]}`, which makes it"
            else:
                folder, _, name = path.rpartition("/")
                there = [out.rpartition("/")[2] for out in made if out.rpartition("/")[0] == folder]
                others = [one for one in there if one != name]
                remedy = f"in {folder} there are {', '.join(others) or 'none'}"
            found.append(f"{stage.address} needs {path}, which no other stage of this recipe makes: {remedy}")
    return found


def _contradictions(sections: Mapping[str, Any], stages: list[GraphStage]) -> list[str]:
    names = dict.fromkeys(stage.name for stage in stages)
    # Several stages sample with one section `prompt`, and say the same of it.
    found = list(dict.fromkeys(line for name in names for line in about(name).contradictions(sections)))
    trainer, ranks = sections.get("trainer"), sections["launch"].ranks if "launch" in sections else 1
    width = getattr(sections.get("sampler"), "tensor_parallel", 1)
    if ranks > 1 and ranks % width:
        found.append(
            f"launch starts {ranks} ranks, and sampler.tensor_parallel {width} does not divide them: each engine is "
            "spread over so many neighbouring ranks"
        )
    if trainer is not None and trainer.kind == "torch" and ranks > 1:
        found.append(
            f"launch starts {ranks} ranks, but trainer.kind torch has one: set trainer.kind "
            "deepspeed, or launch.command.kind python"
        )
    return found


COLUMNS = 120
RANKS = ["launch.nodes", "launch.gpus_per_node", "launch.command.kind"]
BLOCK = re.compile(r"^(?=  \w+:$)", re.MULTILINE)
"""The line where the entry of a stage begins."""


def updated_graph(root: Path) -> tuple[str, list[str]]:
    """The text that dvc.yaml in `root` should have, and the stages whose entries differ from their declarations."""
    head, *blocks = BLOCK.split((root / "dvc.yaml").read_text(encoding="utf-8"))
    entries = {next(iter(load_yaml(block))): block for block in blocks}
    wanted = {name: entry_of(name, stage) for name in ["code", *stage_names(root)] if (stage := declared_stage(name))}
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
    """Returns dvc.yaml's entry of a stage."""
    outputs, of_item = dict(stage.outputs), "${item}" if get_origin(stage.items) is list else "${key}"
    metrics, headline, curves = (outputs.pop(one, None) for one in (METRICS, HEADLINE, CURVES))
    column, title = about(name).plot
    # Git keeps these files (`cache: false`). They must be plots or metrics, because DVC leaves a stage with any other
    # such output out of its run cache. `dvc metrics show` would print every number of them, so they are plots.
    plots = [{metrics: {"cache": False}}] if metrics else []
    plots += [{curves: {"cache": False, "x": "step", "y": column, "title": title}}] if curves else []
    # Stage `code` writes the fingerprints, so it cannot depend on one.
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
    text = dump_yaml(value, default_flow_style=True, width=float("inf"))
    return text.removesuffix("...\n").strip()
