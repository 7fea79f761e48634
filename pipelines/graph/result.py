"""The results of a finished run, and the lines that `make repro` prints at its end.

The results are the scores that the last stage wrote, and the parameters that differ from the recipe.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.graph.recipes import read_recipe
from stages.foundations.errors import UserError
from stages.foundations.files import load_yaml
from stages.foundations.params import read_yaml
from stages.foundations.stage_graph import read_definitions, stages_of
from stages.observe.tracking import recipe_name

RESULTS = ("reports/result.json", "reports/pictures.json")
"""Files that the stages with pages write next to them; stages/report/run.py describes their content."""
_ABSENT = object()


def read_result(root: Path) -> dict[str, Any] | None:
    """Returns scores, gains and warnings of the recipe in use; `page` is a path from `root`; None without a report.

    If a recipe has both reports, the lists are joined. Raises UserError if a file is not a result.
    """
    stages = stages_of(read_definitions(root / "dvc.yaml"), read_yaml(root / "params.yaml"))
    outs = [out for stage in stages for out in stage.outs]
    return result_of(lambda path: (root / path).read_bytes() if (root / path).is_file() else None, outs)


def result_of(read: Callable[[str], bytes | None], outs: Collection[str]) -> dict[str, Any] | None:
    """Returns the same as `read_result`, for files elsewhere: `read` returns the bytes at a path, or None.

    A result that is not in `outs`, the outputs of a recipe, is from a run of another recipe and is ignored.
    """
    texts = {path: text for path in RESULTS if path in outs and (text := read(path)) is not None}
    found = [_parsed(path, text) for path, text in texts.items()]
    if not found:
        return None
    lists = {key: [row for one in found for row in one[key]] for key in ("scores", "gains", "warnings")}
    return {"title": found[0]["title"], "page": f"reports/{found[0]['page']}", **lists}


def changes_from_recipe(root: Path) -> dict[str, str]:
    """Returns the changes of `params.yaml` to the recipe it was made from: `{"rl.group_size": "16 -> 8"}`.

    Empty if nothing was changed or no recipe is known.
    """
    name = recipe_name(root).removesuffix("+changes")
    try:
        recipe = dict(_leaves(read_recipe(root, name))) if name else {}
    except UserError:
        # The recipe was deleted or is broken: there is nothing to compare with.
        return {}
    params = dict(_leaves(load_yaml((root / "params.yaml").read_bytes()) or {})) if recipe else {}
    differing = {
        key: (recipe.get(key, _ABSENT), params.get(key, _ABSENT))
        for key in sorted({*recipe, *params})
        if recipe.get(key, _ABSENT) != params.get(key, _ABSENT)
    }
    return {key: f"{_shown(before)} -> {_shown(after)}" for key, (before, after) in differing.items()}


def summarize(
    result: Mapping[str, Any], seconds: float, changes: Mapping[str, str], beside: Sequence[str] = ()
) -> list[str]:
    """Returns the lines for a result (`read_result`), a run's wall time and its changes to the recipe.

    `beside` are the lines that compare the run with the committed one.

    Scores are in percent, gains in points; both have 95% intervals over problems.
    """
    lines = [result["title"], *([f"changed: {', '.join(f'{k} {v}' for k, v in changes.items())}"] if changes else [])]
    for benchmark in dict.fromkeys(row["benchmark"] for row in [*result["scores"], *result["gains"]]):
        scores = [score for score in result["scores"] if score["benchmark"] == benchmark]
        measured = [f"{one['metric']} on {one['problems']} {one.get('unit', 'problems')}" for one in scores[:1]]
        lines += ["", f"{benchmark}: {', '.join([*measured, '95% interval'])}"]
        width = max((len(score["policy"]) for score in scores), default=0)
        lines += [
            f"  {score['policy']:<{width}}  {100 * score['value']:5.1f}%  "
            f"[{100 * score['low']:.1f}, {100 * score['high']:.1f}]"
            for score in scores
        ]
        gains = [gain for gain in result["gains"] if gain["benchmark"] == benchmark]
        lines += [f"  {gain['policy']} - {gain['baseline']}, {gain['metric']}: {describe_gain(gain)}" for gain in gains]
    lines += [f"WARNING: {warning}" for warning in result["warnings"]]
    return [
        *lines,
        "",
        f"time    {seconds_in_words(seconds)}",
        *beside,
        f"report  {result['page']}",
        *_next(result["gains"]),
    ]


def describe_gain(gain: Mapping[str, Any]) -> str:
    """Returns `+5.1 points  [+2.0, +8.2]`; for a judge's score, which is no share, `+0.051  [+0.020, +0.082]`."""
    if gain.get("unit") == "score":
        return f"{gain['value']:+.3f}  [{gain['low']:+.3f}, {gain['high']:+.3f}]"
    return f"{100 * gain['value']:+.1f} points  [{100 * gain['low']:+.1f}, {100 * gain['high']:+.1f}]"


def _parsed(path: str, text: bytes) -> dict[str, Any]:
    try:
        content = json.loads(text)
        if not {"title", "page", "scores", "gains", "warnings"} <= set(content):
            raise ValueError("keys are missing")
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} cannot be read ({error}): delete it and run `make repro` again") from None
    return content


def _leaves(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in params.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else json.dumps(value, default=str)


def _next(gains: Sequence[Mapping[str, Any]]) -> list[str]:
    compare = [f"next    retrace compare {gains[0]['baseline']} {gains[0]['policy']}"] if gains else []
    # Only the first hint has the word, whichever it is.
    first = "        " if compare else "next    "
    return [
        *compare,
        f"{first}make ui    # Prefect and MLflow in the browser",
        "keep    git add params.yaml dvc.lock data && git commit",
    ]


def seconds_in_words(seconds: float) -> str:
    """Returns for example `12 s`, `3 min 5 s`, `2 h 40 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
