"""`retrace explain`: the chain behind a score (pipelines/records/chain.py) as text, JSON and an SVG picture.

In the picture raw bytes are at the top, the target is at the bottom, and each stage is a box.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from markupsafe import escape

from pipelines.graph.result import seconds_in_words
from pipelines.output import shortened, write_named_file
from pipelines.records.chain import Chain, ChainStep, StageCost, find_chain, stage_costs
from stages.foundations.dvc_lock import LockedStage
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT, state_folder
from stages.foundations.stage import declared_stage


def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="POLICY_OR_FILE",
            help="a policy (its score), a stage (rl_round@rl_1), or a file below data/ or reports/; REV:... for "
            "that of a git revision or DVC experiment",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, with full hashes and parameters")] = False,
    picture: Annotated[Path | None, typer.Option(help="also draw the chain into this .svg file")] = None,
    params: Annotated[bool, typer.Option("--params", help="show every parameter of every stage")] = False,
) -> None:
    """Show the chain behind a score, table or file down to the raw bytes.

    For every stage: hashes, parameters, code fingerprint, git commit, MLflow run, time and GPU-hours. Exit code 2 is a
    mistake of the caller.
    """
    if picture is not None and picture.suffix != ".svg":
        raise UserError(f"--picture {picture}: the picture is an SVG file, give a name that ends in .svg")
    chain = find_chain(what, PROJECT)
    spent = stage_costs(chain, state_folder())
    if picture is not None:
        write_named_file(picture, draw(chain, spent), "--picture")
        typer.echo(f"picture: {picture}", err=True)
    typer.echo(json.dumps(content_of(chain, spent), indent=2) if as_json else as_text(chain, spent, params))


SHORT = 10
"""Digits of a hash in the text; JSON has all digits."""
PARAMS_SHOWN = 8


def format_time(seconds: float) -> str:
    """Returns `43.2 s`, `12 min 5 s` or `3 h 20 min`."""
    return f"{seconds:.1f} s" if seconds < 60 else seconds_in_words(seconds)


def totals(chain: Chain, spent: Mapping[str, StageCost]) -> dict[str, Any]:
    """Returns sums over the chain; GPU-hours of the stages for which they are recorded."""
    seconds = [one.seconds for one in spent.values() if one.seconds is not None]
    hours = [one.gpu_hours for one in spent.values() if one.gpu_hours is not None]
    return {
        "stages": len(chain.steps),
        "seconds": sum(seconds),
        "gpu_hours": sum(hours),
        "stages_without_seconds": [name for name, one in spent.items() if one.seconds is None],
        "stages_without_gpu_hours": [name for name, one in spent.items() if one.gpu_hours is None],
    }


def as_text(chain: Chain, spent: Mapping[str, StageCost], is_all: bool) -> str:
    """Returns the target first, then its dependencies, down to the raw bytes."""
    total = totals(chain, spent)
    lines = [f"{chain.argument}: {', '.join(chain.targets)} ({chain.snapshot.label})"]
    lines += [f"  {line}" for line in _describe_scores(chain)]
    lines += [f"WARNING: {chain.changed}"] if chain.changed else []
    lines.append(_describe_totals(total) + _describe_gaps(total))
    for step in reversed(chain.steps):
        lines += ["", *_describe_step(step, spent[step.entry.name], is_all)]
    return "\n".join(lines)


def _describe_totals(total: Mapping[str, Any]) -> str:
    if len(total["stages_without_seconds"]) == total["stages"]:
        return f"{total['stages']} stages"
    return f"{total['stages']} stages, {format_time(total['seconds'])}, {total['gpu_hours']:.3g} GPU-hours"


def _describe_gaps(total: Mapping[str, Any]) -> str:
    gaps = []
    if total["stages_without_seconds"]:
        gaps.append(f"no time on record for {', '.join(total['stages_without_seconds'])}")
    # A stage without a time has no record at all, so it is named only once.
    without = [name for name in total["stages_without_gpu_hours"] if name not in total["stages_without_seconds"]]
    if without:
        gaps.append(f"no GPUs on record for {', '.join(without)}")
    return f" ({'; '.join(gaps)})" if gaps else ""


def _describe_scores(chain: Chain) -> list[str]:
    """Returns scores with their intervals; other metrics are only in the JSON output."""
    scores = chain.scores
    return [
        f"{name} {value:.4f} [{scores[f'{name}_low']:.4f}, {scores[f'{name}_high']:.4f}]"
        for name, value in scores.items()
        if f"{name}_low" in scores and f"{name}_high" in scores
    ]


def _describe_step(step: ChainStep, cost: StageCost, is_all: bool) -> list[str]:
    from stages.observe.mlflow_store import flatten

    entry = step.entry
    lines = [entry.name]
    lines += [f"  made    {path}  {digest[:SHORT]}" for path, digest in entry.outs.items()]
    for one in step.inputs:
        origin = ", ".join(one.makers) or "no stage makes it: raw"
        stale = "  STALE: the stage has written another version since; run `dvc repro`" if one.is_stale else ""
        lines.append(f"  from    {one.path}  {one.digest[:SHORT]}  ({origin}){stale}")
    for raw in step.raw:
        lines.append("  raw     " + ", ".join(f"{key} {value}" for key, value in raw.items()))
    params = [f"{name}={_on_one_line(value)}" for name, value in flatten(_own_first(entry))]
    # A parameter may be a long list, which would fill the screen.
    shown = params if is_all else [shortened(text, 100) for text in params[:PARAMS_SHOWN]]
    lines += [f"  params  {text}" for text in shown]
    if len(params) > len(shown):
        lines.append(f"          and {len(params) - len(shown)} more: --params shows all")
    if entry.code:
        reached = f", {step.definitions} definitions" if step.definitions is not None else ""
        lines.append(f"  code    {entry.code[:SHORT]}{reached}{_describe_commit(cost)}")
    lines.append(f"  run     {_describe_run(cost)}")
    return lines


def _on_one_line(value: str) -> str:
    """Escapes line ends and other control characters as in Python."""
    # A text of a recipe may contain escape sequences, and the output goes to a terminal.
    return re.sub(r"[\x00-\x1f\x7f]", lambda found: repr(found[0])[1:-1], value)


def _own_first(entry: LockedStage) -> dict[str, Any]:
    """Orders the seed first, then the stage's own sections, which it declares last, then shared sections."""
    stage = declared_stage(entry.stage)
    order = ["seed", *reversed([name for name in (stage.sections if stage else ()) if name != "seed"])]
    places = {name: place for place, name in enumerate(order)}
    return dict(sorted(entry.params.items(), key=lambda item: places.get(item[0].partition(".")[0], len(order))))


