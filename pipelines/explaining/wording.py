"""The chain as text and as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pipelines.explaining.chain import Chain, Step
from pipelines.explaining.spending import Spent
from pipelines.records.places import Entry
from stages.foundations.stage import declared_stage
from stages.observe.mlflow_store import flatten

SHORT = 10
"""Digits of a hash in the text; JSON has all."""
PARAMS_SHOWN = 8


def told_time(seconds: float) -> str:
    """`43.2 s`, `12 min 5 s` or `3 h 20 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def totals(chain: Chain, spent: Mapping[str, Spent]) -> dict[str, Any]:
    """Sums over the chain; GPU-hours are of the stages where they are on record."""
    seconds = [one.seconds for one in spent.values() if one.seconds is not None]
    hours = [one.gpu_hours for one in spent.values() if one.gpu_hours is not None]
    return {
        "stages": len(chain.steps),
        "seconds": sum(seconds),
        "gpu_hours": sum(hours),
        "stages_without_seconds": [name for name, one in spent.items() if one.seconds is None],
        "stages_without_gpu_hours": [name for name, one in spent.items() if one.gpu_hours is None],
    }


def as_text(chain: Chain, spent: Mapping[str, Spent], is_all: bool) -> str:
    """The target first, then what it depends on, down to the raw bytes."""
    total = totals(chain, spent)
    lines = [f"{chain.told}: {', '.join(chain.targets)} ({chain.place.told})"]
    lines += [f"  {line}" for line in _told_scores(chain)]
    lines += [f"WARNING: {chain.changed}"] if chain.changed else []
    lines.append(
        f"{total['stages']} stages, {told_time(total['seconds'])}, {total['gpu_hours']:.3g} GPU-hours"
        + _told_gaps(total)
    )
    for step in reversed(chain.steps):
        lines += ["", *_told_step(step, spent[step.entry.name], is_all)]
    return "\n".join(lines)


def _told_gaps(total: Mapping[str, Any]) -> str:
    gaps = []
    if total["stages_without_seconds"]:
        gaps.append(f"no time on record for {', '.join(total['stages_without_seconds'])}")
    without = [
        name for name in total["stages_without_gpu_hours"] if name not in total["stages_without_seconds"]
    ]
    if without:
        gaps.append(f"no GPUs on record for {', '.join(without)}")
    return f" ({'; '.join(gaps)})" if gaps else ""


def _told_scores(chain: Chain) -> list[str]:
    """Scores with their intervals; other metrics are left to JSON."""
    scores = chain.scores
    return [
        f"{name} {value:.4f} [{scores[f'{name}_low']:.4f}, {scores[f'{name}_high']:.4f}]"
        for name, value in scores.items()
        if f"{name}_low" in scores and f"{name}_high" in scores
    ]


def _told_step(step: Step, own: Spent, is_all: bool) -> list[str]:
    entry = step.entry
    lines = [entry.name]
    lines += [f"  made    {path}  {digest[:SHORT]}" for path, digest in entry.outs.items()]
    for one in step.inputs:
        origin = ", ".join(one.makers) or "no stage makes it: raw"
        stale = "  STALE: its maker has made something else since, run `dvc repro`" if one.is_stale else ""
        lines.append(f"  from    {one.path}  {one.digest[:SHORT]}  ({origin}){stale}")
    for raw in step.raw:
        lines.append("  raw     " + ", ".join(f"{key} {value}" for key, value in raw.items()))
    params = [f"{name}={_on_one_line(value)}" for name, value in flatten(_own_first(entry))]
    shown = params if is_all else [text[:100] for text in params[:PARAMS_SHOWN]]
    lines += [f"  params  {text}" for text in shown]
    if len(params) > len(shown):
        lines.append(f"          and {len(params) - len(shown)} more: --params shows all")
    if entry.code:
        reached = f", {step.definitions} definitions" if step.definitions is not None else ""
        lines.append(f"  code    {entry.code[:SHORT]}{reached}{_told_commit(own)}")
    lines.append(f"  run     {_told_run(own)}")
    return lines


def _on_one_line(value: str) -> str:
    """Line ends and other control characters as Python writes them."""
    return re.sub(r"[\x00-\x1f\x7f]", lambda found: repr(found[0])[1:-1], value)


def _own_first(entry: Entry) -> dict[str, Any]:
    """Seed first, then the stage's own sections, which it declares last. What it shares with others says less of it."""
    stage = declared_stage(entry.stage)
    order = ["seed", *reversed([name for name in (stage.sections if stage else ()) if name != "seed"])]
    places = {name: place for place, name in enumerate(order)}
    return dict(
        sorted(entry.params.items(), key=lambda item: places.get(item[0].partition(".")[0], len(order)))
    )


def _told_commit(own: Spent) -> str:
    if not own.commit:
        return "; no commit on record"
    return f"; commit {own.commit[:12]}" + (" with uncommitted changes" if own.is_dirty else "")


def _told_run(own: Spent) -> str:
    parts = [f"MLflow {own.run_id}" if own.run_id else "not in MLflow (`retrace mirror` makes one)"]
    if own.is_mirrored:
        parts.append("mirrored, its execution is not on record")
    parts.append(told_time(own.seconds) if own.seconds is not None else "no time on record")
    if own.gpus:
        parts.append(f"{own.gpus} GPU{'s' if own.gpus > 1 else ''}, {own.gpu_hours or 0:.3g} GPU-hours")
    return ", ".join(parts)


def as_json(chain: Chain, spent: Mapping[str, Spent]) -> dict[str, Any]:
    """Everything, hashes in full, each stage after what it depends on."""
    return {
        "target": chain.told,
        "place": chain.place.told,
        "targets": list(chain.targets),
        "scores": dict(chain.scores),
        "changed": chain.changed,
        "totals": totals(chain, spent),
        "stages": [_step_as_json(step, spent[step.entry.name]) for step in chain.steps],
    }


def _step_as_json(step: Step, own: Spent) -> dict[str, Any]:
    entry = step.entry
    inputs = [
        {"path": one.path, "md5": one.digest, "made_by": list(one.makers), "stale": one.is_stale}
        for one in step.inputs
    ]
    return {
        "stage": entry.name,
        "lock_hash": entry.key,
        "command": entry.command,
        "inputs": inputs,
        "outputs": [
            {"path": path, "md5": digest, "bytes": entry.sizes[path]} for path, digest in entry.outs.items()
        ],
        "raw": [dict(one) for one in step.raw],
        "params": entry.params,
        "code_md5": entry.code,
        "code_definitions": step.definitions,
        "commit": own.commit,
        "dirty": own.is_dirty,
        "mlflow_run": own.run_id,
        "mirrored": own.is_mirrored,
        "seconds": own.seconds,
        "gpus": own.gpus,
        "gpu_hours": own.gpu_hours,
    }