def _describe_commit(cost: StageCost) -> str:
    if not cost.commit:
        return "; no commit on record"
    return f"; commit {cost.commit[:12]}" + (" with uncommitted changes" if cost.is_dirty else "")


def _describe_run(cost: StageCost) -> str:
    parts = [f"MLflow {cost.run_id}" if cost.run_id else "no run in MLflow"]
    parts.append(format_time(cost.seconds) if cost.seconds is not None else "no time on record")
    if cost.gpus:
        parts.append(f"{cost.gpus} GPU{'s' if cost.gpus > 1 else ''}, {cost.gpu_hours or 0:.3g} GPU-hours")
    return ", ".join(parts)


def content_of(chain: Chain, spent: Mapping[str, StageCost]) -> dict[str, Any]:
    """Returns all data with full hashes; each stage comes after its dependencies."""
    return {
        "target": chain.argument,
        "place": chain.snapshot.label,
        "targets": list(chain.targets),
        "scores": dict(chain.scores),
        "changed": chain.changed,
        "totals": totals(chain, spent),
        "stages": [_step_as_json(step, spent[step.entry.name]) for step in chain.steps],
    }


def _step_as_json(step: ChainStep, cost: StageCost) -> dict[str, Any]:
    entry = step.entry
    inputs = [
        {"path": one.path, "md5": one.digest, "made_by": list(one.makers), "stale": one.is_stale} for one in step.inputs
    ]
    return {
        "stage": entry.name,
        "lock_hash": entry.key,
        "command": entry.command,
        "inputs": inputs,
        "outputs": [{"path": path, "md5": digest, "bytes": entry.sizes[path]} for path, digest in entry.outs.items()],
        "raw": [dict(one) for one in step.raw],
        "params": entry.params,
        "code_md5": entry.code,
        "code_definitions": step.definitions,
        "commit": cost.commit,
        "dirty": cost.is_dirty,
        "mlflow_run": cost.run_id,
        "seconds": cost.seconds,
        "gpus": cost.gpus,
        "gpu_hours": cost.gpu_hours,
    }


WIDTH, HEIGHT, GAP, ROW_GAP = 250, 82, 26, 44
"""Sizes of boxes and the gaps between them, in pixels."""
CHARACTERS = 36
"""Characters of a line in a box."""
STYLE = """
.name { font-size: 14px; font-weight: 650; } .quiet { fill: var(--muted); }
g rect { fill: var(--card); stroke: var(--rest); } .raw rect { stroke: var(--good); }
.target rect { stroke: var(--accent); stroke-width: 2; }
path { fill: none; stroke: var(--rest); stroke-width: 1.3; } .stale { stroke: var(--bad); stroke-dasharray: 5 4; }
"""


def draw(chain: Chain, spent: Mapping[str, StageCost]) -> str:
    """Returns the picture; equal arguments give equal text. All text is escaped."""
    from stages.pages.drawing import picture_file

    rows = _rows(chain)
    columns = max(map(len, rows))
    width, height = columns * (WIDTH + GAP) - GAP, len(rows) * (HEIGHT + ROW_GAP) - ROW_GAP
    corners = {
        name: ((columns - len(row)) * (WIDTH + GAP) / 2 + column * (WIDTH + GAP), number * (HEIGHT + ROW_GAP))
        for number, row in enumerate(rows)
        for column, name in enumerate(row)
    }
    # All lines first, so that boxes cover the lines that pass behind them.
    parts = [line for step in chain.steps for line in _edges(step, corners)]
    for step in chain.steps:
        kind = "target" if step.entry.name in chain.targets else "raw" if step.raw else ""
        parts += _box(step, spent[step.entry.name], kind, *corners[step.entry.name])
    body = "\n".join(
        [f'<svg viewBox="0 0 {width} {height}" overflow="visible"><style>{STYLE}</style>', *parts, "</svg>"]
    )
    about = f"{_describe_totals(totals(chain, spent))}; {chain.snapshot.label}"
    return picture_file(f"{chain.argument}: from raw bytes", about, [("", body)])


def _rows(chain: Chain) -> list[list[str]]:
    """Returns the stages of each depth, each near the middle of its dependencies.

    Stages without inputs are directly above the first stage that needs them, so that lines stay short.
    """
    depths = chain.depth()
    makers = {step.entry.name: [maker for one in step.inputs for maker in one.makers] for step in chain.steps}
    above = {
        name: min((depths[user] - 1 for user in makers if name in makers[user]), default=depth)
        for name, depth in depths.items()
    }
    columns: dict[str, int] = {}

    def middle(name: str) -> float:
        placed = [columns[maker] for maker in makers[name] if maker in columns]
        # Right of all others.
        return sum(placed) / len(placed) if placed else math.inf

    rows = []
    for depth in sorted(set(above.values())):
        rows.append(sorted((name for name in makers if above[name] == depth), key=middle))
        columns.update({name: column for column, name in enumerate(rows[-1])})
    return rows


def _edges(step: ChainStep, corners: Mapping[str, tuple[float, float]]) -> list[str]:
    x, y = corners[step.entry.name]
    lines = []
    for one in step.inputs:
        for maker in one.makers:
            left, top = corners[maker]
            x1, y1, x2, y2 = left + WIDTH / 2, top + HEIGHT, x + WIDTH / 2, y
            bend = (y2 - y1) / 2
            way = f"M{x1:.0f},{y1:.0f} C{x1:.0f},{y1 + bend:.0f} {x2:.0f},{y2 - bend:.0f} {x2:.0f},{y2:.0f}"
            # Past other boxes, and in from the side.
            if y2 - y1 > ROW_GAP and abs(x2 - x1) > WIDTH / 2:
                side, middle = (x if x1 < x2 else x + WIDTH), y + HEIGHT / 2
                way = f"M{x1:.0f},{y1:.0f} C{x1:.0f},{middle:.0f} {x1:.0f},{middle:.0f} {side:.0f},{middle:.0f}"
            kind = ' class="stale"' if one.is_stale else ""
            lines.append(f'<path{kind} d="{way}"><title>{escape(one.path)} {escape(one.digest)}</title></path>')
    return list(dict.fromkeys(lines))


def _box(step: ChainStep, cost: StageCost, kind: str, x: float, y: float) -> list[str]:
    from stages.pages.drawing import cut

    entry = step.entry
    # Of several outputs the first that is no record of another.
    beside = ("data/metrics/", "data/curves/", "data/dropped/", "data/headline/")
    path, digest = min(entry.outs.items(), key=lambda out: out[0].startswith(beside), default=("", ""))
    line = path.removeprefix("data/")
    if step.raw:
        first = step.raw[0]
        origin = next((first[key] for key in ("url", "path", "repository", "package") if first.get(key)), "")
        more = f" and {len(step.raw) - 1} more" if len(step.raw) > 1 else ""
        origin = origin or f"{first['kind']} with seed {first.get('seed', '?')}"
        line = f"raw: {str(origin).rsplit('/', 1)[-1]}{more}"
    code = f"code {entry.code[:8]}" if entry.code else ""
    commit = f"commit {cost.commit[:8]}" + ("+" if cost.is_dirty else "") if cost.commit else ""
    time = format_time(cost.seconds) if cost.seconds is not None else "no time on record"
    hours = f", {cost.gpu_hours:.3g} GPU-h" if cost.gpu_hours else ""
    lines = [line, f"md5 {digest[:8]}  {code}", "  ".join(filter(None, [commit, time + hours]))]
    texts = [("name", 21, cut(entry.name, 30))]
    texts += [("quiet", 39 + 16 * number, cut(line, CHARACTERS)) for number, line in enumerate(lines)]
    return [
        f'<g class="{kind}"><title>{escape(entry.command)}</title>',
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="9"/>',
        *(
            f'<text class="{one}" x="{x + 12:.0f}" y="{y + down:.0f}">{escape(text)}</text>'
            for one, down, text in texts
        ),
        "</g>",
    ]
